"""Labels pairs with a judge, fills the holes of human qrels, and compares sets of labels.

A model's labels have files of their own, each with a note about the judge. They are merged with
human labels in memory only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from sluice.encoders.foundation.disk.files import read_json, write_json, write_text
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import counted_by, progress
from sluice.retrieval.evaluation.measures import Measure
from sluice.retrieval.evaluation.scores import Qrels, evaluate
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.runs.run import Run
from sluice.retrieval.runs.several_runs import rank_biased_overlap
from sluice.retrieval.studies.judging.grading import GradingJudge, rounded
from sluice.training.negatives.false_negatives import JudgedPair, judged


class SystemBias(NamedTuple):
    """A system's mean under both sets of labels, and its ranks from 1 (the better one on a tie).

    ``difference`` is second minus first; ``bias`` is that minus the mean difference of all systems.
    """

    system: str
    first: float
    second: float
    difference: float
    bias: float
    first_place: int
    second_place: int


@dataclass(frozen=True, slots=True)
class SystemAgreement:
    """How two sets of labels rank the same systems by one measure, over ``queries`` of both.

    ``tau`` is Kendall's tau-b of the means, None if one set ties all systems. ``rbo`` is
    rank-biased overlap with ``p``, extrapolated; tied systems are ordered by name.
    """

    measure: str
    queries: int
    tau: float | None
    rbo: float
    p: float
    systems: tuple[SystemBias, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {**asdict(self), "systems": [each._asdict() for each in self.systems]}

    def __str__(self) -> str:
        width = max(6, *(len(each.system) for each in self.systems))
        tau = "undefined (all tied)" if self.tau is None else f"{self.tau:.4f}"
        lines = [
            f"{self.measure}, {self.queries:,} queries, {len(self.systems)} systems: "
            f"Kendall's tau-b {tau}, RBO (p={self.p:g}) {self.rbo:.4f}",
            f"{'system':<{width}}  {'first':>7} {'place':>5}  {'second':>7} {'place':>5}  "
            f"{'second - first':>14}  {'bias':>8}",
        ]
        lines += [
            f"{each.system:<{width}}  {each.first:7.4f} {each.first_place:5}  {each.second:7.4f} "
            f"{each.second_place:5}  {each.difference:+14.4f}  {each.bias:+8.4f}"
            for each in self.systems
        ]
        return "\n".join(lines)


def system_agreement(
    runs: Mapping[str, Run | Mapping[str, Any]],
    first: Qrels,
    second: Qrels,
    measures: Iterable[str | Measure],
    *,
    p: Annotated[float, "P", "Persistence of rank-biased overlap, between 0 and 1."] = 0.9,
) -> list[SystemAgreement]:
    """Rank systems by each measure under two sets of labels, and compare the rankings.

    Each set scores with all of its own labels, on the queries that both have. ``ConfigError`` for
    fewer than two systems, ``DataError`` if the sets share no query.
    """
    if len(runs) < 2:
        raise ConfigError(f"{len(runs)} systems; expected two or more, to compare their order")
    queries = [query for query in first if first[query] and second.get(query)]
    if not queries:
        raise DataError("the two sets of labels share no query, so systems cannot be compared")
    parsed = [measures] if isinstance(measures, str | Measure) else list(measures)
    truths = [{query: labels[query] for query in queries} for labels in (first, second)]
    means = [
        {name: evaluate(run, truth, parsed).mean for name, run in runs.items()} for truth in truths
    ]
    names = list(next(iter(means[0].values())))
    return [
        _compared(
            measure,
            len(queries),
            p,
            *({system: mean[measure] for system, mean in each.items()} for each in means),
        )
        for measure in names
    ]


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b of paired values, with ties; None if all values of one side tie.

    (concordant - discordant) / sqrt(pairs not tied in the first x those not tied in the second);
    Kendall (1945).
    """
    one, other = (np.asarray(values, np.float64) for values in (first, second))
    if one.shape != other.shape or one.ndim != 1:
        raise DataError(f"values of shapes {one.shape} and {other.shape}; expected pairs")
    upper = np.triu_indices(len(one), 1)
    left, right = (np.sign(np.subtract.outer(v, v))[upper] for v in (one, other))
    scale = float(np.count_nonzero(left)) * float(np.count_nonzero(right))
    return float(left @ right) / scale**0.5 if scale else None


