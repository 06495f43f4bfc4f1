"""A source of examples of one's own needs ``examples`` only; what else it has is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.training_data.files.rows import ExampleSource, as_source


def test_a_bare_source(dataset: Any) -> None:
    source = as_source(SimpleNamespace(examples=lambda dataset, seed: [seed]))
    assert (source.changes, list(source.paths)) == (False, [])
    assert source.of_epoch(dataset, 7, 3) == [7]


def test_one_that_changes_and_reads_files(dataset: Any, tmp_path: Path) -> None:
    own = SimpleNamespace(
        examples=lambda dataset, seed, epoch: [seed, epoch], changes=True, paths=[tmp_path]
    )
    source = as_source(own)
    assert list(source.paths) == [tmp_path]
    assert source.of_epoch(dataset, 7, 3) == [7, 3]


def test_a_subclass_is_itself_and_other_things_are_refused() -> None:
    own = ExampleSource()
    assert as_source(own) is own
    with pytest.raises(ConfigError, match=r"^train.examples: dict has no examples; expected"):
        as_source({}, "train.examples")
