"""Replacing a model's folder: what is never replaced, concurrent readers, and what kills leave."""

import threading
from pathlib import Path

import pytest

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.disk.generations import replaced_folder, settle, writer_lock
from sluice.encoders.foundation.errors import ConfigError


def test_foreign_files_are_never_replaced(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    mine = tmp_path / "mine"
    mine.mkdir()
    encoder.save_pretrained(mine)  # empty: nothing is lost
    encoder.save_pretrained(mine)  # a model
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"contains 'thesis.txt'"):
        encoder.save_pretrained(foreign)
    assert (foreign / "thesis.txt").read_text() == "years of work"
    with pytest.raises(ConfigError, match="is a file"):
        encoder.save_pretrained(foreign / "thesis.txt")
    monkeypatch.chdir(mine)
    for name in (".", "..", "/", str(mine)):
        with pytest.raises(ConfigError, match="current folder"):
            encoder.save_pretrained(name)
    assert {entry.name for entry in tmp_path.iterdir()} == {"mine", "foreign"}


def test_what_a_link_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for text in ("one", "two"):
        with replaced_folder(tmp_path / "link", ["a.txt"]) as folder:
            (folder / "a.txt").write_text(text)
    assert (tmp_path / "real" / "a.txt").read_text() == "two"
    assert {entry.name for entry in tmp_path.iterdir()} == {"link", "real"}


def test_readers_that_settle_do_not_disturb_writers(tmp_path: Path) -> None:
    target, faults, done = tmp_path / "model", [], threading.Event()

    def write(text: str) -> None:
        try:
            for _ in range(40):
                with replaced_folder(target, ["a.txt"]) as folder:
                    (folder / "a.txt").write_text(text)
        except OSError as error:
            faults.append(error)

    def read() -> None:
        while not done.is_set():
            settle(target)

    writers = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert not faults
    assert (target / "a.txt").read_text() in ("one", "two")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_settling_what_needs_nothing_touches_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path, Path("/"), Path()):
        settle(path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_replaced_or_left(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for text in ("one", "two"):
        with replaced_folder(target, markers=["a.txt"]) as folder:
            (folder / "a.txt").write_text(text)
    assert (target / "a.txt").read_text() == "two"
    with pytest.raises(ZeroDivisionError), replaced_folder(target, ["a.txt"]) as folder:
        (folder / "a.txt").write_text("half")
        raise ZeroDivisionError
    assert (target / "a.txt").read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_replacement_killed_between_its_renames_is_undone(tmp_path: Path) -> None:
    target, previous = tmp_path / "model", tmp_path / ".model.previous"
    target.mkdir()
    (target / "a.txt").write_text("one")
    target.rename(previous)
    settle(target)
    assert (target / "a.txt").read_text() == "one"
    assert not previous.exists()


def test_a_lock_that_is_a_link_changes_no_other_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine", encoding="utf-8")
    folder = tmp_path / "theirs"
    (folder / ".model.previous").mkdir(parents=True)
    for target, name in ((mine, ".model.lock"), (mine, ".lock"), (tmp_path / "new", ".b.lock")):
        (folder / name).symlink_to(target)
    (folder / ".b.previous").mkdir()
    for name in ("model", "b"):
        with pytest.raises(OSError, match="symbolic"):
            settle(folder / name)
    with pytest.raises(OSError, match="symbolic"), writer_lock(folder):
        pass
    assert mine.read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "new").exists()
