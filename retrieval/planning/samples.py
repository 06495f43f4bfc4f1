"""Small sample files of the names that shipped YAML uses: a catalogue, its queries and clicks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sluice.encoders.foundation.disk.files import write_text
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.training_data.clicks.log import simulated_log

SHELVES: Final[Mapping[str, tuple[str, ...]]] = {
    "tools": ("hammer", "saw", "drill", "chisel"),
    "kitchen": ("kettle", "pan", "knife", "bowl"),
    "garden": ("rake", "hose", "spade", "bench"),
    "lights": ("lamp", "torch", "candle", "lantern"),
}
KINDS: Final = ("small", "heavy", "steel")
USES: Final = ("for every day", "for beginners", "that lasts", "easy to carry")
SHOWN: Final = 4  # results of a page
EXAMINATION: Final = (1.0, 0.6, 0.4, 0.3)  # the chance that each is looked at
PAGES: Final = 20


def _catalogue() -> list[dict[str, str]]:
    goods = [
        (shelf, kind, thing) for shelf, own in SHELVES.items() for thing in own for kind in KINDS
    ]
    return [
        {
            "id": f"p{number:02d}", "title": f"{kind} {thing}", "category": shelf,
            "text": f"A {kind} {thing} {USES[number % len(USES)]}, from the {shelf} shelf.",
        }
        for number, (shelf, kind, thing) in enumerate(goods)
    ]  # fmt: skip


def _queries() -> dict[str, tuple[str, str]]:
    """Return queries by id, each with the document it asks for."""
    asked = enumerate(_catalogue())
    return {f"q{n:02d}": (f"{row['title']} {USES[n % len(USES)]}", row["id"]) for n, row in asked}


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _judged(part: int) -> str:
    rows = [f"{q}\t{own}\t1\n" for q, (_, own) in _queries().items() if int(q[1:]) % 3 == part]
    return "query-id\tcorpus-id\tscore\n" + "".join(rows)


def _clicks() -> str:
    queries = {q: own for q, (_, own) in _queries().items() if int(q[1:]) % 3 == 0}
    ids = [row["id"] for row in _catalogue()]
    pages = {
        q: [ids[(ids.index(own) + step) % len(ids)] for step in range(SHOWN)]
        for q, own in queries.items()
    }
    return _lines(
        simulated_log(
            pages, lambda q, document: 0.8 if queries[q] == document else 0.1, pages=PAGES,
            examination=EXAMINATION,
        )
    )  # fmt: skip


SAMPLES: Final[Mapping[str, Callable[[], str]]] = {
    "catalogue.jsonl": lambda: _lines(_catalogue()),
    "queries.jsonl": lambda: _lines(
        {"id": q, "query": text} for q, (text, _) in _queries().items()
    ),
    "dev.tsv": lambda: _judged(1),
    "test.tsv": lambda: _judged(2),
    "clicks.jsonl": _clicks,
    "concepts.txt": lambda: "\n".join([*SHELVES, *sum(SHELVES.values(), ()), *KINDS]) + "\n",
}


def write_samples(folder: Path, drafted: str | None = None) -> list[Path]:
    """Write the sample files that a YAML text names, all without one; return those written.

    Files that exist are left alone. ``ConfigError`` for a text that names none of them.
    """
    named = [name for name in SAMPLES if drafted is None or name in drafted]
    if not named:
        raise ConfigError(f"--sample: nothing here names a sample file: {', '.join(SAMPLES)}")
    files = [folder / name for name in named if not (folder / name).exists()]
    for file in files:
        write_text(file, SAMPLES[file.name]())
    return files
