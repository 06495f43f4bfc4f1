"""``run``, ``train``, ``index``, ``evaluate``, ``tune``, ``mine``: what a YAML file describes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.encoders.foundation.errors import ConfigError, SluiceError

log = logging.getLogger("sluice")

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file; see configs/.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Values to use instead of the file's."),
]


def run(config: ConfigFile, overrides: Overrides = None) -> None:
    """Run an experiment: train, index, evaluate; ends with the table.

    Models go to OUTPUT/models/NAME, retrievers to OUTPUT/retrievers/NAME, runs to
    OUTPUT/runs/NAME.trec.gz; the figures to OUTPUT/results.json and OUTPUT/report.md.
    What is whole is not made again, so a killed run goes on where it was.

    Example:  sluice run configs/quickstart.yaml output=runs/mine
    """
    from sluice.retrieval.jobs import run as run_experiment

    if _ran_as_suite(config, overrides):
        return
    table, experiment = run_experiment(config, overrides or [])
    typer.echo(str(table))
    _tell_results(experiment.output, page=experiment.config.evaluate.report)
    from sluice.retrieval.experiments.evaluation import next_steps

    typer.echo("try next:")
    for line in next_steps(experiment):
        typer.echo(f"  {line.replace('`', '')}")


def train(config: ConfigFile, overrides: Overrides = None) -> None:
    """Train one encoder or cross-encoder; the model goes to OUTPUT/model.

    The folder loads in sentence-transformers too. OUTPUT/training holds metrics.jsonl, the mining
    report, and checkpoints while the training is under way: the same command goes on after a kill.

    Example:  sluice train configs/train-dense.yaml trainer.max_steps=50
    """
    from sluice.retrieval.jobs import train as train_one

    typer.echo(train_one(config, overrides or []))


def index(
    config: ConfigFile,
    overrides: Overrides = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Build only this retriever (may be repeated).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what encoding will take, and index nothing.")
    ] = False,
) -> None:
    """Build the retrievers of an experiment, each into OUTPUT/retrievers/NAME.

    The documents' vectors are cached by encoder and text: indexing them again, another way or
    after a kill, encodes only what is missing. `encoding:` of a retriever sets how.

    Examples:
      sluice index configs/bm25.yaml dataset=FOLDER
      sluice index configs/index-splade.yaml --dry-run
    """
    if dry_run:
        from sluice.retrieval.jobs import estimate

        for name, found in estimate(config, overrides or [], only=only).items():
            typer.echo(f"{name}: {found or 'nothing to encode'}")
        return
    from sluice.retrieval.jobs import index as build

    for retriever in build(config, overrides or [], only=only):
        head = retriever.head
        counts = f"{head.documents:,} documents"
        if head.passages is not None and hasattr(retriever.index, "passages"):
            counts += f" in {retriever.index.passages:,} passages"
        typer.echo(f"{retriever.path}: {counts}, {head.index_bytes:,} bytes")


def evaluate(config: ConfigFile, overrides: Overrides = None) -> None:
    """Evaluate the pipelines of an experiment; makes what is missing first.

    A run that is there is not made again, so a killed evaluation goes on where it was, and a new
    pipeline costs only itself. `dataset` may be a list, or beir:* for all of BEIR: each dataset is
    an experiment in OUTPUT/datasets/NAME, and one that fails does not stop the others (exit 1).

    Examples:
      sluice evaluate configs/beir.yaml dataset=nfcorpus output=runs/nfcorpus
      sluice evaluate configs/beir.yaml 'dataset=[scifact, nfcorpus]' output=runs/beir
    """
    from sluice.retrieval.jobs import run as run_experiment

    if _ran_as_suite(config, overrides):
        return
    table, experiment = run_experiment(config, overrides or [])
    typer.echo(str(table))
    _tell_results(experiment.output, page=experiment.config.evaluate.report)


def reproduce(
    folder: Annotated[Path, typer.Argument(help="The output folder of sluice run or evaluate.")],
    output: Annotated[
        Path | None, typer.Option(help="Where to make it again: FOLDER/reproduced.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Figures that differ by at most this are the same.")
    ] = 5e-5,
) -> None:
    """Train, index and evaluate again from what a folder's results say; compare the figures.

    Exit 0 when all figures are the same, 1 when some are not. What is missing (a dataset, a
    model's folder) or not what it was is named before any work.

    Example:  sluice reproduce runs/nfcorpus
    """
    from sluice.retrieval.experiments.reproduction import reproduce as make_again

    found = make_again(folder, output, tolerance=tolerance)
    typer.echo(str(found.table))
    for change in found.changed:
        typer.echo(f"changed since: {change}")
    if not found.same:
        raise typer.Exit(1)


def tune(config: ConfigFile, overrides: Overrides = None) -> None:
    """Find the best pipeline that a budget allows, over an experiment's retrievers and rerankers.

    Every part is timed on this machine; depths, fusion weights, shares and early exits are tried on
    the dev split over cached scores. What is chosen is measured on the test split, promised and
    measured latency side by side. OUTPUT/tune has front.svg, trials.csv and tuned.yaml.

    Examples:
      sluice tune configs/tune.yaml dataset=FOLDER
      sluice tune configs/tune.yaml tune.budget.p95_ms=20
      sluice evaluate runs/tune/tune/tuned.yaml
    """
    from sluice.retrieval.jobs import tune as tune_parts

    table, found = tune_parts(config, overrides or [])
    typer.echo(str(table))
    typer.echo(f"\ntuned: {found.chosen.pipeline}")
    typer.echo(f"best of {len(found.trials):,}: {found.best.pipeline}")


def mine(
    source: Annotated[str, typer.Argument(help="A retriever folder, or a TREC run file.")],
    dataset: Annotated[str, typer.Argument(help="A dataset: folder, ir_datasets id, name.")],
    output: Annotated[Path, typer.Option(help="JSON lines {query, pos, neg, ...} to write.")],
    also: Annotated[
        list[str] | None, typer.Option(help="A further folder or run (may be repeated).")
    ] = None,
    split: Annotated[str, typer.Option(help="The split whose queries get negatives.")] = "train",
    mode: Annotated[
        str | None,
        typer.Option(help="naive, shifted, absolute, margin, percentage, window, adaptive, judge."),
    ] = None,
    per_query: Annotated[int | None, typer.Option(help="Negatives for each query: 4.")] = None,
    max_positive_ratio: Annotated[
        float | None,
        typer.Option(help="Keep s < s+ x this (TopK-PercPos): 0.95; 0 switches it off."),
    ] = None,
    margin: Annotated[float | None, typer.Option(help="Keep s < s+ - this.")] = None,
    adaptive_margin: Annotated[
        str | None, typer.Option(metavar="A,B", help="Keep s < s+ - (A + B |s+|).")
    ] = None,
    max_score: Annotated[float | None, typer.Option(help="Keep s < this.")] = None,
    min_score: Annotated[float | None, typer.Option(help="Keep s >= this.")] = None,
    range_min: Annotated[int | None, typer.Option(help="First rank looked at: 0.")] = None,
    range_max: Annotated[int | None, typer.Option(help="Rank to stop before.")] = None,
    judge: Annotated[
        str | None, typer.Option(help="A cross-encoder's folder or id, or a run of its scores.")
    ] = None,
    judge_margin: Annotated[
        float | None, typer.Option(help="Keep J < J+ - this, by the judge: 0.01.")
    ] = None,
    judge_depth: Annotated[int | None, typer.Option(help="Candidates to judge: 50.")] = None,
    consistency: Annotated[
        int | None, typer.Option(help="Drop pairs whose positive is not among the first of these.")
    ] = None,
    sampling: Annotated[str | None, typer.Option(help="top, random or cyclic.")] = None,
    step: Annotated[int | None, typer.Option(help="Of cyclic sampling: 5.")] = None,
    depth: Annotated[
        int | None,
        typer.Option(help="Candidates looked at: 100, or as deep as the settings reach."),
    ] = None,
    seed: Annotated[int, typer.Option(help="For random sampling.")] = 13,
    audit: Annotated[
        float | None,
        typer.Option(help="Also hide this share of the positives; say which modes reject them."),
    ] = None,
) -> None:
    """Mine hard negatives from a retriever or a run; prints what was kept and dropped, and why.

    Beside OUTPUT stand OUTPUT's .report.json and .provenance.parquet: every candidate, who found
    it, its rank and scores, and why it was dropped. --audit writes .audit.json and .audit.md.

    Examples:
      sluice mine runs/x/retrievers/bm25 scifact --output negatives.jsonl --per-query 5
      sluice mine runs/x/retrievers/bm25 scifact --output n.jsonl --also runs/x/retrievers/dense
    """
    from sluice.retrieval.jobs import audit as audit_modes
    from sluice.retrieval.jobs import mine as mine_file

    given: dict[str, Any] = {
        "mode": mode, "per_query": per_query, "margin": margin, "max_score": max_score,
        "min_score": min_score, "range_min": range_min, "range_max": range_max, "judge": judge,
        "judge_margin": judge_margin, "judge_depth": judge_depth, "consistency": consistency,
        "sampling": sampling, "step": step, "depth": depth,
    }  # fmt: skip
    spec = {key: value for key, value in given.items() if value is not None}
    if max_positive_ratio is not None:
        spec["max_positive_ratio"] = max_positive_ratio or None
    if adaptive_margin is not None:
        spec["adaptive_margin"] = _numbers(adaptive_margin)
    sources = [source, *(also or [])]
    typer.echo(str(mine_file(sources, dataset, output, spec, split=split, seed=seed)))
    if audit is None:
        return
    from sluice.encoders.foundation.files import write_json, write_text

    found = audit_modes(sources, dataset, spec, share=audit, split=split, seed=seed)
    write_json(output.with_suffix(".audit.json"), found.as_dict())
    write_text(output.with_suffix(".audit.md"), found.to_markdown())
    typer.echo(f"\n{found}")


def _tell_results(output: Path, *, page: bool) -> None:
    """Say where the results are, and make their page."""
    told = f"\nresults: {output}/results.json, {output}/report.md"
    if page:
        from sluice.retrieval.studies.report.page import build_report

        try:
            told += f", {build_report(output)}"
        except SluiceError as error:  # the results are there all the same
            log.warning("report.html was not made: %s", error)
    typer.echo(told)


def _ran_as_suite(config: Path, overrides: list[str] | None) -> bool:
    """Evaluate a config of several datasets and print its tables; exit 1 if one failed."""
    from sluice.retrieval.jobs import suite as run_suite

    suite = run_suite(config, overrides or [])
    if suite is None:
        return False
    typer.echo(str(suite))
    _tell_results(suite.output, page=suite.report)
    if suite.failed:
        raise typer.Exit(1)
    return True


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--adaptive-margin: {text!r}; expected A,B, as in 0.02,0.05") from None


COMMANDS = (run, train, index, evaluate, reproduce, tune, mine)
