"""Writes a page that compares two evaluations: values, tests query by query, what was changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.disk.files import write_text
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.trust import refuse_links
from sluice.retrieval.evaluation.comparison import aligned
from sluice.retrieval.evaluation.scores import Qrels, Scores, evaluate
from sluice.retrieval.evaluation.table import MARK, Comparison, Table, add_costs
from sluice.retrieval.studies.report.data import short
from sluice.retrieval.studies.report.evaluated import EvaluatedSet, open_sets
from sluice.retrieval.studies.report.origin import origin_of
from sluice.retrieval.studies.report.page import escaped, file_text, script_free_page
from sluice.retrieval.studies.report.queries import QUERY, cut

CHANGED = 5  # queries of each system that gained most, and as many that lost most
COSTS = (("p50 ms", ",.1f"), ("p95 ms", ",.1f"), ("index MB", ",.2f"))
Row = Sequence[Any]


class Cell(NamedTuple):
    """A text with the class of its cell."""

    text: str
    kind: str = ""


class Pair(NamedTuple):
    """The evaluations of one dataset: the earlier, ``one``, and the later, ``two``."""

    one: EvaluatedSet
    two: EvaluatedSet
    qrels: Qrels  # of the queries that both have, as the first judges them

    @property
    def common(self) -> list[str]:
        """The systems that both have."""
        return [name for name in self.one.runs if name in self.two.runs]


def build_comparison(
    one: str | Path,
    two: str | Path,
    *,
    output: str | Path | None = None,
    allow: Collection[str] = (),
) -> Path:
    """Write the comparison of two output folders of ``sluice evaluate``; return its path.

    Differences are the second folder's value minus the first's, of systems with the same name on
    the same queries, tested as the first folder's YAML says. ``output`` defaults to
    ``<one>/report-against-<two>.html``. ``DataError`` if they have no dataset or no system in
    common.
    """
    one, two = Path(one), Path(two)
    if one.resolve() == two.resolve():
        raise ConfigError(f"report: {one} is given twice; expected two different folders")
    refuse_links(one, allow)
    names = _names(one, two)
    pairs = _pairs(open_sets(one, allow), open_sets(two, allow), one, two)
    path = one / f"report-against-{two.resolve().name}.html" if output is None else Path(output)
    if path.suffix not in (".html", ".htm"):
        raise ConfigError(f"report: {path}; expected a file that ends in .html")
    title = f"{names[1]} against {names[0]}"
    body = "\n".join(part for pair in pairs for part in _set_parts(pair, names))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, script_free_page(title, body, file_text("page.css")))
    return path


def _names(one: Path, two: Path) -> tuple[str, str]:
    """Return what the folders are called on the page: their names, or paths where these agree."""
    names = one.resolve().name, two.resolve().name
    return names if names[0] != names[1] else (str(one), str(two))


def _pairs(
    first: Sequence[EvaluatedSet], second: Sequence[EvaluatedSet], one: Path, two: Path
) -> list[Pair]:
    others = {(each.name, each.results["split"]): each for each in second}
    pairs = []
    for each in first:
        other = others.get((each.name, each.results["split"]))
        if other is None:
            continue
        qrels = {
            query: grades
            for query, grades in each.dataset.qrels.items()
            if grades and other.dataset.qrels.get(query)
        }
        if qrels:
            pairs.append(Pair(each, other, qrels))
    if not pairs:
        has = [", ".join(each.name for each in sets) for sets in (first, second)]
        raise DataError(
            f"{one} evaluates {has[0]}, {two} evaluates {has[1]}: no dataset with the same queries "
            "is in both; give two evaluations of one dataset"
        )
    if not any(pair.common for pair in pairs):
        has = [", ".join(pairs[0].one.runs), ", ".join(pairs[0].two.runs)]
        raise DataError(
            f"no system is in both: {one} has {has[0]}, {two} has {has[1]}; name the systems to "
            "compare alike under pipelines:"
        )
    return pairs


def _set_parts(pair: Pair, names: tuple[str, str]) -> Iterator[str]:
    measures = [m for m in pair.one.systems[0]["measures"] if m in pair.two.systems[0]["measures"]]
    level = pair.one.dataset.level
    scores = [
        {name: evaluate(each.runs[name], pair.qrels, measures, level=level) for name in pair.common}
        for each in (pair.one, pair.two)
    ]
    comparisons = _comparisons(pair, measures, *scores) if pair.common else []
    yield f"<h2>{escaped(pair.one.name)}, split {escaped(pair.one.results['split'])}</h2>"
    yield f'<p class="lead">{escaped(_sentence(pair, comparisons, names))}</p>'
    for note in _notes(pair, names):
        yield f'<p class="quiet small">{escaped(note)}</p>'
    if comparisons:
        yield html_table(
            ["system", "measure", *names, "difference", "confidence interval", "p corrected",
             "wins / ties / losses"],
            (_row(each, *scores) for each in comparisons),
        )  # fmt: skip
        yield (
            f'<p class="quiet small">{escaped(_caption(pair, names))} '
            f"A difference is {escaped(names[1])} minus {escaped(names[0])}, query by query.</p>"
        )
    yield "<h3>Costs</h3>"
    head = [f"{cost}, {name}" for cost, _ in COSTS for name in names]
    yield html_table(["system", *head], _costs(pair))
    yield "<h3>What was changed</h3>"
    changes = list(_changes(pair))
    yield (
        html_table(["what", *names], changes)
        if changes
        else '<p class="quiet">Configuration, machine and versions are the same.</p>'
    )
    for name in pair.common:
        measure = next(iter(scores[0][name].mean))
        yield from _queries(pair, name, measure, names, *(each[name] for each in scores))


def _comparisons(
    pair: Pair,
    measures: Sequence[str],
    one: Mapping[str, Scores],
    two: Mapping[str, Scores],
) -> list[Comparison]:
    """Return a test for each common system and measure, corrected over the systems."""
    testing = pair.one.config.evaluate.testing
    comparisons: list[Comparison] = []
    for measure in one[pair.common[0]].mean:
        family = [
            testing.compared(
                name, name, measure,
                aligned(one[name], two[name], measure), aligned(one[name], one[name], measure),
            )
            for name in pair.common
        ]  # fmt: skip
        comparisons += testing.corrected(family)
    order = {name: place for place, name in enumerate(pair.common)}
    return sorted(comparisons, key=lambda each: order[each.system])


def _caption(pair: Pair, names: tuple[str, str]) -> str:
    count = plural(len(pair.common), "system")
    return f"{pair.one.config.evaluate.testing.caption(names[0], count)}."


def _sentence(pair: Pair, comparisons: Sequence[Comparison], names: tuple[str, str]) -> str:
    if not comparisons:
        return "No system of this dataset is in both."
    measure = comparisons[0].measure
    of_measure = [each for each in comparisons if each.measure == measure]
    sure = [each for each in of_measure if each.significant]
    count = plural(len(of_measure), "system")
    if not sure:
        return (
            f"{measure}: none of {count} differs significantly between {names[0]} and {names[1]}."
        )
    differences = "; ".join(
        f"{each.system} {short(each.difference, '+')}"
        + (
            ""
            if each.low is None or each.high is None
            else f" [{short(each.low, '+')}, {short(each.high, '+')}]"
        )
        for each in sorted(sure, key=lambda each: -each.difference)
    )
    verb = "differs" if len(sure) == 1 else "differ"
    return f"{measure}: {len(sure)} of {count} {verb} significantly from {names[0]}: {differences}."


def _notes(pair: Pair, names: tuple[str, str]) -> Iterator[str]:
    yield f"{plural(len(pair.qrels), 'query')} with judgements in both."
    for name, own, other in (
        (names[0], pair.one, pair.two),
        (names[1], pair.two, pair.one),
    ):
        only = [system for system in own.runs if system not in other.runs]
        if only:
            yield f"Only in {name}: {', '.join(only)}."
        lacking = len(own.queries) - len(pair.qrels)
        if lacking:
            yield f"{plural(lacking, 'query')} of {name} without judgements in the other: left out."
    judged = [
        {query: dict(each.dataset.qrels[query]) for query in pair.qrels}
        for each in (pair.one, pair.two)
    ]
    if judged[0] != judged[1]:
        yield f"The judgements of these queries differ; both are scored by those of {names[0]}."


def _row(test: Comparison, one: Mapping[str, Scores], two: Mapping[str, Scores]) -> Row:
    kind = "same" if not test.significant else "better" if test.difference > 0 else "worse"
    interval = ""
    if test.low is not None and test.high is not None:
        interval = f"{_signed(test.low)} … {_signed(test.high)}"
    return [
        test.system,
        test.measure,
        f"{one[test.system].mean[test.measure]:.4f}",
        f"{two[test.system].mean[test.measure]:.4f}",
        Cell(_signed(test.difference) + (MARK if test.significant else ""), kind),
        interval,
        f"{test.p_corrected:.2g}",
        f"{test.wins:,} / {test.ties:,} / {test.losses:,}",
    ]


def _costs(pair: Pair) -> Iterator[Row]:
    tables = [Table(rows={name: {} for name in pair.common}) for _ in (pair.one, pair.two)]
    for table, each in zip(tables, (pair.one, pair.two), strict=True):
        systems = {str(system["name"]): system for system in each.systems}
        add_costs(table, {name: systems[name] for name in pair.common})
    for name in pair.common:
        values = ((table.rows[name].get(cost), form) for cost, form in COSTS for table in tables)
        yield [name, *("–" if value is None else format(value, form) for value, form in values)]


def _changes(pair: Pair) -> Iterator[Row]:
    """Yield the settings and the facts of origin that differ."""
    configs = [
        _flat(each.config.model_dump(mode="json", exclude_defaults=True))
        for each in (pair.one, pair.two)
    ]
    for key in dict.fromkeys([*configs[0], *configs[1]]):
        values = [config.get(key, "–") for config in configs]
        if key != "output" and values[0] != values[1]:
            yield [key, *(Cell(str(value), "text mono") for value in values)]
    facts = [dict(origin_of(each)["facts"]) for each in (pair.one, pair.two)]
    for key in dict.fromkeys([*facts[0], *facts[1]]):
        values = [each.get(key, "–") for each in facts]
        if values[0] != values[1]:
            yield [key, *(Cell(value, "text") for value in values)]


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key."""
    if not isinstance(value, Mapping):
        return {name: value}
    values: dict[str, Any] = {}
    for key, part in value.items():
        values |= _flat(part, f"{name}.{key}" if name else str(key))
    return values


