"""Check hubness, calibration, typos.

Finds what a mean hides: documents that are retrieved for too many queries, scores that say less
than they seem to, encoders that cannot share an index, and systems that a typo breaks.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import (
    Allow,
    Command,
    Form,
    Json,
    Measures,
    Shown,
    allowed,
    refuse_options,
    show_table,
    split_measures,
    takes,
)

if TYPE_CHECKING:
    from sluice.retrieval.evaluation.measures import Hubness
    from sluice.retrieval.experiments.experiment import Experiment


def hubness(
    source: Annotated[Path, "SOURCE", "A run file, or a retriever's folder."],
    *,
    dataset: Annotated[str | None, "Search a retriever with this dataset's queries."] = None,
    split: Annotated[str | None, "The split of the queries.", Shown("test")] = None,
    k: Annotated[int, Ge(1), "Count documents among the first N hits."] = 10,
    documents: Annotated[
        int | None, "Size of the corpus; a retriever knows its own.", Shown("those the run has")
    ] = None,
    as_json: Json = False,
    allow: Allow = None,
) -> None:
    """Show how unevenly documents are retrieved.

    N_k of a document is the number of queries that have it among their first k hits. The skewness
    of N_k is 0 for an even spread and grows with hubs: documents close to everything (Radovanovic
    et al., 2010). `normalised(...)` in a pipeline lowers them.

    Examples:
      sluice diagnose hubness run.trec -k 10 --documents 5183
      sluice diagnose hubness runs/x/retrievers/dense --dataset scifact
    """
    from sluice.retrieval.evaluation.measures import hubness as hubness_of
    from sluice.retrieval.runs.run import Run

    if source.is_dir():
        refuse_options("for a run file; a retriever knows its own", documents=documents)
        figures = _hubness_of_retriever(source, dataset, split or "test", k, allowed(allow))
    else:
        refuse_options("for a retriever's folder", dataset=dataset, split=split, allow=allow)
        figures = hubness_of(Run.load(source), k, documents=documents)
    if as_json:
        typer.echo(json.dumps(figures._asdict(), indent=2))
        return
    echo(
        f"skewness of N_{k}    {figures.skewness:.4f}\n"
        f"largest N_{k}        {figures.largest:,}\n"
        f"never retrieved    {figures.never:.2%} of the documents"
    )
    for doc_id, count in figures.hubs:
        echo(f"{count:>6,}  {doc_id}")


def _hubness_of_retriever(
    folder: Path, dataset: str | None, split: str, k: int, allow: Collection[str]
) -> Hubness:
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.evaluation.measures import hubness as hubness_of
    from sluice.retrieval.retrievers.candidate_lists import run_on
    from sluice.retrieval.retrievers.retriever import Retriever

    if dataset is None:
        raise ConfigError(f"--dataset: missing (the retriever {folder} needs its queries)")
    retriever = Retriever.open(folder, allow=allow)
    run = run_on(retriever, load_dataset(dataset, split), k)
    return hubness_of(run, k, documents=len(retriever))


def compatibility(
    retrievers: Annotated[
        list[Path], "FOLDER", "Retrievers of one corpus, from the oldest model to the newest."
    ],
    *,
    dataset: Annotated[str, "The dataset with the queries and judgements."],
    split: Annotated[str, "The split of the queries."] = "test",
    measure: Annotated[str, "The measure of the matrix."] = "nDCG@10",
    form: Form = "text",
    allow: Allow = None,
) -> None:
    """Search old indexes with new encoders.

    The compatibility matrix: each retriever's query encoder (rows) searches each retriever's index
    (columns). A new encoder is compatible with an old index if it searches it better than the old
    encoder does; average compatibility is the share of such pairs.

    Example:
      sluice diagnose compatibility runs/v1/retrievers/d runs/v2/retrievers/d --dataset scifact
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.retrievers.retriever import Retriever
    from sluice.retrieval.studies.upgrades import compatibility_matrix

    if len(retrievers) < 2:
        raise ConfigError("compatibility: expected at least two retrievers, the oldest first")
    if len(set(retrievers)) < len(retrievers):
        raise ConfigError("compatibility: a retriever occurs twice")
    folders = [path.name for path in retrievers]
    names = folders if len(set(folders)) == len(folders) else list(map(str, retrievers))
    words = allowed(allow)
    opened = {
        name: Retriever.open(folder, allow=words)
        for name, folder in zip(names, retrievers, strict=True)
    }
    matrix = compatibility_matrix(opened, load_dataset(dataset, split), measure)
    echo(show_table(matrix.table(), form))


