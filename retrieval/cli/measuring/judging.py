"""Label documents, compare labels, see grades.

Labels by models (cross-encoders, language models) go to files of their own, apart from human
labels, which people give at `sluice serve --judge`. See docs/judging.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import (
    PERSISTENCE,
    Command,
    Json,
    Measures,
    Shown,
    picked,
    plural,
    split_measures,
    takes,
)


@takes(
    "sluice.retrieval.studies.judging.judge_runs:judge_runs",
    panels={"Sample and thresholds": "queries fit seed"},
    qrels=Shown("the dataset's"),
    queries=Shown("all"),
    cache=Shown("the user's cache"),
    rankers=Shown(names=("--ranker",)),
)
def judge(
    runs: Annotated[list[Path] | None, "RUN", "Runs whose documents are labelled."] = None,
    *,
    dataset: Annotated[str, "The dataset to label."],
    judge: Annotated[str, "A cross-encoder, a file of labels, or YAML, as described above."],
    output: Annotated[Path, "The file of labels to write, BEIR's tsv."],
    measure: Measures = None,
    **values: Any,
) -> None:
    """Label documents with a judge.

    By default the unjudged documents among the first k of each run are labelled. After an
    interruption the same command continues, and no pair is labelled twice. With -m the runs are
    scored with and without the labels. A judge that also ranked one of the runs is reported.

    The judge is a cross-encoder's folder with --fit N, a qrels file, or YAML (text or file):
    {type: cross_encoder, model: ..., thresholds: [...]}, {type: generative, model: FOLDER} or
    {type: http, url: ..., model: ...}, the last two with method: direct, criteria or binary_first.

    Examples:
      sluice labels judge a.trec b.trec --dataset cranfield --judge CROSS --fit 25 --output l.tsv
      sluice labels judge --dataset cranfield --judge llm.yaml --pairs judged --output l.tsv
    """
    from sluice.retrieval.studies.judging.judge_runs import judge_runs

    report = judge_runs(
        runs or [], dataset, judge, output, measures=split_measures(measure), **values
    )
    echo(str(report))


@takes(
    "sluice.retrieval.studies.judging.label_agreement:label_agreement",
    "sluice.retrieval.studies.judging.labelling:system_agreement",
    p=PERSISTENCE,
)
def agreement(
    first: Annotated[Path, "LABELS", "A file of labels, usually human ones."],
    second: Annotated[Path, "OTHERS", "A file of labels, usually a judge's."],
    *,
    runs: Annotated[
        list[Path] | None, "RUN", "A run to score by both files; may be repeated."
    ] = None,
    measure: Measures = None,
    as_json: Json = False,
    **values: Any,
) -> None:
    """Measure how two files of labels agree.

    Cohen's kappa and Krippendorff's alpha on the pairs in both files. With two runs or more, the
    runs are ranked by each file; the differences between their scores show which runs the second
    labels favour.

    Example:
      sluice labels agreement qrels.tsv labels.tsv --runs a.trec --runs b.trec -m nDCG@10
    """
    from sluice.retrieval.cli.measuring.score import DEFAULT
    from sluice.retrieval.runs.run import Run
    from sluice.retrieval.runs.trec_files import read_qrels
    from sluice.retrieval.studies.judging.judge_runs import circular, rankers_of_run
    from sluice.retrieval.studies.judging.label_agreement import label_agreement
    from sluice.retrieval.studies.judging.labelling import read_note, system_agreement

    labels, others = read_qrels(first), read_qrels(second)
    figures = label_agreement(labels, others, **picked(values, label_agreement))
    if runs and len(runs) < 2:
        raise ConfigError("agreement: --runs: expected at least two runs to rank, got 1")
    opened = {str(path): Run.load(path) for path in runs or []}
    measures = split_measures(measure, DEFAULT[:1])
    same = picked(values, system_agreement)
    systems = system_agreement(opened, labels, others, measures, **same) if opened else []
    notes = [note for path in (first, second) if (note := read_note(path)) is not None]
    circle = [
        name
        for note in notes
        for name in circular(note["models"], {path: rankers_of_run(Path(path)) for path in opened})
    ]
    if as_json:
        values = {"labels": figures.to_dict(), "systems": [each.to_dict() for each in systems]}
        typer.echo(json.dumps({**values, "circular": circle}, indent=2))
        return
    echo("\n\n".join([str(figures), *map(str, systems)]))


def grades(
    run: Annotated[Path, "RUN", "A run file."],
    qrels: Annotated[Path, "QRELS", "A TREC or BEIR file of judgements."],
    *,
    k: Annotated[list[int] | None, Ge(1), "A cut-off; may be repeated.", Shown("10, 100")] = None,
) -> None:
    """Show how a run ranks each grade.

    Recall, mean rank and share of the top ranks, grade by grade.

    Example:
      sluice labels grades run.trec qrels.tsv -k 10 -k 100
    """
    from sluice.retrieval.evaluation.scores import CUTOFFS, grade_breakdown
    from sluice.retrieval.runs.run import Run
    from sluice.retrieval.runs.trec_files import read_qrels

    breakdown = grade_breakdown(Run.load(run), read_qrels(qrels), k or CUTOFFS)
    echo(str(breakdown.table()))


JudgingLog = Annotated[Path, "LOG", "The log of `sluice serve --judge`."]


def assessors(log: JudgingLog, *, as_json: Json = False) -> None:
    """Measure how the people who judged agree.

    What each assessor judged; Krippendorff's alpha of all on the documents that two or more judged;
    Cohen's kappa of each two. For intervals and confusion matrices of two assessors, export each
    one's labels and compare the files with `sluice labels agreement`.

    Example:
      sluice labels assessors queries.txt.judgements.jsonl
    """
    from sluice.retrieval.serving.judging.judgements import read_judgements
    from sluice.retrieval.serving.judging.results import assessor_agreement

    agreed = assessor_agreement(read_judgements(log))
    if as_json:
        typer.echo(json.dumps(agreed.to_dict(), indent=2, ensure_ascii=False))
        return
    echo(str(agreed))


@takes(
    "sluice.retrieval.serving.judging.results:qrels_of",
    "sluice.retrieval.serving.judging.results:qrels_text",
    assessors=Shown("all", names=("--assessor",)),
)
def export(
    log: JudgingLog,
    *,
    output: Annotated[Path, "The qrels to write; queries without a judgement are not in them."],
    **values: Any,
) -> None:
    """Write the judgements of people as qrels.

    The file is what `sluice score`, `sluice compare` and a dataset's qrels take. Candidates that
    nobody judged are counted: measures take them for not relevant.

    Examples:
      sluice labels export queries.txt.judgements.jsonl --output qrels.tsv
      sluice labels export queries.txt.judgements.jsonl --assessor ann --output ann.tsv
    """
    from sluice.encoders.foundation.disk.files import write_text
    from sluice.retrieval.serving.judging.judgements import read_judgements
    from sluice.retrieval.serving.judging.results import qrels_of, qrels_text, unjudged

    judgements = read_judgements(log)
    qrels = qrels_of(judgements, **picked(values, qrels_of))
    write_text(output, qrels_text(qrels, **picked(values, qrels_text)))
    count = sum(map(len, qrels.values()))
    echo(f"{output}: {plural(count, 'judgement')} of {plural(len(qrels), 'query')}")
    if left := unjudged(judgements, qrels):
        verb = "is" if left == 1 else "are"
        echo(f"{plural(left, 'candidate')} of these queries {verb} not judged", err=True)


COMMANDS: dict[str, Command] = {
    "judge": judge, "agreement": agreement, "grades": grades, "assessors": assessors,
    "export": export,
}  # fmt: skip
