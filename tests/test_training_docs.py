"""The page on training names what there is, and its YAML is valid."""

import re
from pathlib import Path

import yaml

from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.training.losses import LOSSES
from sluice.training.negatives.settings import MODES

PAGE = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")


def test_every_loss_and_mode_is_named_and_nothing_else() -> None:
    table = PAGE[PAGE.index("| `type` |") : PAGE.index("A loss of your own")]
    rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(LOSSES)
    for mode in MODES:
        assert f"`{mode}`" in PAGE


def test_the_example_has_keys_that_exist() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    checked(yaml.safe_load(block), TrainConfig)