@takes("sluice.retrieval.studies.robustness.stress_test:robustness")
def robust(
    path: Annotated[Path, "FOLDER", "An experiment's output folder, or its YAML file."],
    overrides: Annotated[
        list[str] | None, "KEY.PATH=VALUE", "Values that replace those of the file."
    ] = None,
    *,
    pipeline: Annotated[
        list[str] | None, "NAME", "A pipeline to test; may be repeated.", Shown("all")
    ] = None,
    measure: Measures = None,
    perturbation: Annotated[
        list[str] | None,
        "NAME",
        "query:NAME or document:NAME, as in query:typo-swap; may be repeated.",
        Shown("all"),
    ] = None,
    form: Form = "text",
    allow: Allow = None,
    **values: Any,
) -> None:
    """Perturb queries and documents.

    Queries get typos (a neighbouring key, letters swapped, dropped, doubled) or other casing, or
    are cut, and the pipeline searches again. Documents below rank 10 that are not judged relevant
    get the query's terms or an unrelated sentence, are cut or put in capitals, one at a time; they
    are encoded and scored again while the rest of the corpus stays. The table has the change of the
    measure with its paired test, the overlap with the clean rankings (RBO), and how far the
    perturbed documents moved. An output folder must be complete; for a YAML file missing parts are
    built first.

    Examples:
      sluice diagnose robust runs/x --pipeline bm25 --pipeline cascade
      sluice diagnose robust configs/beir.yaml dataset=nfcorpus --queries 0 --format markdown
      sluice diagnose robust runs/x --perturbation query:typo-swap --perturbation document:stuffed
    """
    from sluice.retrieval.studies.robustness.stress_test import PERTURBATIONS, robustness

    experiment = _experiment(path, overrides or [], allow)
    config = experiment.config.evaluate
    for name in pipeline or []:
        if name not in experiment.systems:
            known = experiment.systems
            raise ConfigError(
                f"{path}: no system {name!r}; known: {', '.join(known)}{suggest(name, known)}"
            )
    result = robustness(
        {name: experiment.stage(name) for name in pipeline or experiment.systems},
        experiment.dataset(config.split),
        split_measures(measure, config.measures[:1]),
        perturbations=perturbation or PERTURBATIONS,
        **values,
    )
    echo(show_table(result.table, form))


def _experiment(path: Path, overrides: list[str], allow: list[str] | None) -> Experiment:
    from sluice.retrieval.config.sections import ExperimentConfig, config_of
    from sluice.retrieval.experiments.experiment import Experiment, open_experiment
    from sluice.retrieval.experiments.output.folder import SETTINGS

    if not path.is_dir():
        refuse_options("for an output folder; a YAML file of yours may name anything", allow=allow)
        experiment = Experiment(config_of(path, ExperimentConfig, overrides)[0], file=path)
        experiment.check_output()
        return experiment
    file = path / SETTINGS
    if not file.exists():
        raise ConfigError(
            f"{path}: no {SETTINGS} here; expected the output folder of sluice run, or a YAML file"
        )
    return open_experiment(path, allow=allowed(allow), overrides=overrides)


@takes("sluice.retrieval.evaluation.calibration_error:calibration")
def calibration(
    source: Annotated[Path, "RUN", "A run file."],
    qrels: Annotated[str, "A qrels file, or a dataset: its test split."],
    *,
    as_json: Json = False,
    **values: Any,
) -> None:
    """Show how well scores tell relevance.

    The reliability curve: hits are put into bins by sigmoid(scale * score + bias), and each bin has
    the mean of these and of the grades. The error is the mean distance of the two. A hit without
    judgement is not relevant. Without --scale and --bias they are fitted to every second judged
    query, and the others are shown.

    Examples:
      sluice diagnose calibration dense.trec scifact --scale 20.4 --bias -11.2
      sluice diagnose calibration bm25.trec qrels.tsv -k 20 --max-grade 2
    """
    from sluice.retrieval.datasets.dataset import judgements
    from sluice.retrieval.evaluation.calibration_error import calibration as calibration_of
    from sluice.retrieval.runs.run import Run

    curve = calibration_of(Run.load(source), judgements(qrels), **values)
    if as_json:
        facts = {**curve._asdict(), "bins": [each._asdict() for each in curve.bins]}
        typer.echo(json.dumps(facts, indent=2))
        return
    echo(
        f"calibration error {curve.error:.4f} of {curve.hits:,} hits; scale {curve.scale:.4g}, "
        f"bias {curve.bias:.4g}\nprobability       hits  predicted  observed"
    )
    for each in curve.bins:
        width = f"{each.low:.2f} to {each.high:.2f}"
        echo(f"{width:<14}{each.hits:>8,}  {each.predicted:>9.4f}  {each.observed:>8.4f}")


COMMANDS: dict[str, Command] = {
    "hubness": hubness,
    "calibration": calibration,
    "compatibility": compatibility,
    "robust": robust,
}
