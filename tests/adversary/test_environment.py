"""Surroundings that fail: disks, rights, limits, homes, locales, closed streams, odd paths."""

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import writers
from places import ROOT

from sluice.retrieval import Run

pytestmark = pytest.mark.thorough

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


@pytest.fixture
def own(world: Path, tmp_path: Path) -> Path:
    """A copy of the retriever, whose place no other file knows."""
    return Path(shutil.copytree(world / "out" / "retrievers" / "bm25", tmp_path / "moved"))


def test_a_folder_through_a_link_is_changed_behind_it(
    world: Path, own: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(own)
    assert writers.answers(link) == writers.answers(world / "out" / "retrievers" / "bm25")
    assert writers.ran(["add", link, world / "new.jsonl"], tmp_path).code == 0
    assert link.is_symlink()
    assert "n11" in str(writers.answers(own))


def test_files_of_nobody_stay_and_harm_nothing(world: Path, own: Path, tmp_path: Path) -> None:
    for name in ("index/g000099/junk", ".nfs0001/x", "index/.nfs0001", "encoder-deadbeef/x"):
        (own / name).parent.mkdir(exist_ok=True)
        (own / name).write_text("x")
    assert writers.answers(own) == writers.answers(world / "out" / "retrievers" / "bm25")
    assert writers.ran(["add", own, world / "new.jsonl"], tmp_path).code == 0
    assert "n11" in str(writers.answers(own))
    assert (own / ".nfs0001" / "x").exists()


@pytest.mark.parametrize("kind", ["dangling", "loop"])
def test_links_that_lead_nowhere(world: Path, tmp_path: Path, kind: str) -> None:
    link = tmp_path / "link"
    link.symlink_to(link if kind == "loop" else tmp_path / "nowhere")
    outcome = writers.ran(["search", link, "gold"], tmp_path)
    assert (outcome.code, outcome.fault()) == (2, "")
    source = writers.config(world, "linked", retrievers={"bm25": writers.section(world, "bm25")})
    outcome = writers.ran(["index", source, f"output={link}"], tmp_path)
    assert outcome.fault() == ""
    assert (outcome.code == 0) == (link / "retrievers/bm25/retriever.json").exists()


@pytest.mark.parametrize("form", ["vectors", "ciff", "index"])
def test_a_folder_with_somebodys_file_is_not_replaced(
    world: Path, own: Path, tmp_path: Path, form: str
) -> None:
    source = writers.config(world, "linked", retrievers={"bm25": writers.section(world, "bm25")})
    place = tmp_path / "o" / "retrievers" / "bm25" if form == "index" else tmp_path / "o"
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("precious")
    words = ["export", own, place, "--format", form]
    outcome = writers.ran(
        ["index", source, f"output={tmp_path}/o"] if form == "index" else words, tmp_path
    )
    assert (outcome.code, outcome.fault()) == (2, "")
    assert files(place) == ["thesis.txt"]


def _backwards() -> None:
    now, count = time.time, iter(range(10**9))
    time.time = lambda: now() - 3600 * next(count)


def test_a_clock_that_goes_back(world: Path, own: Path, tmp_path: Path) -> None:
    assert writers.ran(["add", own, world / "new.jsonl"], tmp_path, _backwards).code == 0
    for path in own.rglob("*"):
        os.utime(path, (2**31, 2**31))  # of the year 2038
    outcome = writers.ran(["update", own, world / "changed.jsonl"], tmp_path, _backwards)
    assert outcome.code == 0, outcome
    assert "turned" in str(writers.answers(own))
