"""``fit``: cut-offs and exits, learnt from an experiment's dev queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.experiment import ConfigFile, Overrides


def fit(
    config: ConfigFile,
    overrides: Overrides = None,
    cut_off: Annotated[
        str | None, typer.Option("--cut-off", help="Fit how deep to rerank what this one finds.")
    ] = None,
    exit_of: Annotated[
        str | None, typer.Option("--exit", help="Fit which queries skip this one's last reranker.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The JSON file to write.")] = None,
    split: Annotated[str, typer.Option(help="dev (else a tenth of train), or train.")] = "dev",
    n: Annotated[int, typer.Option(help="cut-off: scores looked at, and the deepest.")] = 25,
    alpha: Annotated[float, typer.Option(help="cut-off: ridge.")] = 1.0,
    extra: Annotated[int, typer.Option(help="cut-off: added to what is predicted.")] = 1,
    success: Annotated[
        float | None, typer.Option(help="cut-off: choose extra so that this share succeeds.")
    ] = None,
    depth: Annotated[int, typer.Option(help="cut-off: candidates of a query.")] = 100,
    measure: Annotated[str, typer.Option("-m", "--measure", help="exit: what may be lost.")] = (
        "nDCG@10"
    ),
    epsilon: Annotated[float, typer.Option(help="exit: the loss that is allowed.")] = 0.01,
    kind: Annotated[str, typer.Option(help="exit: margin or softmax.")] = "margin",
    bound: Annotated[str, typer.Option(help="exit: dev, expected or hoeffding.")] = "dev",
) -> None:
    """Fit a cut-off or an exit on queries that are not tested, for rerankers to name.

    A pipeline names the file: `bm25 >> cross(depth=100, cut_off='cut.json', exit='exit.json')`.

    Examples:
      sluice fit x.yaml --cut-off hybrid --output cut.json
      sluice fit x.yaml --exit cascade --epsilon 0.005 --output exit.json
    """
    from sluice.retrieval.experiments.tuning.depth_fitting import (
        fit_experiment_cut_off,
        fit_experiment_exit,
    )

    if (cut_off is None) == (exit_of is None):
        raise ConfigError("fit: give --cut-off or --exit, with the name of a pipeline")
    if output is None:
        raise ConfigError("fit: needs --output, the JSON file to write")
    if cut_off is not None:
        rule, found = fit_experiment_cut_off(
            config, cut_off, overrides or [], split=split, depth=depth,
            n=n, alpha=alpha, extra=extra, success=success,
        )  # fmt: skip
        rule.save(output)
        typer.echo(
            f"{output}: {found.queries:,} {split} queries, mean depth {found.mean_depth:.1f}, "
            f"success {found.success:.4f}"
        )
        return
    fitted = fit_experiment_exit(
        config, str(exit_of), overrides or [], split=split,
        measure=measure, epsilon=epsilon, kind=kind, bound=bound,
    )  # fmt: skip
    fitted.save(output)
    typer.echo(
        f"{output}: {fitted.exited:.1%} of {fitted.queries:,} {split} queries exit, loss "
        f"{fitted.loss:.4f}; {fitted.measure} {fitted.value:.4f} of {fitted.full:.4f}"
    )


COMMANDS = (fit,)
