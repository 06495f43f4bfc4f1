"""Product code and documentation use the field's words, not the private ones they once had.

Each pattern is a phrase that made readers stop; the comment has what to write instead. Text is
what a person reads: string literals with a space in them, docstrings, comments and Markdown.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("encoders", "indexing", "training", "retrieval")
MODULES = sorted(file for name in PACKAGES for file in (ROOT / name).rglob("*.py"))
PAGES = [
    page
    for page in sorted(
        [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    )
    if page.name != "experiments.md"  # a dated log
]
# What may follow "a training": then it is an adjective.
KINDS = (
    "batch|config|corpus|curve|data|dataset|document|example|file|format|input|job|journal|loop|"
    "loss|objective|pair|process|queries|query|record|row|run|script|section|set|signal|split|"
    "state|step|text|YAML"
)
FORBIDDEN = {
    r"(?<!there )\b(?:is|are|was|were) no (?!longer|more|less|fewer)": "is not a ..., has no ...",
    r"\breads? otherwise\b": "has another text",
    r"\bthat is said\b": "a warning says so",
    r"\b(?:is|are) (?:said|told)\b(?! apart)": "is reported, is logged",
    r"\b(?:goes|go) on\b": "continues, continue",
    r"\bmade again\b": "rebuilt, repeated",
    rf"\ba training(?!-)(?! ?(?:{KINDS}))": "a training run, training",
    r"\btrainings\b": "training runs",
    r"\bneeded, but not there\b": "missing (required)",
    r"\bwhat there is\b": "what exists, all of them",
    r"\b(?:is|are) whole(?! \w)": "is complete, is intact",
    r"\b(?:is|are) asked\b(?! for| to)": "are searched, is queried",
}


def texts_of(file: Path) -> Iterator[str]:
    """Yield the texts of a module: neighbouring strings and comments are one text.

    A module whose words hold no pattern has none to yield: reading its tokens takes longest.
    """
    source = file.read_text(encoding="utf-8")
    words = re.sub(r"[\s\"'#]+", " ", source)
    if not any(re.search(pattern, words, flags=re.I) for pattern in FORBIDDEN):
        return
    pieces: list[str] = []
    kind = None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            continue
        if token.type not in (tokenize.STRING, tokenize.COMMENT) or token.type != kind:
            yield " ".join("".join(pieces).split())
            pieces = []
        kind = token.type
        if kind == tokenize.COMMENT:
            pieces.append(token.string.lstrip("#") + " ")
        elif kind == tokenize.STRING:
            pieces.append(re.sub(r"^\w*(\"\"\"|'''|\"|')(.*)\1$", r"\2", token.string, flags=re.S))


def faults(texts: Iterator[str]) -> list[str]:
    return [
        f"{text[max(0, found.start() - 40) : found.end() + 30]!r}: write {instead}"
        for text in texts
        if " " in text
        for pattern, instead in FORBIDDEN.items()
        for found in re.finditer(pattern, text, flags=re.I)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_modules(package: str) -> None:
    bad = [
        f"{file.relative_to(ROOT)}: {fault}"
        for file in MODULES
        if file.relative_to(ROOT).parts[0] == package
        for fault in faults(texts_of(file))
    ]
    assert not bad, "\n" + "\n".join(bad)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page: Path) -> None:
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert not faults(iter([text]))


def test_the_patterns_match_what_they_forbid_and_no_more(tmp_path: Path) -> None:
    bad = "grade 'x' is no integer|a killed run goes on|one of the trainings|in a training, that"
    fine = "there is no index|is no longer read|a training run|a training pair|cannot be told apart"
    assert all(faults(iter([text])) for text in bad.split("|"))
    assert not any(faults(iter([text])) for text in fine.split("|"))
    module = tmp_path / "module.py"
    module.write_text("x = (\n    'there '\n    'is no index'\n)\n# there\n# is no index\n")
    assert not faults(texts_of(module))
    module.write_text("x = 'is no index'  # a run\n# goes on\n")
    assert len(faults(texts_of(module))) == 2
