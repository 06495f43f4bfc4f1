"""docs/course in this process, with 250 documents and a tiny model; ``scripts/course`` in full."""

import contextlib
import io
import json
import re
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from site_scripts import site_script

from sluice.retrieval.datasets import pydocs

lessons, page_blocks = site_script("lessons"), site_script("page_blocks")
EVERY = lessons.lessons()
MODEL = "all-MiniLM-L6-v2"
MODULES = ["calendar", "heapq", "csv", "hmac", "shelve", "wave"]  # test
MODULES += ["bz2", "gzip", "statistics", "textwrap", "random", "fractions", "sched", "bisect"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, and in place of pydocs the documentation of a few modules."""
    library = tmp_path_factory.mktemp("library")
    for name in MODULES:
        shutil.copy(Path(sysconfig.get_path("stdlib")) / f"{name}.py", library)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sysconfig, "get_path", lambda name: str(library))
        collection = pydocs._collection.__wrapped__()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pydocs, "_collection", lambda: collection)
        yield tmp_path_factory.mktemp("course")


def test_there_are_nine() -> None:
    assert [each.number for each in EVERY] == list(range(1, 10))
    overview = (lessons.COURSE / "index.md").read_text(encoding="utf-8")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for each in EVERY:
        row = rf"\]\({each.page.name}\) \|[^|]+\| {each.measured}: {each.expected:.4f} \|$"
        assert re.search(row, overview, re.M), each.page.name
        assert f"course/{each.page.name}" in settings


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.page.stem)
def test_a_page_has_what_every_lesson_has(each: Any) -> None:
    text = each.page.read_text(encoding="utf-8")
    assert text.startswith(f"# Lesson {each.number}: {each.title}\n")
    parts = re.findall(r"^##+ (.+)$", text, re.M)
    assert parts[-3:] == ["Exercises", "Reproduce it", "Reproduction log"]
    exercises, answers = text.partition("## Exercises")[2].split("<summary>Answers</summary>")
    numbered = re.compile(r"^(\d)\. ", re.M)
    answered = numbered.findall(answers.partition("</details>")[0])
    assert answered == numbered.findall(exercises) == ["1", "2", "3"]
    assert f"```sh\nscripts/course {each.number}\n```" in text
    assert all(block.output for block in page_blocks.blocks(text) if block.output is not None)
    assert re.search(r"!\[[^\]]+\]\([a-z]+\.svg\)", text) or each.number == 8
    log = text.partition("| date | Sluice | Python | machine | result |\n")[2].partition("\n")[2]
    results = [float(line.split("|")[-2]) for line in log.splitlines()]
    assert results
    assert all(abs(result - each.expected) <= each.within for result in results)


@pytest.mark.thorough
@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.page.stem)
def test_every_block_runs(
    each: Any, small: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs are those of the page as long as neither model nor collection have a part in them."""
    monkeypatch.chdir(small)
    names: dict[str, Any] = {"__name__": "lesson"}
    text = each.page.read_text(encoding="utf-8")
    told: dict[str, float] = {}
    same = True
    for block in page_blocks.blocks(text):
        if block.language == "sh":
            continue
        same = same and "pydocs" not in block.code and MODEL not in block.code
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(block.code.replace(MODEL, str(bert)), names)
        printed = out.getvalue()
        assert bool(printed) == (block.output is not None), block.code
        if same and block.output is not None:
            assert page_blocks.difference(block.output, printed) == ""
        for who, number in re.findall(r"^(by hand|ours) +(\d+\.\d{4})$", printed, re.M):
            told[who] = float(number)
        if "ours" in told:
            assert told["ours"] == pytest.approx(told["by hand"], abs=2e-4)
    assert 0 <= names["reached"] <= 1 or each.number == 8
    assert ("ours" in told) == (each.number in (1, 3, 5, 6, 8, 9))


def page(folder: Path, code: str = "print(7)\nreached = 0.5\n", output: str = "7\n") -> Path:
    (folder / "dot.svg").write_text("<svg/>")
    file = folder / "1-x.md"
    file.write_text(
        f"# Lesson 1: x\n\nA [link](other.md), ![a dot](dot.svg).\n\n```python\n{code}```\n\n"
        f"```text\n{output}```\n\n<details markdown>\n<summary>Answers</summary>\n\n"
        "```python\nfolded = 1\n```\n\n</details>\n\n```sh\nscripts/course 1\n```\n\n"
        "| number | expected | within |\n|---|---:|---:|\n| good | 0.5100 | 0.02 |\n"
    )
    return file


@pytest.mark.parametrize(
    ("code", "output", "faults"),
    [
        ("print(7)\nreached = 0.5\n", "8\n", []),
        ("print('seven')\nreached = 0.5\n", "7\n", ["1-x.md: reached = 0.5: line 1: 'seven' "]),
        ("print(7)\nreached = 0.48\n", "7\n", ["good: 0.4800 instead of 0.5100"]),
        ("print(7)\n", "7\n", ["good: nan instead of 0.5100"]),
        ("print(1 / 0)\n", "7\n", ["1-x.md: ZeroDivisionError", "good: nan"]),
    ],
)
def test_what_a_run_reports(tmp_path: Path, code: str, output: str, faults: list[str]) -> None:
    each = lessons.lesson(page(tmp_path, code, output), 1)
    assert (each.title, each.measured, each.expected, each.within) == ("x", "good", 0.51, 0.02)
    result = lessons.run_lesson(each)
    assert len(result.faults) == len(faults)
    assert all(line.startswith(start) for line, start in zip(result.faults, faults, strict=True))
    first, *_, last = result.lines()
    assert first.startswith("off  lesson 1, x: " if faults else "PASS lesson 1, x: good 0.5000")
    assert re.fullmatch(r" +\| [\d-]{10} \| \d[\d.]+ \| \d[\d.]+ \| \w+ \| (0\.\d{4}|nan) \|", last)


def test_a_page_without_a_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1-x.md").write_text("# Lesson 1: x\n")
    with pytest.raises(ValueError, match=r"1-x\.md: no title, or no table"):
        lessons.lesson(tmp_path / "1-x.md", 1)


def test_a_notebook_holds_the_page_and_ends_with_the_comparison(tmp_path: Path) -> None:
    each = lessons.lesson(page(tmp_path), 1)
    lessons.write_notebooks([each], tmp_path / "notebooks")
    made = json.loads((tmp_path / "notebooks" / "1-x.ipynb").read_text(encoding="utf-8"))
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
    first, code, rest, last = made["cells"]
    assert first["source"] == "# Lesson 1: x\n\nA link, ![a dot](attachment:dot.svg)."
    assert list(first["attachments"]["dot.svg"]) == ["image/svg+xml"]
    assert code["source"] == "print(7)\nreached = 0.5"
    assert rest["source"].startswith("<details")
    assert "folded = 1" in rest["source"]
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code["source"], names)
        exec(last["source"], names)
    assert out.getvalue() == "7\n0.5000 PASS\n"
    assert len({cell["id"] for cell in made["cells"]}) == 4


