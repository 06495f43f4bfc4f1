"""The verbs that run an experiment, or a part of it."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.encoders.foundation.errors import ConfigError, SluiceError, suggest
from sluice.encoders.foundation.numbers import duration, spelled_bytes
from sluice.retrieval.cli.measuring.results import report, reproduce
from sluice.retrieval.cli.terminal.printing import echo, say, show
from sluice.retrieval.cli.terminal.verbs import (
    COLUMNS,
    DOCUMENTS,
    Columns,
    Command,
    ConfigFile,
    Links,
    Overrides,
    Plan,
    Rebuild,
    Shown,
    picked,
    plural,
    refuse_options,
    takes,
)

if TYPE_CHECKING:
    from sluice.retrieval.evaluation.table import Table
    from sluice.retrieval.experiments.experiment import Experiment


log = logging.getLogger("sluice")

OWN_DOCUMENTS = "sluice.retrieval.cli.experiment:own_experiment"
LONG = 300_000  # characters that take longer than the trial of an estimate


def is_documents(source: str) -> bool:
    """Return whether a word names documents rather than the YAML file of an experiment."""
    from sluice.retrieval.documents.readers.source import is_source

    return Path(source).suffix.lower() not in (".yaml", ".yml") and is_source(source)


def own_experiment(
    source: str,
    columns: Mapping[str, Any],
    output: Path | None,
    *,
    language: Annotated[str | None, "CODE", "The language BM25 stems.", Shown("guessed")] = None,
    model: Annotated[str | None, "The dense encoder.", Shown("all-MiniLM-L6-v2")] = None,
    bm25: Annotated[bool, "Index with BM25 alone, without a model."] = False,
    code: Annotated[bool, "Index the functions and classes of a folder of code."] = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Return the config of a hybrid over a source, and print what was read and what it will cost.

    The model is looked up before anything is built. A dry run prints no estimate here: its caller
    does.
    """
    from sluice.encoders.lexical.analyzer import analyzer
    from sluice.retrieval.experiments.own_documents import hybrid_config, survey
    from sluice.retrieval.jobs import estimate

    if bm25 and model is not None:
        raise ConfigError("--model: goes without --bm25, which uses no model")
    if language is not None:
        analyzer(language)  # an unknown one is an error before any work
    folder = output or Path("runs") / short_name(source)
    own = survey(source, {**columns, "code": True} if code else columns, folder, language)
    echo(str(own))
    config = hybrid_config(own, folder, model=model, lexical_only=bm25)
    if not dry_run and "dense" in config["retrievers"]:
        if own.characters < LONG:
            echo("estimate: less than half a minute, and a few MB on disk")
        else:
            echo(f"estimate: dense: {estimate(config, only=['dense'])['dense']}")
    return config


def short_name(source: str) -> str:
    """Return the folder's name below ``runs`` for a source."""
    if source == "-":
        return "documents"
    plain = source.partition("#")[0].rstrip("/").removeprefix("hf:")
    parts = [part for part in Path(plain).resolve().parts if not set(part) & set("*?[")]
    return parts[-1].split(".")[0] or "documents"


def run(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    rebuild: Rebuild = False,
    plan: Plan = False,
) -> None:
    """Train, index and evaluate an experiment.

    Models go to OUTPUT/models/NAME, retrievers to OUTPUT/retrievers/NAME, runs to
    OUTPUT/runs/NAME.trec.gz, figures to OUTPUT/results.json, report.md and report.html. Finished
    parts are reused, so an interrupted run continues where it stopped.

    Examples:
      sluice run quickstart
      sluice run quickstart output=runs/mine
    """
    from sluice.retrieval.jobs import run as run_experiment

    if plan:
        _print_plan(config, overrides, rebuild, suites=True)
        return
    if _run_suite(config, overrides, rebuild):
        return
    start = time.monotonic()
    table, experiment = run_experiment(config, overrides or [], rebuild=rebuild)
    _print_evaluation(table, experiment, start)


def train(config: ConfigFile, overrides: Overrides = None) -> None:
    """Train one encoder or cross-encoder.

    The model goes to OUTPUT/model, a folder that sentence-transformers loads too, with a model
    card. OUTPUT/training holds metrics.jsonl, the mining report and checkpoints. Run the command
    again to resume an interrupted training run. `examples: pairs.csv` trains on your own pairs and
    needs no dataset.

    Examples:
      sluice train configs/train-dense.yaml trainer.max_steps=50
      sluice train mine.yaml examples=pairs.csv output=runs/mine
    """
    from sluice.retrieval.experiments.training.summary import training_summary
    from sluice.retrieval.jobs import train as train_one

    echo(training_summary(train_one(config, overrides or [])))


