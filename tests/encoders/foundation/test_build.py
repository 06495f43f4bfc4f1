"""From ``{type: ...}`` to objects: names that are no classes and values that do not fit."""

from pathlib import Path

import pytest

from sluice.encoders.foundation.build import build, check
from sluice.encoders.foundation.errors import ConfigError


def opened(model: str | Path, *, limit: int = 1) -> tuple[str | Path, int]:
    return model, limit


TABLE = {"opened": f"{__name__}:opened"}


@pytest.mark.parametrize(
    "name",
    [":X", ".x:Y", "builtins:int", "json:decoder", "json:nothing", "no_such:X", "json:", ":"],
)
def test_a_type_that_is_no_class_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"encoder\.type"):
        check({"type": name}, {}, where="encoder")


@pytest.mark.parametrize("value", [1, None, ["x"], {}, True])
def test_a_path_is_a_string_or_a_path(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.encoders.foundation.build.resolve", lambda _: opened)
    with pytest.raises(ConfigError, match=r"encoder\.model"):
        build({"type": "opened", "model": value}, TABLE, where="encoder")
    for good in ("x", Path("x")):
        assert build({"type": "opened", "model": good}, TABLE, where="encoder") == (good, 1)


def test_a_list_of_choices_is_one_of_choices_alone() -> None:
    table = {"dense": "sluice.encoders.dense.encoder:DenseEncoder.from_pretrained"}
    for pooling in ("cls", ["cls"], ["cls", "mean"], [], None):
        check({"type": "dense", "model": "m", "pooling": pooling}, table, where="encoder", allow=())
    for pooling in (["cls", "men"], ["cls", 3], [["cls"]], "men", {"cls": 1}):
        with pytest.raises(ConfigError, match=r"encoder\.pooling: "):
            spec = {"type": "dense", "model": "m", "pooling": pooling}
            check(spec, table, where="encoder", allow=())
