"""Writes the report of an evaluation: one HTML file, read without scripts and without network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import write_text
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.trust import refuse_links
from sluice.retrieval.evaluation.table import Table, stored_table
from sluice.retrieval.experiments.output.results import read_results
from sluice.retrieval.studies.report.data import results_table, set_data, shown_table, trainings
from sluice.retrieval.studies.report.evaluated import open_sets


def static_report(
    sets: Sequence[tuple[str, str, Table, Mapping[str, Any]]], overview: Mapping[str, Table]
) -> str:
    """Return HTML of datasets, each a name, its conclusion, its results and what was run.

    ``overview`` has a suite's tables by measure, systems by dataset.
    """
    parts: list[str] = []
    for measure, table in overview.items():
        parts += [f"<h2>{escaped(measure)} by dataset</h2>", replace(table, marks={}).to_html()]
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


def escaped(value: Any) -> str:
    """Return a value as text for HTML, where half surrogates have no place."""
    return html.escape(re.sub("[\ud800-\udfff]", "\ufffd", str(value)))


PAGE = "report.html"
SHOWN = 700  # queries shown with documents, over all datasets
SHOWN_OF_SET = 200  # of one dataset, by default
SCRIPTS = ("core.js", "charts.js", "results.js", "queries.js", "figures.js", "page.js")
_SPECIAL = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def build_report(
    folder: str | Path,
    *,
    output: str | Path | None = None,
    queries: int | None = None,
    allow: Collection[str] = (),
) -> Path:
    """Write the report of an output folder of ``sluice evaluate`` and return the path of the page.

    ``output`` defaults to ``<folder>/report.html``. Values are recomputed from the runs and the
    dataset's judgements, so the dataset must be available. ``queries`` of each dataset are shown
    with their documents, by default 700 over all datasets and at most 200 of one. ``allow`` lists
    what the folder may do beside reading, see ``sluice.encoders.foundation.trust``. ``DataError``
    for a folder without results or runs.
    """
    folder = Path(folder)
    refuse_links(folder, allow)
    sets = open_sets(folder, allow)
    shown = min(SHOWN_OF_SET, SHOWN // len(sets)) if queries is None else queries
    shown = whole_number(shown, "queries", 0)
    parts: dict[str, Any] = {}
    static = []
    for place, evaluated in enumerate(sets):
        data, parts[f"details-{place}"] = set_data(evaluated, shown)
        parts[f"set-{place}"] = data
        sentence, origin = data["conclusion"], data["origin"]
        static.append((evaluated.name, sentence, results_table(evaluated), origin))
    results = read_results(folder, allow)
    origin = results.get("origin") or sets[0].results.get("origin") or {}
    stored = results.get("tables") or {}
    tables = {measure: stored_table(table) for measure, table in stored.items()}
    parts["summary"] = {
        "folder": folder.resolve().name,
        "evaluated": str(origin.get("written") or ""),
        "sets": [evaluated.name for evaluated in sets],
        "overview": {measure: shown_table(table) for measure, table in tables.items()},
        "trainings": trainings(folder) if "datasets" in results else [],
        "failed": results.get("failed") or {},
    }
    path = folder / PAGE if output is None else Path(output)
    if path.suffix not in (".html", ".htm"):
        raise ConfigError(f"report: {path}; expected a file that ends in .html")
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{folder.resolve().name}: retrieval report"
    write_text(path, page(title, parts, static_report(static, tables)))
    return path


def page(title: str, parts: Mapping[str, Any], static: str = "") -> str:
    """Return the HTML: the package's template, style and scripts, and the parts as JSON.

    ``static`` is HTML for readers that run no scripts; scripts replace it. The content security
    policy allows only the page's own style and script, by their hashes: no other script runs and
    nothing is fetched.
    """
    style = file_text("page.css")
    inner = "\n".join(file_text(name) for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{inner}}})();'
    values = {
        "title": html.escape(title),
        "policy": (
            f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
            "base-uri 'none'; form-action 'none'"
        ),
        "style": style,
        "static": static,
        "data": "\n".join(
            f'<script type="application/json" id="{name}">{as_json(part)}</script>'
            for name, part in parts.items()
        ),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], file_text("page.html"))


def as_json(value: Any) -> str:
    """Return JSON that is safe inside an HTML ``script`` element, whatever its texts contain.

    ``<``, ``>``, ``&``, U+2028, U+2029 and lone surrogates are escaped; numbers that are not finite
    become null.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _SPECIAL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def script_free_page(title: str, body: str, style: str) -> str:
    """Return the HTML of a page whose ``body``, escaped already, needs no script."""
    policy = f"default-src 'none'; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    values = {"title": html.escape(title), "policy": policy, "style": style, "body": body}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], file_text("plain.html"))


def file_text(name: str) -> str:
    """Return a file of the page's template."""
    return (files("sluice.retrieval.studies.report") / "files" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