@takes(COLUMNS, OWN_DOCUMENTS, panels={DOCUMENTS: "language model bm25 code"})
def index(
    source: Annotated[
        str,
        "An experiment's YAML file; or documents: a folder, a file, a pattern, "
        "FILE.sqlite#TABLE, hf:OWNER/NAME, or - for standard input.",
    ],
    overrides: Overrides = None,
    *,
    only: Annotated[list[str] | None, "NAME", "Build this retriever only; may be repeated."] = None,
    output: Annotated[
        Path | None, "FOLDER", "Where the indexes go.", Shown("runs/NAME of the source")
    ] = None,
    dry_run: Annotated[bool, "Estimate time, disk and memory; index nothing."] = False,
    allow: Links = None,
    rebuild: Rebuild = False,
    plan: Plan = False,
    **values: Any,
) -> None:
    """Index documents, or an experiment's corpus.

    Documents of your own become a hybrid of BM25 and dense vectors, an experiment like any other
    in OUTPUT, to be searched, added to and evaluated. Files of text, Markdown, HTML and PDF are cut
    into passages; the columns of tables (csv, tsv, JSON lines, Parquet, Arrow, SQLite) are chosen
    by their names, and one line says which.

    With --code each function and class in a folder is a document with path and line; files that git
    ignores are left out, and BM25 searches alone where the dense model is not on this machine.
    `sluice update OUTPUT FOLDER --sync` encodes again only what changed.

    A YAML file's retrievers go to OUTPUT/retrievers/NAME. Document vectors are cached by encoder
    and text, so a second index over the same corpus, or the same one after an interruption, encodes
    only what is missing.

    Examples:
      sluice index notes --output my
      sluice index src --code --output my
      sluice index docs.csv --id path --title headline --text body --output my
      sluice index configs/bm25.yaml dataset=scifact
      sluice index configs/index-splade.yaml --dry-run
    """
    from sluice.retrieval.config.yaml_file import SUFFIXES, recipe_or_file, recipes

    config: str | Path | dict[str, Any] = Path(source)
    if is_documents(source):
        if overrides:
            raise ConfigError(
                f"{overrides[0]}: KEY=VALUE goes with a YAML file, and {source} is documents; use "
                "the options of `sluice index -h`"
            )
        columns = picked(values, Columns) | ({"allow": allow} if allow else {})
        options = picked(values, own_experiment)
        config = own_experiment(source, columns, output, **options, dry_run=dry_run)
    else:
        if not recipe_or_file(source).exists() and Path(source).suffix not in SUFFIXES:
            here = [path.name for path in Path(source).absolute().parent.glob("*")]
            raise ConfigError(
                f"{source}: no such file or folder{suggest(Path(source).name, [*here, *recipes()])}"
            )
        refuse_options("for documents, not for a YAML file", **values, allow=allow)
        overrides = [*(overrides or []), *([] if output is None else [f"output={output}"])]
    if plan:
        if dry_run:
            raise ConfigError("--plan: --dry-run does no task at all; expected one of the two")
        _print_plan(config, overrides, rebuild, only)
        return
    if dry_run:
        from sluice.retrieval.jobs import estimate

        for name, cost in estimate(config, overrides or [], only=only).items():
            echo(f"{name}: {cost or 'nothing to encode'}")
        return
    from sluice.indexing.wrappers.passages import PassageIndex
    from sluice.retrieval.jobs import index as build

    for retriever in build(config, overrides or [], only=only, rebuild=rebuild):
        head = retriever.head
        counts = plural(head.documents, "document")
        if head.passages is not None and isinstance(retriever.index, PassageIndex):
            counts += f" in {plural(retriever.index.passages, 'passage')}"
        echo(f"{retriever.path}: {counts}, {spelled_bytes(head.index_bytes)}")
    if isinstance(config, dict):
        searched = config["output"]
        if only:
            searched = f"{searched}/retrievers/{only[0]}"  # the pipeline lacks its other parts
        else:
            from sluice.retrieval.experiments.experiment import open_experiment

            opened = open_experiment(searched, quick=True)
            opened.stage(opened.systems[-1]).search("first", 1)  # compiles, compares: once
        echo(f'search it: sluice search {shlex.quote(searched)} "your question"')


def _print_plan(
    config: str | Path | dict[str, Any],
    overrides: list[str] | None,
    rebuild: bool,
    only: list[str] | None = None,
    *,
    suites: bool = False,
) -> None:
    if rebuild:
        raise ConfigError("--plan: replaces nothing; leave --rebuild out")
    from sluice.retrieval.jobs import planned

    for line in planned(config, overrides or [], only=only, suites=suites):
        echo(line)


