"""``judge``, ``agreement``, ``grades``: labels by judges, what they are worth, and grades."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.scoring import Measures

AsJson = Annotated[bool, typer.Option("--json", help="All figures as JSON.")]


def judge(
    dataset: Annotated[str, typer.Option(help="A dataset: folder, ir_datasets id, name.")],
    judge: Annotated[
        str, typer.Option(help="A cross-encoder, a file of labels, or YAML: see below.")
    ],
    output: Annotated[Path, typer.Option(help="The file of labels to write (BEIR's tsv).")],
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs to look into.")] = None,
    qrels: Annotated[
        Path | None, typer.Option(help="People's labels; the dataset's by default.")
    ] = None,
    split: Annotated[str, typer.Option(help="The dataset's split.")] = "test",
    k: Annotated[int, typer.Option("-k", min=1, help="How deep runs are looked into.")] = 10,
    pairs: Annotated[
        str, typer.Option(help="holes (unjudged by people), judged (by them), or all.")
    ] = "holes",
    queries: Annotated[
        int | None, typer.Option(min=1, help="Label a sample of so many queries.")
    ] = None,
    fit: Annotated[
        int, typer.Option(min=0, help="Fit thresholds on people's labels of so many others.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    cache: Annotated[
        Path | None, typer.Option(help="Where labels are kept; the user's cache without.")
    ] = None,
    measure: Measures = None,
    ranker: Annotated[
        list[str] | None,
        typer.Option(help="A model behind the runs, if no experiment of sluice wrote them."),
    ] = None,
) -> None:
    """Label pairs of queries and documents by a judge, beside the labels of people.

    By default the unjudged documents in the first k of each run are labelled, into a file of their
    own. The same command goes on after a kill; no pair is labelled twice. With -m the runs are
    scored with and without the labels. A judge that ranks in one of the runs is reported.

    The judge is a cross-encoder's folder with --fit N, a qrels file, or YAML (text or file):
    {type: cross_encoder, model: ..., thresholds: [...]}, {type: generative, model: FOLDER} or
    {type: http, url: ..., model: ...}, these with method: direct, criteria or binary_first.

    Examples:
      sluice judge bm25.trec dense.trec --dataset cranfield --judge CROSS --fit 25 --output l.tsv
      sluice judge --dataset cranfield --judge llm.yaml --pairs judged --queries 50 --output l.tsv
    """
    from sluice.retrieval.studies.judging.judge_runs import judge_runs

    told = judge_runs(
        runs or [], dataset, judge, output, split=split, qrels=qrels, k=k,
        pairs=pairs,  # type: ignore[arg-type]
        queries=queries, fit=fit, seed=seed, cache=cache, measures=measure or [],
        rankers=ranker or [],
    )  # fmt: skip
    typer.echo(str(told))


def agreement(
    first: Annotated[Path, typer.Argument(help="Labels: people's, as a rule.")],
    second: Annotated[Path, typer.Argument(help="Labels: a judge's, as a rule.")],
    runs: Annotated[
        list[Path] | None, typer.Option(help="A run to rank under both (may be repeated).")
    ] = None,
    measure: Measures = None,
    p: Annotated[float, typer.Option(help="Of rank-biased overlap.")] = 0.9,
    samples: Annotated[int, typer.Option(min=1, help="Bootstrap samples of queries.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Say how two files of labels agree: kappa, Krippendorff's alpha, and the order of runs.

    Labels are compared on the pairs in both files; with two runs or more these are ranked under
    both, and the difference of each run's scores is shown: whom the second labels favour.

    Example:
      sluice agreement qrels.tsv labels.tsv --runs a.trec --runs b.trec -m nDCG@10
    """
    from sluice.retrieval.cli.scoring import DEFAULT
    from sluice.retrieval.runs.run import Run
    from sluice.retrieval.runs.trec_files import read_qrels
    from sluice.retrieval.studies.judging.circularity import circular, rankers_of_run
    from sluice.retrieval.studies.judging.label_agreement import label_agreement
    from sluice.retrieval.studies.judging.labelling import read_note
    from sluice.retrieval.studies.judging.system_agreement import system_agreement

    one, other = read_qrels(first), read_qrels(second)
    found = label_agreement(one, other, samples=samples, seed=seed)
    if runs and len(runs) < 2:
        raise ConfigError("agreement: one run has no order; give --runs twice or more")
    opened = {str(path): Run.load(path) for path in runs or []}
    systems = system_agreement(opened, one, other, measure or DEFAULT[:1], p=p) if opened else []
    notes = [note for path in (first, second) if (note := read_note(path)) is not None]
    circle = [
        name
        for note in notes
        for name in circular(note["models"], {path: rankers_of_run(Path(path)) for path in opened})
    ]
    if as_json:
        told = {"labels": found.to_dict(), "systems": [each.to_dict() for each in systems]}
        typer.echo(json.dumps({**told, "circular": circle}, indent=2))
        return
    typer.echo("\n\n".join([str(found), *map(str, systems)]))


def grades(
    run: Annotated[Path, typer.Argument(help="A run.")],
    qrels: Annotated[Path, typer.Argument(help="Judgements: TREC, or BEIR's tsv.")],
    k: Annotated[
        list[int] | None, typer.Option("-k", min=1, help="A cut-off (may be repeated).")
    ] = None,
) -> None:
    """Show what a run finds of each grade: recall, mean rank, share of its first places.

    Example:  sluice grades run.trec qrels.tsv -k 10 -k 100
    """
    from sluice.retrieval.evaluation.graded import CUTOFFS, grade_breakdown
    from sluice.retrieval.runs.run import Run
    from sluice.retrieval.runs.trec_files import read_qrels

    found = grade_breakdown(Run.load(run), read_qrels(qrels), k or CUTOFFS)
    typer.echo(str(found.table()))


COMMANDS = (judge, agreement, grades)