def _queries(
    pair: Pair, name: str, measure: str, names: tuple[str, str], one: Scores, two: Scores
) -> Iterator[str]:
    """Yield the queries of a system that changed most."""
    before, after = one.per_query[measure], two.per_query[measure]
    order = sorted(before, key=lambda query: after[query] - before[query])
    chosen = [q for q in order[::-1][:CHANGED] if after[q] > before[q]]
    chosen += [q for q in order[:CHANGED] if after[q] < before[q]]
    if not chosen:
        return
    texts = pair.one.dataset.queries
    rows = [
        [
            Cell(query, "mono"),
            Cell(cut(texts.get(query, ""), QUERY), "text"),
            f"{before[query]:.4f}",
            f"{after[query]:.4f}",
            Cell(
                _signed(after[query] - before[query]),
                "better" if after[query] > before[query] else "worse",
            ),
        ]
        for query in chosen
    ]
    yield f"<details><summary>{escaped(name)}: the queries that changed most in {escaped(measure)}"
    yield "</summary>"
    yield html_table(["query", "text", *names, "difference"], rows)
    yield "</details>"


def _signed(value: float) -> str:
    text = f"{value:+.4f}".replace("-", "−")
    return "0.0000" if text[1:] == "0.0000" else text


def html_table(head: Sequence[str], rows: Iterable[Row]) -> str:
    """Return an HTML table; every text in it is escaped."""
    named = "".join(f'<th scope="col">{escaped(name)}</th>' for name in head)
    lines = []
    for first, *others in rows:
        cells = "".join(map(_cell, others))
        text, kind = first if isinstance(first, Cell) else (first, "")
        lines.append(f'<tr><th scope="row" class="{kind}">{escaped(text)}</th>{cells}</tr>')
    body = "\n".join(lines)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(head[0])}"><table>'
        f"<thead><tr>{named}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    text, kind = value if isinstance(value, Cell) else (str(value), "")
    return f'<td class="{kind}">{escaped(text)}</td>'
