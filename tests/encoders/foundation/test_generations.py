"""Generation folders: current and previous state, a second writer, damaged manifests."""

import json
from pathlib import Path

import pytest

from sluice.encoders.foundation.disk.generations import (
    MANIFEST,
    new_generation,
    open_generation,
    pin_generation,
    verify,
    writer_lock,
)
from sluice.encoders.foundation.errors import IndexFormatError


def written(path: Path, text: str) -> None:
    with new_generation(path, "test", 1, {"note": text}) as folder:
        (folder / "data.txt").write_text(text)


def current(path: Path) -> str:
    _, folder = open_generation(path, "test", 1)
    return (folder / "data.txt").read_text()


def test_a_write_is_seen_whole_and_the_one_before_is_kept(tmp_path: Path) -> None:
    for text in ("one", "two", "three"):
        written(tmp_path, text)
        assert current(tmp_path) == text
    assert sorted(p.name for p in tmp_path.glob("g*")) == ["g000002", "g000003"]
    manifest, folder = open_generation(tmp_path, "test", 1, generation="g000002")
    assert (manifest["note"], (folder / "data.txt").read_text()) == ("two", "two")
    pin_generation(tmp_path, "g000002")
    assert current(tmp_path) == "two"
    written(tmp_path, "four")
    assert sorted(p.name for p in tmp_path.glob("g*")) == ["g000002", "g000004"]
    assert verify(tmp_path) == 1


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    written(tmp_path, "one")
    with pytest.raises(ZeroDivisionError), new_generation(tmp_path, "test", 1, {}) as folder:
        (folder / "data.txt").write_text("half")
        raise ZeroDivisionError
    assert current(tmp_path) == "one"
    assert [p.name for p in tmp_path.glob("g*")] == ["g000001"]


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    with writer_lock(tmp_path), pytest.raises(IndexFormatError, match="another process"):
        written(tmp_path, "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "upgrade"),
        ({"version": None}, "edited or damaged"),
        ({"format": "other"}, "format is 'other'"),
        ({"generation": "../g000001"}, "not as Sluice writes it"),
        ({"generation": 3}, "not as Sluice writes it"),
        ({"files": {"../../x": {"bytes": 1, "sha256": ""}}}, "not as Sluice writes it"),
        ({"files": {"data.txt": {"bytes": "3", "sha256": ""}}}, "not as Sluice writes it"),
        ({"files": {"gone.txt": {"bytes": 3, "sha256": ""}}}, "missing"),
        ({"files": None}, "not as Sluice writes it"),
    ],
)
def test_a_manifest_that_lies_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    written(tmp_path, "one")
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, **change}))
    with pytest.raises(IndexFormatError, match=message):
        open_generation(tmp_path, "test", 1)


def test_a_manifest_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    for text in ("[]", "{", '"x"'):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(IndexFormatError):
            open_generation(tmp_path, "test", 1)
        with pytest.raises(IndexFormatError):
            verify(tmp_path)
