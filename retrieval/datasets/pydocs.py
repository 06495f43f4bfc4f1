"""The built-in dataset `pydocs`: the documentation strings of the interpreter's standard library.

The query is an entry's summary (the first sentence or paragraph of its docstring), the relevant
document is the description that follows it. Sources are parsed and never imported, so nothing runs,
prints or opens a window; one interpreter always gives the same dataset.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.datasets.source import Places, Qrels
from sluice.retrieval.documents.document import Document

SPLITS = ("train", "dev", "test")
TEST_QUERIES = 300

# Applications and test suites are not documentation of a library. Folders whose names are not
# identifiers (site-packages, config-3.11-...) cannot be part of it and are left out as well.
_SKIPPED_FOLDERS = frozenset(
    {"idlelib", "idle_test", "test", "tests", "turtledemo", "__phello__", "__pycache__"}
)
_QUERY_WORDS = range(3, 31)
_DESCRIPTION_WORDS = 12
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_SUMMARY_END = re.compile(r"\n\s*\n|(?<=[.!?])\n")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)(\s*->.*)?")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One documented module, class or function: its id, its summary and the rest of the text."""

    id: str
    summary: str
    description: str


@dataclass(frozen=True, slots=True)
class _Collection:
    """The finished dataset: texts by document id, and texts by query id for each split."""

    documents: dict[str, str]
    queries: dict[str, dict[str, str]]


class PydocsSource:
    """The documentation of the interpreter's own standard library as a source.

    Ids are qualified names (`json.decoder.JSONDecoder.raw_decode`); titles are empty, because a
    name repeats words of the summary, which is the query. A query has the id of the document it
    comes from, its one relevant document. No two splits share a top-level module.
    """

    name = "pydocs"

    def splits(self) -> list[str]:
        """Return train, dev and test."""
        return list(SPLITS)

    def places(self, split: str) -> Places:
        """Name the parts, which come from the standard library's source files."""
        return Places("pydocs: corpus", "pydocs: queries", f"pydocs: qrels of {split}")

    def documents(self) -> Iterator[Document]:
        """Stream the corpus, in the order of the source files."""
        return (Document(name, "", text) for name, text in _collection().documents.items())

    def document_count(self) -> None:
        """Return None: the corpus is built when it is first read."""

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        """Return the split's queries; ``ConfigError`` for an unknown split."""
        if split not in SPLITS:
            raise ConfigError(
                f"dataset pydocs: unknown split {split!r}; expected one of "
                f"{', '.join(SPLITS)}{suggest(split, SPLITS)}"
            )
        return _collection().queries[split].items()

    def qrels(self, split: str) -> Qrels:
        """Return one relevant document, of grade 1, for each query of the split."""
        return {name: {name: 1} for name, _ in self.queries(split)}


@cache
def _collection() -> _Collection:
    """Build documents and queries once in a process; about four seconds."""
    entries = _distinct(_read_library(Path(sysconfig.get_path("stdlib"))))
    times = Counter(entry.summary.casefold() for entry in entries)
    texts: dict[str, str] = {}
    queries: dict[str, dict[str, str]] = {split: {} for split in SPLITS}
    for entry in entries:
        if times[entry.summary.casefold()] == 1 and _makes_query(entry):
            texts[entry.id] = entry.description
            queries[_split_of(entry.id)][entry.id] = entry.summary
        else:
            texts[entry.id] = f"{entry.summary} {entry.description}".strip()
    queries["test"] = _sample(queries["test"], TEST_QUERIES)
    return _Collection(texts, queries)


def _read_library(root: Path) -> Iterator[_Entry]:
    """Yield every entry with a docstring below the folder of the standard library."""
    files = sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix())
    if not files:
        raise DataError(
            f"dataset pydocs: no Python sources in {root}, expected the standard library; "
            "use an interpreter installed with its sources, or a dataset of your own"
        )
    for path in files:
        parts = path.relative_to(root).with_suffix("").parts
        if not all(part.isidentifier() and part not in _SKIPPED_FOLDERS for part in parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old escape sequences in somebody else's source
                tree = ast.parse(path.read_bytes())
        except SyntaxError:
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield from _entries(tree, name)


def _entries(node: ast.AST, name: str) -> Iterator[_Entry]:
    """Yield the entries of a syntax tree in source order, definitions inside blocks included."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring:
            summary, description = _split_docstring(docstring)
            yield _Entry(name, summary, description)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _entries(child, f"{name}.{child.name}")
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _entries(child, name)


def _split_docstring(docstring: str) -> tuple[str, str]:
    """Split a docstring after its summary: at the first blank line or line that ends a sentence."""
    end = _SUMMARY_END.search(docstring)
    cut = end.start() if end else len(docstring)
    return " ".join(docstring[:cut].split()), " ".join(docstring[cut:].split())


def _distinct(entries: Iterator[_Entry]) -> list[_Entry]:
    """Keep the first entry of every id and of every text that has a word in it.

    Equal descriptions under different summaries count as equal texts too: the query of the one
    could not be distinguished from the query of the other.
    """
    ids: set[str] = set()
    texts: set[str] = set()
    distinct: list[_Entry] = []
    for entry in entries:
        text = (entry.description or entry.summary).casefold()
        if entry.id not in ids and text not in texts and _LETTERS.search(text):
            ids.add(entry.id)
            texts.add(text)
            distinct.append(entry)
    return distinct


def _makes_query(entry: _Entry) -> bool:
    """Tell whether the summary is a sentence to search with and the description worth finding."""
    return (
        len(entry.summary.split()) in _QUERY_WORDS
        and _count_words(entry.summary) >= _QUERY_WORDS.start
        and _count_words(entry.description) >= _DESCRIPTION_WORDS
        and not _SIGNATURE.fullmatch(entry.summary)
        and entry.summary.casefold() not in entry.description.casefold()
    )


def _count_words(text: str) -> int:
    """Count the words between spaces that hold at least two letters in a row."""
    return sum(_LETTERS.search(word) is not None for word in text.split())


def _split_of(name: str) -> str:
    """Return the split of an entry's top-level module: train 70 per cent, dev 12, test 18.

    Twins (`io` and `_pyio`, `collections` and `_collections_abc`) fall into one split: the key is
    the module's name without the marks of a private implementation.
    """
    module = name.partition(".")[0]
    key = re.sub(r"^_(py)?", "", module).partition("_")[0] or module
    # The number in the hash was chosen once, among a few, so that no module dominates dev or test.
    place = _hash(f"split 2 {key}") % 100
    return "train" if place < 70 else "dev" if place < 82 else "test"


def _sample(texts: dict[str, str], size: int) -> dict[str, str]:
    """Return at most `size` queries, drawn by the hash of their ids, in the order given."""
    chosen = set(sorted(texts, key=_hash)[:size])
    return {name: text for name, text in texts.items() if name in chosen}


def _hash(text: str) -> int:
    """Return a number that depends on the text alone, unlike the built-in `hash`."""
    return int.from_bytes(hashlib.sha256(f"pydocs {text}".encode()).digest()[:8], "big")
