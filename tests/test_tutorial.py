"""docs/tutorial.md in this process with a tiny model; ``scripts/tutorial`` runs it for real."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from command_line import Call
from places import ROOT
from site_scripts import site_script

page_blocks = site_script("page_blocks")
PAGE = ROOT / "docs" / "tutorial.md"
TEXT = PAGE.read_text(encoding="utf-8")
MODEL = "all-MiniLM-L6-v2"
HEREDOC = re.compile(r"^cat > (\S+) <<'END'\n(.*?)^END\n", re.S | re.M)
# What depends on no model is compared with the page here too.
WITHOUT_A_MODEL = ("runs/words", "config check")


def test_there_are_ten_steps() -> None:
    assert re.findall(r"^## (\d+)\. ", TEXT, re.M) == [str(step) for step in range(1, 11)]
    outputs = [block.output for block in page_blocks.blocks(TEXT) if block.output]
    assert len(outputs) >= 7
    assert all(len(output.split()) > 1 for output in outputs)


@pytest.mark.thorough
def test_every_block_runs(
    tmp_path: Path, bert: Path, shell: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def execute(block: page_blocks.Block) -> str:
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(block.code, {"__name__": "tutorial"})
            return out.getvalue()
        for name, text in HEREDOC.findall(block.code):
            Path(name).write_text(text.replace(MODEL, str(bert)), encoding="utf-8")
        printed = ""
        for line in HEREDOC.sub("", block.code).splitlines():
            word, *words = shlex.split(line)
            assert word == "sluice", line
            if "--bm25" not in words and words[0] == "index":
                words += ["--model", str(bert)]
            if words[0] in ("evaluate", "run", "tune"):
                words += ["evaluate.latency_queries=0", "evaluate.report=false"]  # seconds
            code, out, err = shell(*words)
            assert code == 0, (line, err)
            printed += out
        compared = any(each in block.code for each in WITHOUT_A_MODEL)
        return printed if compared or block.output is None else block.output

    assert page_blocks.run(PAGE, execute) == []
    assert Path("runs/workshop/tune/tuned.yaml").exists()
    bm25 = r"^bm25 +(0\.\d{4}) +(0\.\d{4})"
    (expected,) = {match for match in re.findall(bm25, TEXT, re.M) if match}
    report = Path("runs/workshop/report.md").read_text(encoding="utf-8")
    assert all(figure in report for figure in expected)


@pytest.mark.parametrize(
    ("expected", "printed", "found"),
    [
        ("a 0.5000 12 ms\n", "a   0.5100 7.5 ms\n", ""),
        ("a 0.5000\n", "a 0.5300\n", "0.53 instead of 0.5"),
        ("d01 x\n", "d02 x\n", "line 1: 'd02 x' instead of 'd01 x'"),
        ("x\ny\n", "x\n", "1 lines instead of 2"),
        ("--- ------\n", "----- ---\n", ""),
        ("x\n...\n", "x\ny\nz\n", ""),
        ("x\n...\n", "w\ny\nz\n", "line 1: 'w' instead of 'x'"),
        ("a +0.1000 b\n", "a -0.1000 b\n", "-0.1 instead of 0.1"),
    ],
)
def test_what_counts_as_another_output(expected: str, printed: str, found: str) -> None:
    assert page_blocks.difference(expected, printed) == found


def test_a_page_is_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\npip install x\n```\n\n```sh\none\n```\n\n```text\nold 1\n```\n")
    seen: list[str] = []

    def execute(block: page_blocks.Block) -> str:
        seen.append(block.code)
        return "new 2  \n"

    assert page_blocks.run(page, execute) == ["page.md: one: line 1: 'new #' instead of 'old #'"]
    assert page_blocks.run(page, execute, write=True) == []
    assert seen == ["one\n", "one\n"]
    assert page.read_text().endswith("```text\nnew 2\n```\n")
    page.write_text("```sh\none\n```\n\n```text\nold\n...\n```\n")
    page_blocks.run(page, lambda block: "a\nb\nc\n", write=True)
    assert page.read_text().endswith("```text\na\n...\n```\n")
