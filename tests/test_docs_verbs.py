"""Every verb that a page, a docstring or a message names exists, with the options given to it."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from sluice.retrieval.cli.app import DEFAULTS, app

ROOT = Path(__file__).resolve().parents[1]
LOGS = {"experiments.md", "cli.md"}  # dated entries; made from the verbs themselves
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name not in LOGS)
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
for package in ("encoders", "indexing", "training", "retrieval"):
    PAGES += sorted((ROOT / package).rglob("*.py"))
CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`|^(sluice .+(?:\\\n.+)*)$", re.M)


def commands(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command line, in a block or within a sentence."""
    for within, alone in CODE.findall(text):
        words = (within or alone).replace("\\\n", " ").partition(" # ")[0].split()
        if words[:1] == ["sluice"] and re.fullmatch(r"[a-z][a-z-]*,?", (*words, "")[1]):
            yield tuple(word.rstrip(",") for word in words[1:])


def fault(words: Sequence[str], verb: Any) -> str:
    """Return what a command line names that does not exist."""
    while isinstance(verb, TyperGroup):
        name, *words = [*words, ""]
        if not re.fullmatch("[a-z][a-z-]*", name):
            return ""  # the verb alone, or with its parts as VERB
        if name not in verb.commands and verb.name in DEFAULTS:
            name, words = DEFAULTS[verb.name], [name, *words]
        if name not in verb.commands:
            return f"{verb.name or 'sluice'} has no {name}"
        verb = verb.commands[name]
    known = {option for each in verb.params for option in (*each.opts, *each.secondary_opts)}
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return ", ".join(f"{verb.name} has no {each}" for each in given if each not in known | {"-h"})


@pytest.fixture(scope="module")
def verbs() -> Any:
    return typer.main.get_command(app)


def test_verbs_and_options_exist(verbs: Any) -> None:
    found = {(page, line) for page in PAGES for line in commands(page.read_text(encoding="utf-8"))}
    assert len(found) > 150
    faults = {
        f"{page.relative_to(ROOT)}: sluice {' '.join(line)}: {wrong}"
        for page, line in found
        if (wrong := fault(line, verbs))
    }
    assert faults == set()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`sluice config plan` estimates", "config has no plan"),
        ("sluice seek x", "sluice has no seek"),
        ("sluice search x --color\n", "search has no --color"),
        ("`sluice search\nx -k 3 --where=y`, `sluice config`, `sluice VERB`", ""),
    ],
)
def test_what_is_noticed(text: str, wrong: str, verbs: Any) -> None:
    assert "".join(fault(line, verbs) for line in commands(text)) == wrong
