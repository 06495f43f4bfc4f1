"""The verbs that fit what stages of a pipeline read: fusions, depths, cut-offs and exits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import (
    Command,
    ConfigFile,
    Overrides,
    Rebuild,
    Shown,
    plural,
    split_overrides,
    takes,
)
from sluice.retrieval.cli.training.models import adapter, quality, ranker
from sluice.retrieval.pipelines.table import FUSED

FIT = """Fit fusions, cut-offs, exits and rankers.

Each learns from judged queries outside the test set and writes a file that a pipeline or retriever
in YAML reads.
"""
Split = Annotated[str, "SPLIT", "Fit on dev (a tenth of train if there is none) or train."]
Output = Annotated[Path, "The JSON file to write."]
RERANKING = "The pipeline, which ends in a reranker."


@takes(
    "sluice.retrieval.experiments.tuning.depth_fitting:fit_experiment_fusion",
    "sluice.retrieval.pipelines.fitting.fusion_fit:fit_fusion",
    without="split",
    methods=Shown("weighted", names=("--method",)),
    normalise=Shown("steep and z-score"),
)
def fusion(
    config: ConfigFile,
    names: Annotated[
        list[str],
        "NAME",
        "Two or more retrievers or pipelines to fuse; KEY.PATH=VALUE words among them "
        "replace values of the file.",
    ],
    *,
    output: Output,
    split: Split = "dev",
    rebuild: Rebuild = False,
    **values: Any,
) -> None:
    """Fit the weights and method of a fusion.

    Weights, normalisation and method are chosen by the measure on the dev queries. A pipeline reads
    the file: `fused(bm25, dense, fitted='fusion.json')`.

    Example:
      sluice fit fusion configs/quickstart.yaml bm25 dense --output fusion.json
    """
    from sluice.retrieval.experiments.tuning.depth_fitting import fit_experiment_fusion

    parts, overrides = split_overrides(names)
    if len(parts) < 2:
        raise ConfigError("fit fusion: expected at least two retrievers or pipelines")
    fitted = fit_experiment_fusion(config, parts, overrides, rebuild=rebuild, split=split, **values)
    fitted.save(output)
    call = FUSED if fitted.fusion.method.startswith("comb") else fitted.fusion.method
    held_out = "" if fitted.held_out is None else f", {fitted.held_out:.4f} held out"
    alone = ", ".join(
        f"{name} {value:.4f}" for name, value in zip(fitted.names, fitted.single, strict=True)
    )
    queries = plural(fitted.queries, f"{split} query")
    echo(
        f"{output}: {fitted.measure} {fitted.value:.4f} on {queries}"
        f"{held_out}\n"
        f"equal weights {fitted.equal:.4f}; alone {alone}\n"
        f"best: {fitted.expression()}\n"
        f"in a pipeline: {call}({', '.join(parts)}, fitted={str(output)!r})"
    )


def _fits(
    fitting: str, sentence: str, *options: str, **shown: Shown
) -> Callable[[Callable[[Any, str, Path], str]], Command]:
    """Make a verb of a function that says how the fit of a pipeline came out.

    ``fitting`` fits it, ``sentence`` says which pipeline, ``options`` are functions whose options
    the verb has too. The function gets the fit, or the report beside it, the split and the file.
    """
    place = f"sluice.retrieval.experiments.tuning.depth_fitting:{fitting}"

    def verb(told: Callable[[Any, str, Path], str]) -> Command:
        def command(
            config: ConfigFile,
            pipeline: str,
            overrides: Overrides = None,
            *,
            output: Output,
            split: Split = "dev",
            rebuild: Rebuild = False,
            **values: Any,
        ) -> None:
            fit = resolve(place)
            made = fit(config, pipeline, overrides or [], rebuild=rebuild, split=split, **values)
            fitted, report = made if isinstance(made, tuple) else (made, made)
            fitted.save(output)
            echo(f"{output}: {told(report, split, output)}")

        command.__doc__, command.__name__ = told.__doc__, told.__name__
        command.__annotations__["pipeline"] = Annotated[str, "NAME", sentence]
        return takes(place, *options, without="split", panels=None, **shown)(command)

    return verb


@_fits("fit_experiment_rerank", RERANKING, depth=Shown("the reranker's own"))
def rerank(fitted: Any, _: str, output: Path) -> str:
    """Fit depth and share of a reranker.

    The depth is how many documents it scores, the share how much their earlier scores count. Every
    pair is scored once. A depth of 0, the first stage as it is, is kept unless the queries
    show that the reranker helps. A pipeline reads the file: `hybrid >> cross(fitted='cross.json')`.

    Example:
      sluice fit rerank x.yaml cascade --output cross.json
    """
    name = fitted.scorer
    call = f"{name[:-1]}, " if name.endswith(")") else f"{name}("
    return f"{fitted.why}\nin a pipeline: {call}fitted={str(output)!r})"


@_fits(
    "fit_experiment_cut_off", "The retriever or pipeline whose hits are cut.",
    "sluice.retrieval.stages.adaptive_depth:fit_cut_off", n=Shown(names=("-n", "--n")),
)  # fmt: skip
def cut_off(report: Any, split: str, _: Path) -> str:
    """Fit how deep to rerank, query by query.

    A reranker reads the file: `bm25 >> cross(depth=100, cut_off='cut.json')`.

    Example:
      sluice fit cut-off x.yaml hybrid --output cut.json
    """
    queries = plural(report.queries, f"{split} query")
    return f"{queries}, mean depth {report.mean_depth:.1f}, success {report.success:.4f}"


@_fits("fit_experiment_exit", RERANKING, "sluice.retrieval.stages.confidence_exit:fit_exit")
def exit_(fitted: Any, split: str, _: Path) -> str:
    """Fit which queries skip the last reranker.

    A reranker reads the file: `bm25 >> cross(depth=100, exit='exit.json')`.

    Example:
      sluice fit exit x.yaml cascade --epsilon 0.005 --output exit.json
    """
    return (
        f"{fitted.exited:.1%} of {plural(fitted.queries, f'{split} query')} exit, loss "
        f"{fitted.loss:.4f}; {fitted.measure} {fitted.value:.4f} of {fitted.full:.4f}"
    )


@_fits(
    "fit_experiment_abstention", "The pipeline or retriever.",
    "sluice.retrieval.stages.abstain:fit_abstention",
)  # fmt: skip
def no_answer(fitted: Any, split: str, _: Path) -> str:
    """Fit which queries have no answer here.

    They get no hits by a pipeline that reads the file:
    `abstain(dense, fitted='no-answer.json')`.

    Example:
      sluice fit no-answer x.yaml dense --unanswerable scifact --output no-answer.json
    """
    shown = sorted(fitted.auroc.items(), key=lambda each: -each[1])
    return (
        f"{fitted.refused:.1%} of {plural(fitted.answerable, f'{split} query')} with an answer get "
        f"no hits, {fitted.caught:.1%} of {fitted.unanswerable:,} without one\n"
        f"AUROC: {', '.join(f'{name} {value:.3f}' for name, value in shown)}"
    )


COMMANDS: dict[str, Command] = {
    "fusion": fusion, "rerank": rerank, "cut-off": cut_off, "exit": exit_, "no-answer": no_answer,
    "ranker": ranker, "quality": quality, "adapter": adapter,
}  # fmt: skip
