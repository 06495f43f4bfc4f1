"""Writes the parts of a report that are read without scripts: sentence, tables, what was run."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sluice.retrieval.evaluation.table import Table


def static_report(
    sets: Sequence[tuple[str, str, Table, Mapping[str, Any]]], overview: Mapping[str, Any]
) -> str:
    """Return HTML of datasets, each a name, its conclusion, its results and what was run.

    ``overview`` has a suite's tables by measure, as the page's data.
    """
    parts: list[str] = []
    for measure, table in overview.items():
        parts += [f"<h2>{escaped(measure)} by dataset</h2>", _stored_table(table)]
    for name, sentence, results, origin in sets:
        parts += [f"<h2>{escaped(name)}</h2>", f'<p class="lead">{escaped(sentence)}</p>']
        parts += ['<div class="scroll">', results.to_html(), "</div>"]
        parts += [
            *_details("What was run", [*origin["facts"], *origin["systems"], *origin["parts"]])
        ]
        parts.append(
            f"<details><summary>Configuration</summary><pre>{escaped(origin['config'])}</pre></details>"
        )
    return "\n".join(parts)


def pairs_table(pairs: Iterable[Sequence[str]]) -> str:
    """Return a table of names and texts."""
    rows = "".join(
        f'<tr><th scope="row">{escaped(name)}</th><td class="text">{escaped(text)}</td></tr>'
        for name, text in pairs
    )
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def _details(title: str, pairs: Iterable[Sequence[str]]) -> list[str]:
    return [f"<details><summary>{escaped(title)}</summary>", pairs_table(pairs), "</details>"]


def _stored_table(stored: Mapping[str, Any]) -> str:
    table = Table(columns=dict(stored["columns"]), caption=str(stored["caption"]))
    table.rows = {
        str(row["name"]): {column: row.get(column) for column in table.columns}
        for row in stored["systems"]
    }
    return table.to_html()


def escaped(value: Any) -> str:
    """Return a value as text for HTML, where half surrogates have no place."""
    return html.escape(re.sub("[\ud800-\udfff]", "\ufffd", str(value)))
