"""The help of the command line: every verb teaches, and ``docs/cli.md`` says the same."""

import importlib.util
import re
import shlex
import subprocess
import sys

import pytest
from command_line import Call, contexts, verb_of
from places import ROOT

from sluice.retrieval.cli.app import FIRST_LINE, first_line

PATHS = list(contexts())


NO_SUCH_OPTION = """\
error: no such option: --output
  usage: sluice run [OPTIONS] CONFIG [KEY.PATH=VALUE...] (help: sluice run -h)
  for a key of the file, write output=VALUE behind it
"""


def is_verb(path: str) -> bool:
    return not hasattr(contexts()[path].command, "commands")


def test_verbs_are_listed_in_headed_groups(sluice: Call) -> None:
    code, out, _ = sluice("-h")
    assert code == 0
    assert out == sluice("--help")[1]
    headings = re.findall(r"^(\S.*):$", out, flags=re.M)
    assert len(headings) == 6  # five of verbs, and the options
    verbs = re.findall(r"^  ([a-z]+)  +[A-Z]", out, flags=re.M)
    assert sorted(verbs) == sorted(path.split()[1] for path in PATHS if len(path.split()) == 2)


def test_help_fits_and_is_whole() -> None:
    for path, context in contexts().items():
        out = context.command.get_help(context)
        plain = [line for line in out.splitlines() if not line.startswith("    sluice ")]
        assert max(map(len, plain)) <= 80, path
        assert max(map(len, out.splitlines())) <= 100, path
        first = first_line(context.command.help)
        assert first[0].isupper(), path
        assert first.endswith("."), path
        if path != "sluice":
            assert len(first) <= FIRST_LINE, path
            *_, name = path.split()
            parent = context.parent.command.get_help(context.parent)
            assert re.search(rf"^  {name} +{re.escape(first)}$", parent, flags=re.M), path


def test_examples_parse() -> None:
    for path in filter(is_verb, PATHS):
        text = contexts()[path].command.help
        examples = re.findall(r"^  (sluice .*)$", text, flags=re.M)
        assert any(f"{example} ".startswith(f"{path} ") for example in examples), path
        for example in examples:
            verb_of(shlex.split(example)[1:])


def test_parameters_are_named_alike() -> None:
    for path, context in contexts().items():
        for each in context.command.params:
            where = (path, each.name, each.metavar, each.help)
            if each.param_type_name == "argument" or not each.is_flag:
                assert re.fullmatch(r"[A-Z][A-Z_.:=,]*", each.metavar or ""), where
            assert each.help, where
            assert each.help.endswith((".", "...")), where
            assert not re.match(r"(Of|For|In|By) ", each.help), where
            assert not re.search(r"by default|\(default", each.help), where


def test_an_option_s_default_is_shown_once(sluice: Call) -> None:
    out = sluice("search", "-h")[1]
    assert "[default: 10, with --vectors 1000]" in " ".join(out.split())
    assert "[default: 0]" in sluice("labels", "judge", "-h")[1]
    out = " ".join(sluice("mine", "-h")[1].split())
    assert "--per-query N Negatives for each query. [default: 4]" in out
    assert "--output FILE The JSON lines {query, pos, neg, ...} to write. [required]" in out


def test_version_and_start_as_a_module(sluice: Call) -> None:
    code, out, _ = sluice("--version")
    assert code == 0
    assert re.match(r"sluice (\d+\.\d+\S*|unknown.*)\npython 3\.\d+\.\d+", out)
    for package in ("torch", "transformers", "numpy", "faiss-cpu", "numba"):
        assert re.search(rf"^{package} \d+\.", out, flags=re.M)
    words = [sys.executable, "-m", "sluice", "-h"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == sluice("-h")[1]


def test_completion_of_verbs(sluice: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_, **__: ("bash", "/bin/bash"))
    code, out, _ = sluice("--show-completion")
    assert (code, "_SLUICE_COMPLETE=complete_bash" in out) == (0, True)
    monkeypatch.setenv("COMP_WORDS", "sluice config sch")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("_SLUICE_COMPLETE", "complete_bash")
    assert sluice()[1].split() == ["schema"]


def test_a_verb_that_is_unknown_or_misspelt(sluice: Call) -> None:
    code, _, err = sluice("serach", "x")
    assert (code, "did you mean search, teach?" in err) == (2, True)


def test_a_key_of_the_file_written_as_an_option(shell: Call, sluice: Call) -> None:
    code, _, err = shell("run", "x.yaml", "--output", "runs/x")
    assert (code, err) == (2, NO_SUCH_OPTION)
    code, _, err = sluice("score", "a", "b", "--output", "runs/x")
    assert (code, "VALUE" in err) == (2, False)


def test_the_pages_are_up_to_date() -> None:
    file = ROOT / "scripts" / "make_cli_docs.py"
    spec = importlib.util.spec_from_file_location("make_cli_docs", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text(encoding="utf-8")
    assert page == module.page(), "run python scripts/make_cli_docs.py"
    readme = module.README.read_text(encoding="utf-8")
    assert readme == module.readme(), "run python scripts/make_cli_docs.py"
    for path in PATHS:
        assert f"# {path}\n" in page
