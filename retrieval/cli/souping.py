"""``soup``: one model from several that were trained from one start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError


def soup(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Folders or hub ids; two or more.")
    ],
    output: Annotated[Path, typer.Option(help="The model folder to write.")],
    weights: Annotated[
        str | None, typer.Option(help="A weight for each model, as 0.7,0.3. [default: equal]")
    ] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Keep a model only if it makes the soup no worse.")
    ] = False,
    dataset: Annotated[
        str | None, typer.Option(help="--greedy: its dev split judges, else a tenth of train.")
    ] = None,
    measure: Annotated[
        str | None, typer.Option("-m", "--measure", help="--greedy: [default: nDCG@10]")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(min=1, help="--greedy: how many are asked. [default: 200]")
    ] = None,
    documents: Annotated[
        int | None,
        typer.Option(min=1, help="--greedy: searched, with all relevant. [default: 5000]"),
    ] = None,
) -> None:
    """Average the weights of models into one that costs no more than one of them.

    It helps where the models come from one start: other seeds, data or learning rates, or the
    checkpoints of one training. Models with other shapes, tokenizers or settings are refused.

    Greedy: from the best model down, each stays if the soup's measure does not fall; the result
    is never worse there than the best model. Judge it on a split that did not choose it.

    Examples:
      sluice soup runs/a/model runs/b/model --output runs/soup
      sluice soup runs/seed*/model --output runs/soup --greedy --dataset scifact
    """
    if len(models) < 2:
        raise ConfigError(f"soup: {len(models)} model; give two or more from one start")
    if not greedy:
        for option, given in (
            ("dataset", dataset), ("measure", measure), ("queries", queries),
            ("documents", documents),
        ):  # fmt: skip
            if given is not None:
                raise ConfigError(f"--{option}: is for --greedy")
        from sluice.retrieval.experiments.training.soups import make_soup

        made = make_soup(models, output, None if weights is None else _numbers(weights))
        typer.echo(f"{made}: the mean of {len(models)} models")
        return
    if weights is not None:
        raise ConfigError("--weights: a greedy soup weighs its models equally; leave one out")
    if dataset is None:
        raise ConfigError("--dataset: needed with --greedy, whose dev split chooses the models")
    from sluice.retrieval.config.components import check_measures
    from sluice.retrieval.config.sections import DevSection
    from sluice.retrieval.experiments.training.soups import make_greedy_soup

    wanted = measure or "nDCG@10"
    check_measures([wanted], "--measure")
    section = DevSection(measures=[wanted], queries=queries or 200, documents=documents or 5000)
    found = make_greedy_soup(models, output, dataset, section)
    for name, value in found.scores:
        typer.echo(f"{wanted} {value:.4f}  {'in ' if name in found.chosen else 'out'}  {name}")
    typer.echo(f"{wanted} {found.value:.4f}  {found.path}: {len(found.chosen)} models")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--weights: {text!r}; expected numbers, as 0.7,0.3") from None


COMMANDS = (soup,)