def _compared(
    measure: str, queries: int, p: float, first: Mapping[str, float], second: Mapping[str, float]
) -> SystemAgreement:
    one, other = list(first.values()), list(second.values())
    differences = {name: second[name] - first[name] for name in first}
    common = float(np.mean(list(differences.values())))
    orders = [sorted(values, key=lambda n: (-values[n], n)) for values in (first, second)]
    return SystemAgreement(
        measure,
        queries,
        kendall_tau_b(one, other),
        rank_biased_overlap(orders[0], orders[1], p),
        p,
        tuple(
            SystemBias(
                name,
                first[name],
                second[name],
                differences[name],
                differences[name] - common,
                _place(first[name], one),
                _place(second[name], other),
            )
            for name in orders[0]
        ),
    )


def _place(value: float, values: Sequence[float]) -> int:
    return 1 + sum(each > value for each in values)


Which: TypeAlias = Literal["holes", "judged", "all"]
Labels: TypeAlias = dict[str, dict[str, int]]
Texts: TypeAlias = Callable[[Sequence[str]], Mapping[str, str]]  # of documents, by id

WHICH: tuple[Which, ...] = ("holes", "judged", "all")
AT_ONCE = 1_024  # pairs that a judge gets together
NOTE = ".json"  # appended to the name of a file of labels
HEADER = "query-id\tcorpus-id\tscore\n"


class Labelled(NamedTuple):
    """A judge's labels, and the counts of pairs without one.

    ``unanswered`` pairs got no grade; ``textless`` ones were skipped, because the document or the
    query is not in the dataset.
    """

    labels: Labels
    asked: int
    unanswered: int
    textless: int

    @property
    def size(self) -> int:
        """The number of labels."""
        return sum(map(len, self.labels.values()))

    @property
    def grades(self) -> dict[int, int]:
        """The number of labels of each grade, the lowest first."""
        counts = Counter(grade for own in self.labels.values() for grade in own.values())
        return dict(sorted(counts.items()))


def pairs_to_label(
    runs: Sequence[Run], qrels: Qrels, k: int = 10, which: Which = "holes"
) -> dict[str, list[str]]:
    """Return the documents to label by query, for the queries with judgements.

    ``holes`` are the unjudged documents among the first ``k`` of any run, ``judged`` the judged
    ones, ``all`` both. Without runs ``judged`` means every judged document.
    """
    whole_number(k, "k", 1)
    if which not in WHICH:
        raise ConfigError(f"pairs: {which!r}; expected one of {', '.join(WHICH)}")
    if not runs and which != "judged":
        raise ConfigError(f"pairs: {which} needs at least one run; only judged works without")
    wanted: dict[str, list[str]] = {}
    for query, grades in qrels.items():
        if not grades:
            continue
        tops = [run[query].doc_ids[:k] for run in runs if query in run]
        documents = dict.fromkeys(doc for top in tops for doc in top) if runs else dict(grades)
        chosen = [
            doc for doc in documents if which == "all" or (doc in grades) == (which == "judged")
        ]
        if chosen:
            wanted[query] = chosen
    return wanted


def pairs_with_texts(
    wanted: Mapping[str, Sequence[str]], queries: Mapping[str, str], texts: Texts
) -> list[JudgedPair]:
    """Return the pairs whose query and document have texts, query by query."""
    text_of = texts(list(dict.fromkeys(doc for docs in wanted.values() for doc in docs)))
    return [
        JudgedPair(query, queries[query], document, text_of[document])
        for query, documents in wanted.items()
        for document in documents
        if query in queries and document in text_of
    ]