def test_our_notebooks_have_every_block(tmp_path: Path) -> None:
    for each in EVERY:
        cells = lessons.notebook(each)["cells"]
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"]) for cell in cells)
        shapes = {"code": {"execution_count", "outputs"}, "markdown": set()}
        for cell in cells:
            keys = {"cell_type", "id", "metadata", "source"} | shapes[cell["cell_type"]]
            assert set(cell) - {"attachments"} == keys
            assert not re.search(r"(?<!!)\]\((?!https?:|attachment:)", cell["source"])


def test_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lessons, "COURSE", tmp_path)
    monkeypatch.setenv("SLUICE_PROGRESS", "0")  # main sets it where it is not set
    page(tmp_path)
    lessons.main(["--notebooks", str(tmp_path / "out")])
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["1-x.ipynb"]
    assert capsys.readouterr().out == f"{tmp_path / 'out'}: 1 notebooks\n"
    with pytest.raises(SystemExit, match="choose another folder with --notebooks"):
        lessons.main(["--notebooks", str(tmp_path / "1-x.md")])
    with pytest.raises(SystemExit) as stopped:
        lessons.main(["9"])
    assert stopped.value.code == 2
    assert "lesson 9: expected 1 to 1" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        lessons.main([])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("PASS lesson 1")
    page(tmp_path, code="reached = 0.1\nprint(7)\n")
    with pytest.raises(SystemExit, match="1 of 1 lessons are off"):
        lessons.main(["1"])
