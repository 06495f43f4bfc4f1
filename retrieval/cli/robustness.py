"""``robust``: what typos, casing, stuffing and the like do to an experiment's systems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError, suggest

if TYPE_CHECKING:
    from sluice.retrieval.experiments.experiment import Experiment

FORMS = ("text", "markdown", "csv", "latex", "html", "json")


def robust(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="An experiment's output folder, or its YAML file."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Values to use instead of the file's."),
    ] = None,
    pipeline: Annotated[
        list[str] | None, typer.Option(help="A system (may be repeated); all by default.")
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option("-m", "--measure", help="nDCG@10, ... (may be repeated)."),
    ] = None,
    perturbation: Annotated[
        list[str] | None,
        typer.Option(help="query:NAME or document:NAME (may be repeated); all by default."),
    ] = None,
    queries: Annotated[int, typer.Option(min=0, help="Queries drawn; 0 takes all.")] = 50,
    targets: Annotated[int, typer.Option(min=1, help="Documents perturbed for each query.")] = 3,
    depth: Annotated[int, typer.Option(help="Last rank such a document is drawn from.")] = 100,
    seed: Annotated[int, typer.Option(help="Draws queries, documents, sentences, typos.")] = 0,
    form: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMS)}.")] = "text",
) -> None:
    """Perturb queries and documents and say what that does to each system.

    Queries get typos (a neighbouring key, letters swapped, dropped, doubled), other casing, or are
    cut; the pipeline is asked again. Documents below rank 10 that are not judged relevant get the
    query's terms or an unrelated sentence, are cut or put in capitals, one at a time; they are
    encoded and scored anew and nothing else of the corpus changes. The table has the measure's
    change with its paired test, the overlap of the lists with the clean ones (RBO), and how far
    the perturbed documents moved. Of PATH a folder is only opened; a YAML file's missing parts are
    made first.

    Examples:
      sluice robust runs/x --pipeline bm25 --pipeline cascade
      sluice robust configs/beir.yaml dataset=nfcorpus --queries 0 --format markdown
      sluice robust runs/x --perturbation query:typo-swap --perturbation document:stuffed
    """
    if form not in FORMS:
        raise ConfigError(f"--format: {form!r}; expected one of {', '.join(FORMS)}")
    from sluice.retrieval.studies.robustness.stress_test import PERTURBATIONS, robustness

    experiment = _experiment(path, overrides or [])
    config = experiment.config.evaluate
    for name in pipeline or []:
        if name not in experiment.systems:
            known = experiment.systems
            raise ConfigError(
                f"{path}: no system {name!r}; known: {', '.join(known)}{suggest(name, known)}"
            )
    found = robustness(
        {name: experiment.stage(name) for name in pipeline or experiment.systems},
        experiment.dataset(config.split),
        measure or config.measures[:1],
        perturbations=perturbation or PERTURBATIONS,
        queries=queries,
        targets=targets,
        depth=depth,
        seed=seed,
    )
    table = found.table
    typer.echo(str(table) if form == "text" else getattr(table, f"to_{form}")().rstrip("\n"))


def _experiment(path: Path, overrides: list[str]) -> Experiment:
    from sluice.retrieval.config.sections import ExperimentConfig, load_config
    from sluice.retrieval.experiments.experiment import SETTINGS, Experiment

    if not path.is_dir():
        return Experiment(load_config(path, ExperimentConfig, overrides), file=path)
    file = path / SETTINGS
    if not file.exists():
        raise ConfigError(
            f"{path}: no {SETTINGS} here; expected the output folder of sluice run, or a YAML file"
        )
    config = load_config(file, ExperimentConfig, overrides)
    moved = config.model_copy(update={"output": str(path)})
    return Experiment(moved, file=file, only_open=True)


COMMANDS = (robust,)
