"""Surroundings that fail: disks, rights, limits, homes, locales, closed streams, odd paths."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import writers
from places import ROOT

from sluice.retrieval import Run

ODD = ("a b ünï 東京", "new\nline", "-dash quo'te\"s", "$(touch pwned) %s%n [x]*?", "~")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    writers.prepare(folder)
    writers.retriever(folder, "bm25")
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB of its own, where it may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system may be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def search(world: Path, *words: object) -> list[object]:
    queries = ["--queries", world / "data" / "queries.jsonl"] if words else ["gold word3"]
    return ["search", world / "out" / "retrievers" / "bm25", *queries, *words]


def test_a_full_disk_keeps_the_old_file_and_no_draft(
    world: Path, disk: Path, tmp_path: Path
) -> None:
    run = disk / "run.trec"
    run.write_text("old")
    (disk / "filler").write_bytes(bytes(disk.stat().st_blksize * 200))
    with (disk / "rest").open("wb", buffering=0) as stream, pytest.raises(OSError, match="space"):
        while True:
            stream.write(bytes(4096))
    outcome = writers.ran(search(world, "--output", run), tmp_path)
    assert outcome.code == 2
    assert f"{run}: No space left on device" in outcome.err
    assert "free some space" in outcome.err
    assert run.read_text() == "old"
    assert files(disk) == ["filler", "rest", "run.trec"]


def test_a_disk_that_is_read_only_is_read_and_not_written(
    world: Path, disk: Path, tmp_path: Path
) -> None:
    folder = disk / "r"
    subprocess.run(["cp", "-r", world / "out" / "retrievers" / "bm25", folder], check=True)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert writers.ran(["search", folder, "gold"], tmp_path).code == 0
    for words in (
        ["add", folder, world / "new.jsonl"],
        search(world, "--output", disk / "run.trec"),
    ):
        outcome = writers.ran(words, tmp_path)
        assert (outcome.code, outcome.fault()) == (2, "")
        assert "Read-only file system" in outcome.err


@pytest.mark.parametrize("most", [6, 12])
def test_few_descriptors(world: Path, tmp_path: Path, most: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    outcome = writers.ran(
        search(world), tmp_path, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    )
    assert outcome.fault() == ""


def _without_home() -> None:
    del os.environ["HOME"]


def _home_nowhere() -> None:
    os.environ["HOME"] = "/nonexistent"


def _full_output() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def _no_output() -> None:
    os.close(1)
    sys.stdout = None  # type: ignore[assignment]


def _no_streams() -> None:
    for number in (0, 2):
        os.close(number)
    sys.stdin = sys.stderr = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (_without_home, [0]),
        (_home_nowhere, [0]),
        (_no_output, [0]),
        (_full_output, [2]),
        (_no_streams, [0]),
    ],
)
def test_homes_and_streams(
    world: Path, tmp_path: Path, change: Callable[[], None], codes: list[int]
) -> None:
    outcome = writers.ran(search(world), tmp_path, change)
    assert outcome.fault() == ""
    assert outcome.code in codes


def test_an_empty_environment_and_an_ascii_locale(world: Path) -> None:
    words = [sys.executable, "-m", "sluice", *map(str, search(world)[:2]), "goldé 東京 gold"]
    outcome = subprocess.run(
        words, cwd=ROOT, capture_output=True, check=False,
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize("name", ODD)
def test_odd_paths(world: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    run = folder / name / "run.trec"
    outcome = writers.ran(search(world, "--output", run), tmp_path)
    assert outcome.code == 0, outcome
    assert len(Run.load(run)) == 28
    assert files(tmp_path) == sorted([name, "tmp"])


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("x" * 250 + ".trec", "File name too long"),
        (".", "is a folder"),
        ("file/run.trec", "file is a file; expected a folder"),
    ],
)
def test_outputs_that_cannot_be(world: Path, tmp_path: Path, output: str, message: str) -> None:
    (tmp_path / "file").touch()
    outcome = writers.ran(search(world, "--output", output), tmp_path)
    assert (outcome.code, outcome.fault()) == (2, "")
    assert message in outcome.err
    assert ".tmp" not in outcome.err
    assert files(tmp_path) == ["file", "tmp"]
