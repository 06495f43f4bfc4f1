"""The verbs that fit what stages of a pipeline read: fusions, depths, cut-offs and exits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.fitting.models import adapter, ranker
from sluice.retrieval.cli.fitting.quality import quality
from sluice.retrieval.cli.terminal.options import (
    Command,
    ConfigFile,
    Overrides,
    Rebuild,
    argument,
    option,
    plural,
    split_overrides,
)
from sluice.retrieval.cli.terminal.output import echo

FIT = """Fit fusions, cut-offs, exits and rankers.

Each learns from judged queries outside the test set and writes a file that a pipeline or retriever
in YAML reads.
"""
Split = Annotated[str, option("SPLIT", "Fit on dev (a tenth of train if there is none) or train.")]
Output = Annotated[Path, option("FILE", "The JSON file to write.")]
Measure = Annotated[str, option("MEASURE", "The measure to maximise.", "-m", "--measure")]
Kind = Annotated[
    str,
    option(
        "KIND",
        "Measure confidence by margin, softmax, top, energy or deviation of the scores, or by the "
        "variance that a Gaussian encoder gives the query.",
    ),
]
Temperature = Annotated[float, option("T", "Divide the scores of softmax and energy by T.")]
Reranking = Annotated[str, argument("NAME", "The pipeline, which ends in a reranker.")]


def fusion(
    config: ConfigFile,
    names: Annotated[
        list[str],
        argument(
            "NAME",
            "Two or more retrievers or pipelines to fuse; KEY.PATH=VALUE words among them "
            "replace values of the file.",
        ),
    ],
    output: Output,
    split: Split = "dev",
    measure: Measure = "nDCG@10",
    method: Annotated[
        list[str] | None,
        option(
            "METHOD",
            "Try this method: weighted, rrf, rank_biased, comb_sum or comb_mnz; may be repeated.",
            default="weighted",
        ),
    ] = None,
    normalise: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Try this normalisation of scores: min-max, z-score, theoretical-min, pyserini, "
            "steep or none; may be repeated.",
            default="steep and z-score",
        ),
    ] = None,
    depth: Annotated[int, option("N", "Hits of each part that are fused.", min=1)] = 1000,
    rebuild: Rebuild = False,
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
    fitted = fit_experiment_fusion(
        config, parts, overrides, rebuild=rebuild, split=split, depth=depth, measure=measure,
        methods=method or ("weighted",), normalise=normalise,
    )  # fmt: skip
    fitted.save(output)
    call = "fused" if fitted.fusion.method.startswith("comb") else fitted.fusion.method
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


def rerank(
    config: ConfigFile,
    pipeline: Reranking,
    output: Output,
    overrides: Overrides = None,
    split: Split = "dev",
    measure: Measure = "nDCG@10",
    depth: Annotated[
        int | None,
        option("N", "Documents that are reranked, at most.", min=1, default="the reranker's own"),
    ] = None,
    rebuild: Rebuild = False,
) -> None:
    """Fit depth and share of a reranker.

    The depth is how many documents it scores, the share how much their earlier scores count. Every
    pair is scored once. A depth of 0, the first stage as it is, is kept unless the queries
    show that the reranker helps. A pipeline reads the file: `hybrid >> cross(fitted='cross.json')`.

    Example:
      sluice fit rerank x.yaml cascade --output cross.json
    """
    from sluice.retrieval.experiments.tuning.depth_fitting import fit_experiment_rerank

    fitted = fit_experiment_rerank(
        config, pipeline, overrides or [], rebuild=rebuild, split=split, depth=depth,
        measure=measure,
    )  # fmt: skip
    fitted.save(output)
    name = fitted.scorer
    call = f"{name[:-1]}, " if name.endswith(")") else f"{name}("
    echo(f"{output}: {fitted.why}\nin a pipeline: {call}fitted={str(output)!r})")


def cut_off(
    config: ConfigFile,
    pipeline: Annotated[str, argument("NAME", "The retriever or pipeline whose hits are cut.")],
    output: Output,
    overrides: Overrides = None,
    split: Split = "dev",
    n: Annotated[int, option("N", "Scores looked at, and the largest depth.", "-n", "--n")] = 25,
    alpha: Annotated[float, option("X", "Strength of the ridge penalty.")] = 1.0,
    extra: Annotated[int, option("N", "Documents added to the predicted depth.")] = 1,
    success: Annotated[
        float | None, option("SHARE", "Choose --extra so that this share succeeds.")
    ] = None,
    depth: Annotated[int, option("N", "Candidates for each query.")] = 100,
    rebuild: Rebuild = False,
) -> None:
    """Fit how deep to rerank, query by query.

    A reranker reads the file: `bm25 >> cross(depth=100, cut_off='cut.json')`.

    Example:
      sluice fit cut-off x.yaml hybrid --output cut.json
    """
    from sluice.retrieval.experiments.tuning.depth_fitting import fit_experiment_cut_off

    rule, report = fit_experiment_cut_off(
        config, pipeline, overrides or [], rebuild=rebuild, split=split, depth=depth,
        n=n, alpha=alpha, extra=extra, success=success,
    )  # fmt: skip
    rule.save(output)
    queries = plural(report.queries, f"{split} query")
    echo(f"{output}: {queries}, mean depth {report.mean_depth:.1f}, success {report.success:.4f}")


def exit_(
    config: ConfigFile,
    pipeline: Reranking,
    output: Output,
    overrides: Overrides = None,
    split: Split = "dev",
    measure: Annotated[
        str, option("MEASURE", "The measure to preserve.", "-m", "--measure")
    ] = "nDCG@10",
    epsilon: Annotated[float, option("X", "Loss of the measure that is allowed.")] = 0.01,
    kind: Kind = "margin",
    temperature: Temperature = 1.0,
    bound: Annotated[
        str,
        option(
            "BOUND", "Keep --epsilon on dev, or as a bound on new queries: expected or hoeffding."
        ),
    ] = "dev",
    rebuild: Rebuild = False,
) -> None:
    """Fit which queries skip the last reranker.

    A reranker reads the file: `bm25 >> cross(depth=100, exit='exit.json')`.

    Example:
      sluice fit exit x.yaml cascade --epsilon 0.005 --output exit.json
    """
    from sluice.retrieval.experiments.tuning.depth_fitting import fit_experiment_exit

    fitted = fit_experiment_exit(
        config, pipeline, overrides or [], rebuild=rebuild, split=split,
        measure=measure, epsilon=epsilon, kind=kind, temperature=temperature, bound=bound,
    )  # fmt: skip
    fitted.save(output)
    queries = plural(fitted.queries, f"{split} query")
    echo(
        f"{output}: {fitted.exited:.1%} of {queries} exit, loss "
        f"{fitted.loss:.4f}; {fitted.measure} {fitted.value:.4f} of {fitted.full:.4f}"
    )


def no_answer(
    config: ConfigFile,
    pipeline: Annotated[str, argument("NAME", "The pipeline or retriever.")],
    output: Output,
    overrides: Overrides = None,
    unanswerable: Annotated[
        str | None,
        option(
            "NAME",
            "Queries without an answer: another dataset, of which the train queries are taken, or "
            "a file (.txt, .jsonl); beside judged queries without a relevant document.",
        ),
    ] = None,
    split: Split = "dev",
    kind: Kind = "energy",
    temperature: Temperature = 1.0,
    refused: Annotated[
        float, option("SHARE", "Answerable queries that may be refused, at most.")
    ] = 0.05,
    rebuild: Rebuild = False,
) -> None:
    """Fit which queries have no answer here.

    They get no hits by a pipeline that reads the file:
    `abstain(dense, fitted='no-answer.json')`.

    Example:
      sluice fit no-answer x.yaml dense --unanswerable scifact --output no-answer.json
    """
    from sluice.retrieval.experiments.tuning.depth_fitting import fit_experiment_abstention

    fitted = fit_experiment_abstention(
        config, pipeline, overrides or [], unanswerable=unanswerable, rebuild=rebuild, split=split,
        kind=kind, temperature=temperature, refused=refused,
    )  # fmt: skip
    fitted.save(output)
    echo(
        f"{output}: {fitted.refused:.1%} of {plural(fitted.answerable, f'{split} query')} with an "
        f"answer get no hits, {fitted.caught:.1%} of {fitted.unanswerable:,} without one"
    )
    shown = sorted(fitted.auroc.items(), key=lambda each: -each[1])
    echo(f"AUROC: {', '.join(f'{name} {value:.3f}' for name, value in shown)}")


COMMANDS: dict[str, Command] = {
    "fusion": fusion, "rerank": rerank, "cut-off": cut_off, "exit": exit_, "no-answer": no_answer,
    "ranker": ranker, "quality": quality, "adapter": adapter,
}  # fmt: skip