def label_pairs(
    judge: GradingJudge,
    wanted: Mapping[str, Sequence[str]],
    queries: Mapping[str, str],
    texts: Texts,
) -> Labelled:
    """Label pairs with a judge, whose grades are rounded to the nearest label.

    If the judge has a cache, an interrupted call continues where it stopped. ``DataError`` for a
    grade outside the judge's scale.
    """
    total = sum(map(len, wanted.values()))
    if judge.needs_texts:
        pairs = pairs_with_texts(wanted, queries, texts)
    else:
        pairs = [JudgedPair(q, "", doc, "") for q, docs in wanted.items() for doc in docs]
    labels: Labels = {}
    with progress("judge", len(pairs), "pairs") as advance:
        for start in range(0, len(pairs), AT_ONCE):
            part = pairs[start : start + AT_ONCE]
            with counted_by(lambda amount=1: None):
                grades = judged(judge, part)
            known = np.isfinite(grades)
            whole = rounded(np.where(known, grades, 0.0))
            if whole.min(initial=0) < 0 or whole.max(initial=0) > judge.highest:
                raise DataError(
                    f"judge {judge.name}: grades from {grades[known].min():g} to "
                    f"{grades[known].max():g}; expected its scale, 0 to {judge.highest}"
                )
            for pair, answered, grade in zip(part, known.tolist(), whole.tolist(), strict=True):
                if answered:
                    labels.setdefault(pair.query_id, {})[pair.document_id] = grade
            advance(len(part))
    count = sum(map(len, labels.values()))
    return Labelled(labels, total, len(pairs) - count, total - len(pairs))


def write_labels(path: Path, labels: Labels, note: Mapping[str, Any]) -> None:
    """Write a judge's labels as qrels (BEIR's three columns), and ``<path>.json`` about them.

    ``ConfigError`` if the file exists without such a note: its labels may be human.
    """
    check_output(path)
    rows = [(q, doc, grade) for q, grades in labels.items() for doc, grade in grades.items()]
    for query, document, _ in rows:
        for name in (query, document):
            if len(name.split()) != 1 or name.split()[0] != name:
                raise DataError(f"id {name!r} is empty or contains white space; rename it")
    write_json(path.with_name(path.name + NOTE), dict(note))
    write_text(path, HEADER + "".join(f"{q}\t{doc}\t{grade}\n" for q, doc, grade in rows))


def check_output(path: Path) -> None:
    """Raise ``ConfigError`` if a judge's labels would replace something else."""
    if path.exists() and read_note(path) is None:
        raise ConfigError(
            f"{path}: exists and was not written by sluice labels judge (no {path.name}{NOTE} "
            "next to it); a judge's labels never replace others: give another output"
        )


def read_note(path: Path) -> dict[str, Any] | None:
    """Return the note about a judge's labels; None for labels of other origin."""
    note = path.with_name(path.name + NOTE)
    content = read_json(note) if note.is_file() else None
    return content if isinstance(content, dict) and "judge" in content else None


@dataclass(frozen=True, slots=True)
class Filled:
    """Human judgements with a judge's labels in the holes, and how many there are of each.

    ``overruled`` counts the judge's labels of pairs with a human one, which are not used.
    """

    qrels: dict[str, dict[str, int]]
    human: int
    machine: int
    overruled: int


def filled(human: Qrels, machine: Qrels) -> Filled:
    """Fill the holes of human judgements with a judge's labels, in memory.

    A human label is never replaced. Queries without any human label are left out, so that means
    stay over the same queries.
    """
    merged = {query: dict(grades) for query, grades in human.items()}
    added = overruled = 0
    for query, labels in machine.items():
        if not human.get(query):
            continue
        for document, grade in labels.items():
            if document in human[query]:
                overruled += 1
            else:
                merged[query][document] = grade
                added += 1
    return Filled(merged, sum(map(len, human.values())), added, overruled)


def filled_scores(
    runs: Mapping[str, Run | Mapping[str, Any]],
    human: Qrels,
    machine: Qrels,
    measures: Iterable[str | Measure],
) -> Table:
    """Score runs by human judgements, and again with the holes filled by a judge's labels.

    The columns of measure M are ``M`` and ``M filled``.
    """
    parsed = list(measures)
    both = filled(human, machine)
    table = Table()
    for name, run in runs.items():
        alone, more = evaluate(run, human, parsed).mean, evaluate(run, both.qrels, parsed).mean
        table.rows[name] = {}
        for measure in alone:
            table.rows[name] |= {measure: alone[measure], f"{measure} filled": more[measure]}
            table.columns |= dict.fromkeys((measure, f"{measure} filled"), ".4f")
    table.caption = (
        f"filled: {both.human:,} human labels, and {both.machine:,} of a judge for pairs without "
        "one."
    )
    return table
