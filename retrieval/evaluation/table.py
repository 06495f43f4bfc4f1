"""Tables of systems and their figures, as text, CSV, Markdown, LaTeX, HTML and JSON."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sluice.encoders.foundation.disk.figures import csv_text
from sluice.encoders.foundation.errors import ConfigError

Value = float | int | str | None
MARK: Final = "†"  # of a figure that differs significantly
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "†": r"$^{\dagger}$",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """One system against the baseline, by one measure.

    ``difference`` is system minus baseline, inside [``low``, ``high``] at the test's confidence
    (None for a single query); ``effect_size`` is Cohen's d of paired values, None where they all
    differ by one number. ``p_corrected`` is that of the whole family of tests; wins, ties and
    losses count queries.
    """

    system: str
    baseline: str
    measure: str
    difference: float
    p: float
    p_corrected: float
    significant: bool
    wins: int
    ties: int
    losses: int
    effect_size: float | None
    low: float | None
    high: float | None
    dataset: str = ""  # where a table is over several


@dataclass(slots=True)
class Table:
    """Rows of figures by system name, with marks on single figures and a caption for the marks.

    ``columns`` maps a column's name to how its numbers are written (a format specification, ``.4f``
    for measures). A figure a system lacks is None and shown as a dash. ``comparisons`` holds the
    tests behind the marks, for programs.
    """

    columns: dict[str, str] = field(default_factory=dict)
    rows: dict[str, dict[str, Value]] = field(default_factory=dict)
    marks: dict[tuple[str, str], str] = field(default_factory=dict)
    caption: str = ""
    comparisons: list[Comparison] = field(default_factory=list)
    heading: str = "system"  # of the rows' names

    def add_column(self, name: str, values: Mapping[str, Value], form: str = ",.1f") -> None:
        """Add a column such as a latency or a size: figures by system name, and their format.

        Raises ``ConfigError`` for a column that the table already has and an unknown system.
        """
        if name in self.columns:
            raise ConfigError(f"the table already has a column {name!r}")
        for system in values:
            if system not in self.rows:
                raise ConfigError(f"{name}: no system {system!r}; there are {', '.join(self.rows)}")
        self.columns[name] = form
        for system, row in self.rows.items():
            row[name] = values.get(system)

    def turned(self, heading: str) -> Table:
        """Return the table the other way round: a row for each column, all written alike."""
        rows = {c: {name: row[c] for name, row in self.rows.items()} for c in self.columns}
        marks = {(column, name): mark for (name, column), mark in self.marks.items()}
        columns = dict.fromkeys(self.rows, next(iter(self.columns.values())))
        return Table(columns, rows, marks, self.caption, heading=heading)

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"systems": [{"name", column: value, ...}], "comparisons", "caption"}``."""
        return {
            "systems": [
                {"name": system, **{column: row.get(column) for column in self.columns}}
                for system, row in self.rows.items()
            ],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
            "caption": self.caption,
        }

    def to_json(self) -> str:
        """Return ``to_dict`` as indented JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def to_csv(self) -> str:
        """Return comma-separated lines, numbers in full and without marks; see ``csv_text``."""
        rows = [[name, *map(row.get, self.columns)] for name, row in self.rows.items()]
        return csv_text([["system", *self.columns], *rows])

    def to_pandas(self) -> Any:
        """Return a pandas frame: a row for each system, named by the index, numbers in full."""
        import pandas as pd

        rows = [[row.get(column) for column in self.columns] for row in self.rows.values()]
        index = pd.Index(list(self.rows), name="system")
        return pd.DataFrame(rows, index=index, columns=list(self.columns))

    def _repr_html_(self) -> str:
        """Return ``to_html``, for notebooks."""
        return self.to_html()

    def to_markdown(self) -> str:
        """Return a GitHub-flavoured table, the caption under it."""
        head, *body = self._cells(escaped_markdown)
        rule = ["---"] + ["---:"] * len(self.columns)
        lines = ["| " + " | ".join(cells) + " |" for cells in (head, rule, *body)]
        return (
            "\n".join(lines)
            + "\n"
            + (f"\n{escaped_markdown(self.caption)}\n" if self.caption else "")
        )

    def to_latex(self) -> str:
        """Return a ``tabular`` in booktabs style, the caption as a line under it."""
        head, *body = self._cells(_latex)
        lines = [rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}", r"\toprule"]
        lines += [" & ".join(head) + r" \\", r"\midrule"]
        lines += [" & ".join(cells) + r" \\" for cells in body]
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [r"\par " + _latex(self.caption)] if self.caption else []
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """Return a ``<table>``; every text in it is escaped."""
        head, *body = self._cells(html.escape)
        lines = ["<table>"]
        lines += [f"<caption>{html.escape(self.caption)}</caption>"] if self.caption else []
        names = "".join(f'<th scope="col">{cell}</th>' for cell in head)
        lines += [f"<thead><tr>{names}</tr></thead>", "<tbody>"]
        for system, *cells in body:
            figures = "".join(f"<td>{cell}</td>" for cell in cells)
            lines.append(f'<tr><th scope="row">{system}</th>{figures}</tr>')
        return "\n".join([*lines, "</tbody>", "</table>"]) + "\n"

    def __str__(self) -> str:
        rows = self._cells(str)
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                [cells[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
            ).rstrip()
            for cells in rows
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([*lines, *([self.caption] if self.caption else [])])

    def _cells(self, escape: Callable[[str], str]) -> list[list[str]]:
        """Return the heading and the rows as texts; marks keep a place, so that digits align."""
        marked = {column for _, column in self.marks}
        rows = [[self.heading, *self.columns]]
        for system, row in self.rows.items():
            cells = [" ".join(system.split())]
            for column, form in self.columns.items():
                text = _written(row.get(column), form)
                mark = self.marks.get((system, column), " " if column in marked else "")
                cells.append(text + mark)
            rows.append(cells)
        return [[escape(cell) for cell in cells] for cells in rows]


def _written(value: Value, form: str) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value, form)


def escaped_markdown(text: str) -> str:
    """Return a text for Markdown, in which it begins no cell, tag, link or picture."""
    return re.sub(r"[|\[]", r"\\\g<0>", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text))


def _latex(text: str) -> str:
    return re.sub(r"[\\&%$#_{}~^†]", lambda match: _LATEX[match[0]], text)


def mark_significant(table: Table, stored: Iterable[Mapping[str, Any]] = ()) -> None:
    """Mark the figures that differ significantly from the baseline's, by measure or by dataset.

    The tests are the table's own, and those that ``Table.to_dict`` gave.
    """
    for each in (*map(asdict, table.comparisons), *stored):
        column = each.get("dataset") or each["measure"]
        if each["significant"] and column in table.columns:
            table.marks[each["system"], column] = MARK


def stored_table(stored: Mapping[str, Any]) -> Table:
    """Return the table of measures that ``Table.to_dict`` gave, with its marks."""
    columns = [column for column in stored["systems"][0] if column != "name"]
    table = Table(columns=dict.fromkeys(columns, ".4f"), caption=stored.get("caption", ""))
    table.rows = {row["name"]: {c: row.get(c) for c in columns} for row in stored["systems"]}
    mark_significant(table, stored.get("comparisons") or ())
    return table


# Of a system in results.json: key, column, unit's divisor, format.
COSTS = (
    ("queries_per_second", "queries/s", 1.0, ",.0f"),
    ("index_bytes", "index MB", 1e6, ",.2f"),
    ("resident_bytes", "resident MB", 1e6, ",.2f"),
    ("bytes_per_document", "bytes/doc", 1.0, ",.0f"),
    ("documents_per_second", "indexed docs/s", 1.0, ",.0f"),
    ("peak_memory_bytes", "peak MB", 1e6, ",.0f"),
)


def add_costs(table: Table, systems: Mapping[str, Mapping[str, Any]]) -> None:
    """Add a column for every cost that is known of any system, as ``results.json`` has them."""
    for part in ("p50", "p95", "p99"):
        latencies = {name: (s.get("latency_ms") or {}).get(part) for name, s in systems.items()}
        if any(value is not None for value in latencies.values()):
            table.add_column(f"{part} ms", latencies)
    for key, column, divisor, form in COSTS:
        costs = {n: s[key] / divisor for n, s in systems.items() if s.get(key) is not None}
        if costs:
            table.add_column(column, costs, form)
