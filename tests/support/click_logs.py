"""Click logs of simulated users, whose truth is known."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sluice.retrieval.training_data.clicks.log import simulated_log

EXAMINATION = (1.0, 0.7, 0.5, 0.35)
SATISFACTION = 0.6
CLICK = {"query_id": "q0", "doc_id": "d0", "position": 1, "clicked": 1}


class Truth:
    """Six queries of four documents, each with its chance to be clicked when looked at."""

    def __init__(self) -> None:
        draw = random.Random(3)
        names = [f"d{number:02d}" for number in range(4)]
        self.lists = {f"q{number}": names for number in range(6)}
        pairs = [(query, name) for query in self.lists for name in names]
        self.relevance = {pair: draw.choice((0.15, 0.4, 0.8)) for pair in pairs}

    def rows(self, model: Any, pages: int = 800) -> list[dict[str, Any]]:
        return list(
            simulated_log(
                self.lists,
                lambda query, name: self.relevance[query, name],
                pages=pages,
                model=model,
                examination=EXAMINATION,
                satisfaction=lambda query, name: SATISFACTION,
                shuffle=1.5,
            )
        )


def write_log(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write rows as JSON lines, or as tsv with a header, by the file's name."""
    rows = list(rows)
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        lines = [list(rows[0]), *(list(row.values()) for row in rows)]
        text = "".join("\t".join(map(str, line)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path
