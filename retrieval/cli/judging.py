"""Label documents, compare labels, see grades.

Labels by judges (cross-encoders, language models) stay in files of their own, apart from those of
people. See docs/judging.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.options import Command, Json, Measures, split_measures

SAMPLE = "Sample and thresholds"


def judge(
    dataset: Annotated[str, typer.Option(metavar="DATASET", help="The dataset to label.")],
    judge: Annotated[
        str,
        typer.Option(
            metavar="JUDGE", help="A cross-encoder, a file of labels, or YAML, as described above."
        ),
    ],
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="The file of labels to write, BEIR's tsv.")
    ],
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Runs whose documents are labelled.")
    ] = None,
    qrels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default="the dataset's", help="The labels of people."),
    ] = None,
    split: Annotated[str, typer.Option(metavar="SPLIT", help="The dataset's split.")] = "test",
    k: Annotated[
        int, typer.Option("-k", metavar="N", min=1, help="Label the first N documents of each run.")
    ] = 10,
    pairs: Annotated[
        str,
        typer.Option(
            metavar="PAIRS", help="Label holes (unjudged by people), judged (by them), or all."
        ),
    ] = "holes",
    queries: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default="all",
            help="Label a sample of N queries.",
            rich_help_panel=SAMPLE,
        ),
    ] = None,
    fit: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Fit the judge's thresholds to people's labels of N other queries.",
            rich_help_panel=SAMPLE,
        ),
    ] = 0,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Random seed for the samples.", rich_help_panel=SAMPLE)
    ] = 0,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default="the user's cache", help="Where labels are kept for reuse."
        ),
    ] = None,
    measure: Measures = None,
    ranker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="A model behind the runs, if sluice did not write them; may be repeated.",
        ),
    ] = None,
) -> None:
    """Label documents with a judge.

    By default the unjudged documents among the first k of each run are labelled. The same command
    continues after a kill, and no pair is labelled twice. With -m the runs are scored with and
    without the labels. A judge that also ranked one of the runs is reported.

    The judge is a cross-encoder's folder with --fit N, a qrels file, or YAML (text or file):
    {type: cross_encoder, model: ..., thresholds: [...]}, {type: generative, model: FOLDER} or
    {type: http, url: ..., model: ...}, the last two with method: direct, criteria or binary_first.

    Examples:
      sluice labels judge a.trec b.trec --dataset cranfield --judge CROSS --fit 25 --output l.tsv
      sluice labels judge --dataset cranfield --judge llm.yaml --pairs judged --output l.tsv
    """
    from sluice.retrieval.studies.judging.judge_runs import judge_runs

    report = judge_runs(
        runs or [], dataset, judge, output, split=split, qrels=qrels, k=k,
        pairs=pairs,  # type: ignore[arg-type]
        queries=queries, fit=fit, seed=seed, cache=cache, measures=split_measures(measure),
        rankers=ranker or [],
    )  # fmt: skip
    typer.echo(str(report))


def agreement(
    first: Annotated[
        Path, typer.Argument(metavar="LABELS", help="A file of labels, usually those of people.")
    ],
    second: Annotated[
        Path, typer.Argument(metavar="OTHERS", help="A file of labels, usually those of a judge.")
    ],
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="A run to rank by both files; repeat it."),
    ] = None,
    measure: Measures = None,
    p: Annotated[
        float,
        typer.Option(
            "-p",
            "--persistence",
            metavar="P",
            help="Persistence of rank-biased overlap, between 0 and 1.",
        ),
    ] = 0.9,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Bootstrap samples of the queries.")
    ] = 1000,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed for the bootstrap.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure how two files of labels agree.

    Cohen's kappa and Krippendorff's alpha on the pairs in both files. With two runs or more, the
    runs are ranked by each file, and the difference of each run's scores shows whom the second
    labels favour.

    Example:
      sluice labels agreement qrels.tsv labels.tsv --runs a.trec --runs b.trec -m nDCG@10
    """
    from sluice.retrieval.cli.score import DEFAULT
    from sluice.retrieval.runs.run import Run
    from sluice.retrieval.runs.trec_files import read_qrels
    from sluice.retrieval.studies.judging.circularity import circular, rankers_of_run
    from sluice.retrieval.studies.judging.label_agreement import label_agreement
    from sluice.retrieval.studies.judging.labelling import read_note
    from sluice.retrieval.studies.judging.system_agreement import system_agreement

    labels, others = read_qrels(first), read_qrels(second)
    figures = label_agreement(labels, others, samples=samples, seed=seed)
    if runs and len(runs) < 2:
        raise ConfigError("agreement: one run has no order; give --runs twice or more")
    opened = {str(path): Run.load(path) for path in runs or []}
    measures = split_measures(measure, DEFAULT[:1])
    systems = system_agreement(opened, labels, others, measures, p=p) if opened else []
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
    typer.echo("\n\n".join([str(figures), *map(str, systems)]))


def grades(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run file.")],
    qrels: Annotated[
        Path, typer.Argument(metavar="QRELS", help="A TREC or BEIR file of judgements.")
    ],
    k: Annotated[
        list[int] | None,
        typer.Option(
            "-k", metavar="N", min=1, show_default="10, 100", help="A cut-off; may be repeated."
        ),
    ] = None,
) -> None:
    """Show what a run finds of each grade.

    Recall, mean rank, and share of the first places, grade by grade.

    Example:
      sluice labels grades run.trec qrels.tsv -k 10 -k 100
    """
    from sluice.retrieval.evaluation.graded import CUTOFFS, grade_breakdown
    from sluice.retrieval.runs.run import Run
    from sluice.retrieval.runs.trec_files import read_qrels

    breakdown = grade_breakdown(Run.load(run), read_qrels(qrels), k or CUTOFFS)
    typer.echo(str(breakdown.table()))


COMMANDS: dict[str, Command] = {"judge": judge, "agreement": agreement, "grades": grades}