def evaluate(
    config: Annotated[ConfigFile | None, Shown("beir, with --suite")] = None,
    overrides: Overrides = None,
    *,
    suite: Annotated[
        str | None, "NAME", "A folder of collections, by path or by name under $SLUICE_DATA: nano."
    ] = None,
    rebuild: Rebuild = False,
    plan: Plan = False,
) -> None:
    """Evaluate the pipelines of an experiment.

    Missing models and indexes are built first. Saved runs are reused: after an interruption the
    same command continues, and adding a pipeline runs only that pipeline. `dataset` may be a list,
    or beir:* for all of BEIR: each dataset becomes an experiment in OUTPUT/datasets/NAME, and one
    that fails does not stop the others (exit code 1). --suite does so with the collections of a
    folder, in BEIR layout or NanoBEIR's.

    Examples:
      sluice evaluate configs/beir.yaml dataset=nfcorpus
      sluice evaluate configs/beir.yaml 'dataset=[scifact, nfcorpus]' output=runs/beir
      sluice evaluate --suite nano
    """
    if suite is not None:
        from sluice.retrieval.config.yaml_file import configs

        first = [str(config)] if "=" in str(config) else []
        overrides = [*first, *(overrides or []), f"dataset=suite:{suite}"]
        config = configs() / "beir.yaml" if first or config is None else config
    if config is None:
        raise ConfigError("CONFIG: missing; expected a YAML file, a recipe's name, or --suite NAME")
    run(config, overrides, rebuild=rebuild, plan=plan)


def tune(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    rebuild: Rebuild = False,
    plan: Plan = False,
) -> None:
    """Find the best pipeline within a budget.

    Every retriever and reranker of the experiment is timed on this machine. Depths, fusion weights,
    interpolation and early exits are tried on the dev split over cached scores. The chosen pipeline
    is measured on the test split, with its predicted and its measured latency. OUTPUT/tune gets
    front.svg, trials.csv and tuned.yaml. An `executor` scores the pairs that trials need; what is
    timed, this process does.

    Examples:
      sluice tune configs/tune.yaml dataset=scifact tune.budget.p95_ms=20
      sluice evaluate runs/tune/tune/tuned.yaml
    """
    from sluice.retrieval.execution.executor import estimate_of
    from sluice.retrieval.jobs import tune as tune_parts

    if plan:
        if rebuild:
            raise ConfigError("--plan: replaces nothing; leave --rebuild out")
        echo(estimate_of(lambda: tune_parts(config, overrides or [])))
        return
    start = time.monotonic()
    table, tuning = tune_parts(config, overrides or [], rebuild=rebuild)
    show(table)
    echo(f"\ntuned: {tuning.chosen.pipeline}")
    echo(f"best of {len(tuning.trials):,}: {tuning.best.pipeline}")
    folder = tuning.folder
    say(f"\nResults after {duration(time.monotonic() - start)}: {folder}/report.md")
    echo(f"\nTry next:\n  sluice evaluate {shlex.quote(f'{folder}/tuned.yaml')}")


def _print_evaluation(table: Table, experiment: Experiment, start: float) -> None:
    """Print the table, where the rest is, how long it took, and what to do next."""
    from sluice.retrieval.config.trust import named_in
    from sluice.retrieval.experiments.evaluation import next_steps

    left_out = show(table)
    page = experiment.config.evaluate.report
    _print_results(experiment.output, left_out, start, page=page, allow=named_in(experiment.config))
    echo("\nTry next:")
    for step in next_steps(experiment, table):
        echo(f"  {step.command}")


def _print_results(
    output: Path, left_out: list[str], start: float, *, page: bool, allow: Collection[str]
) -> None:
    """Write the report, and print the paths of the results and the time taken.

    ``allow`` is what the user's own config names: the folder was made by it.
    """
    files = [f"{output}/report.md", f"{output}/results.json"]
    if page:
        from sluice.retrieval.studies.report.page import build_report

        try:
            files.insert(0, str(build_report(output, allow=allow)))
        except SluiceError as error:  # the results are saved all the same
            log.warning("report.html was not written: %s", error)
    if left_out:
        say(f"More columns in {output}/report.md: {', '.join(left_out)}.")
    say(f"\nResults after {duration(time.monotonic() - start)}: {', '.join(files)}")


def _run_suite(config: Path, overrides: list[str] | None, rebuild: bool) -> bool:
    """Evaluate a config of several datasets and print its tables; exit code 1 if one failed."""
    from sluice.retrieval.jobs import suite as run_suite

    start = time.monotonic()
    suite = run_suite(config, overrides or [], rebuild=rebuild)
    if suite is None:
        return False
    for place, (measure, table) in enumerate(suite.shown.items()):
        echo(f"{chr(10) * (place > 0)}{measure}")
        show(table)
    for name, why in suite.failed.items():
        say(f"\nfailed: {name}: {why}")
    _print_results(suite.output, [], start, page=suite.report, allow=suite.named)
    if suite.failed:
        raise typer.Exit(1)
    return True


COMMANDS: dict[str, Command] = {
    "run": run, "train": train, "index": index, "evaluate": evaluate, "tune": tune,
    "reproduce": reproduce, "report": report,
}  # fmt: skip
