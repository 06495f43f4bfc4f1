"""The verbs that produce negatives, teacher scores and labels from clicks to train on."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from sluice.encoders.foundation.numbers import duration
from sluice.retrieval.cli.teaching.generation import generate, prompt
from sluice.retrieval.cli.teaching.writing import WRITING_COMMANDS
from sluice.retrieval.cli.terminal.options import (
    FORMS,
    Allow,
    Command,
    DatasetName,
    ExecutorName,
    Form,
    Plan,
    allowed,
    argument,
    check_choice,
    executor_of,
    option,
    parse_numbers,
    show_table,
)
from sluice.retrieval.cli.terminal.output import echo

TEACH = """Make teacher scores or queries to train on.

Each writes a file for the YAML of a training run, and continues after an interruption; clicks,
which reads a log for where users looked, starts again.
"""
limit = partial(option, panel="Limits: s is a candidate's score, s+ that of the query's positives")
of_judge = partial(option, panel="Judge: J is its score")
of_choice = partial(option, panel="Choice")


def mine(
    source: Annotated[str, argument("SOURCE", "A retriever's folder, or a TREC run file.")],
    dataset: DatasetName,
    output: Annotated[Path, option("FILE", "The JSON lines {query, pos, neg, ...} to write.")],
    also: Annotated[
        list[str] | None,
        option("SOURCE", "Another source, or random (of the corpus); may be repeated."),
    ] = None,
    split: Annotated[str, option("SPLIT", "The split whose queries get negatives.")] = "train",
    audit: Annotated[
        float | None,
        option(
            "SHARE", "Also hide this share of the positives, and report which modes reject them."
        ),
    ] = None,
    mode: Annotated[
        str | None,
        limit(
            "MODE",
            "A set of limits: naive, shifted, absolute, margin, percentage, window, adaptive "
            "or judge. The options below replace single ones.",
            default="percentage",
        ),
    ] = None,
    max_positive_ratio: Annotated[
        float | None, limit("X", "Keep s < X s+ (TopK-PercPos); 0 turns it off.", default="0.95")
    ] = None,
    positives: Annotated[
        str | None,
        limit(
            "WHICH",
            "Take s+ of several positives as their lowest, mean or highest score.",
            default="lowest",
        ),
    ] = None,
    margin: Annotated[float | None, limit("X", "Keep s < s+ - X.")] = None,
    adaptive_margin: Annotated[str | None, limit("A,B", "Keep s < s+ - (A + B |s+|).")] = None,
    max_score: Annotated[float | None, limit("X", "Keep s < X.")] = None,
    min_score: Annotated[float | None, limit("X", "Keep s >= X.")] = None,
    range_min: Annotated[
        int | None, limit("N", "Skip the first N candidates.", default="0")
    ] = None,
    range_max: Annotated[int | None, limit("N", "Stop after N candidates.")] = None,
    consistency: Annotated[
        int | None, limit("N", "Drop pairs whose positive is not among the first N.")
    ] = None,
    judge: Annotated[
        str | None, of_judge("MODEL", "A cross-encoder's folder or hub id, or a run of its scores.")
    ] = None,
    judge_margin: Annotated[
        float | None, of_judge("X", "Keep J < J+ - X.", default="0.01 in mode judge")
    ] = None,
    judge_gamma: Annotated[
        float | None,
        of_judge("X", "Take those with the highest s (1 - J)^X; J must be within 0 and 1."),
    ] = None,
    judge_depth: Annotated[
        int | None, of_judge("N", "Judge N candidates of each query.", default="50")
    ] = None,
    per_query: Annotated[
        int | None, of_choice("N", "Negatives for each query.", default="4")
    ] = None,
    shares: Annotated[
        str | None,
        of_choice("A,B", "Each source's share of the negatives.", default="none: the best of all"),
    ] = None,
    sampling: Annotated[
        str | None,
        of_choice("HOW", "Choose negatives by top, random or cyclic sampling.", default="top"),
    ] = None,
    step: Annotated[
        int | None, of_choice("N", "Distance between choices of cyclic sampling.", default="5")
    ] = None,
    depth: Annotated[
        int | None,
        of_choice("N", "Candidates for each query.", default="100, or what the limits need"),
    ] = None,
    seed: Annotated[int, of_choice("N", "Random seed for sampling and --audit.")] = 13,
    executor: ExecutorName = "local",
    plan: Plan = False,
    allow: Allow = None,
) -> None:
    """Mine hard negatives for training.

    Negatives are taken from the hits of a retriever or a run, below the score of the positives.
    A summary is printed. Beside FILE, .report.json has all counts of what was kept and dropped, and
    why, and .provenance.parquet every candidate with its source, rank and scores; --audit adds
    .audit.json and .audit.md.

    The settings are those of `negatives: {type: mined}` in a training run's YAML. A task of the
    executor is a slice of the queries, or of the pairs that a judge scores; the files have the same
    bits by any of them. --audit is done in this process.

    Examples:
      sluice mine runs/x/retrievers/bm25 scifact --output negatives.jsonl --per-query 5
      sluice mine runs/x/retrievers/bm25 nfcorpus --output n.jsonl --positives mean
      sluice mine bm25.trec scifact --output n.jsonl --also dense.trec --mode margin --audit 0.1
      sluice mine bm25.trec scifact --output n.jsonl --also random --shares 3,1
    """
    from sluice.retrieval.execution.plan import estimate_of
    from sluice.retrieval.jobs import audit as audit_modes, mine as mine_file

    settings: dict[str, Any] = {
        "mode": mode, "per_query": per_query, "margin": margin, "max_score": max_score,
        "min_score": min_score, "range_min": range_min, "range_max": range_max, "judge": judge,
        "judge_margin": judge_margin, "judge_gamma": judge_gamma, "judge_depth": judge_depth,
        "consistency": consistency, "sampling": sampling, "step": step, "depth": depth,
        "positives": positives,
    }  # fmt: skip
    spec = {key: value for key, value in settings.items() if value is not None}
    if max_positive_ratio is not None:
        spec["max_positive_ratio"] = max_positive_ratio or None
    if adaptive_margin is not None:
        spec["adaptive_margin"] = parse_numbers(adaptive_margin, "--adaptive-margin", "0.02,0.05")
    if shares is not None:
        spec["shares"] = parse_numbers(shares, "--shares", "3,1")
    sources, words, start = [source, *(also or [])], allowed(allow), time.monotonic()
    job = partial(
        mine_file, sources, dataset, output, spec, split=split, seed=seed, allow=words,
        executor=executor_of(executor),
    )  # fmt: skip
    if plan:
        echo(estimate_of(job))
        return
    echo(str(job()))
    took = duration(time.monotonic() - start)
    echo(f"  written: {output} in {took}; counts in {output.with_suffix('.report.json').name}")
    echo(f"  next: train on them with examples: {output}")
    if audit is None:
        return
    from sluice.encoders.foundation.disk.files import write_json, write_text

    report = audit_modes(sources, dataset, spec, share=audit, split=split, seed=seed, allow=words)
    write_json(output.with_suffix(".audit.json"), report.as_dict())
    write_text(output.with_suffix(".audit.md"), report.to_markdown())
    echo(f"\n{report}")


def distil(
    dataset: DatasetName,
    teacher: Annotated[
        list[str],
        option(
            "MODEL",
            "A cross-encoder or encoder (folder or hub id), bm25, a run or a file of scores, or "
            "a language model as YAML: '{type: generative, model: ...}'; several make an ensemble.",
        ),
    ],
    candidates: Annotated[
        str, option("SOURCE", "A run, a retriever's folder, or a training file of sluice mine.")
    ],
    output: Annotated[Path, option("FILE", "The parquet file of scores to write.")],
    depth: Annotated[int, option("N", "Score the first N candidates of a run or retriever.")] = 50,
    split: Annotated[str, option("SPLIT", "The split whose queries are scored.")] = "train",
    weight: Annotated[
        list[float] | None, option("X", "A teacher's weight; one for each.", default="equal")
    ] = None,
    normalise: Annotated[
        str,
        option("METHOD", "Each teacher's scores by query: min-max, z-score or none, as they are."),
    ] = "none",
    scale: Annotated[float, option("X", "What the weighted mean is multiplied by.")] = 1.0,
    shard: Annotated[
        int, option("N", "Pairs saved at a time; an interruption loses one shard.")
    ] = 2048,
    executor: ExecutorName = "local",
    plan: Plan = False,
    allow: Allow = None,
) -> None:
    """Score pairs with a teacher, for distillation.

    The positives and candidates of each query go into parquet with the columns query_id, doc_id and
    score. `teacher: scores.parquet` in a training run's YAML reads them, for margin_mse, kl_div and
    other losses. A task of the executor is one shard; the file has the same bits by any of them.

    Examples:
      sluice teach distil scifact --teacher CROSS --candidates bm25.trec --output scores.parquet
      sluice teach distil scifact --teacher CROSS --candidates bm25.trec --output s.parquet --plan
    """
    from sluice.retrieval.execution.plan import estimate_of
    from sluice.retrieval.training_data.teachers.distil_dataset import (
        distil_dataset,
        teacher_weights,
    )

    job = partial(
        distil_dataset, teacher, dataset, candidates, output, depth=depth, split=split,
        weights=teacher_weights(weight, teacher), normalise=normalise, scale=scale, shard=shard,
        allow=allowed(allow), executor=executor_of(executor),
    )  # fmt: skip
    echo(estimate_of(job) if plan else str(job()))


def clicks(
    logs: Annotated[
        list[Path],
        argument(
            "LOG",
            "A click log (.jsonl, .tsv, .csv or .parquet): query_id or query, doc_id, position, "
            "clicked, or clicks and impressions; session for cascade and dbn.",
        ),
    ],
    model: Annotated[
        str,
        option("MODEL", "counts, pbm (position bias), cascade, or dbn (continues after a click)."),
    ] = "pbm",
    output: Annotated[
        Path | None, option("FILE", "Also write the figures as JSON, which a YAML reads.")
    ] = None,
    form: Form = "text",
) -> None:
    """Estimate from clicks where users looked.

    Prints for each position the impressions, the clicks, the share that was clicked, and the
    probability that a user looks there (the propensity), of which a click model takes what depends
    on the position, not on the document.

    `examples: {type: clicks, file: LOG}` in a training run's YAML learns from the log; there
    `propensities: FILE` reads those of another log, such as one of results in random order.

    Examples:
      sluice teach clicks log.tsv
      sluice teach clicks log.jsonl --model dbn
      sluice teach clicks random.tsv --output propensities.json
    """
    from sluice.encoders.foundation.disk.files import writable, write_json
    from sluice.encoders.foundation.input.bounded import expanded
    from sluice.retrieval.training_data.clicks.models import MODELS, estimate, looked_at, summary

    check_choice(model, "--model", MODELS)
    check_choice(form, "--format", FORMS)
    if output is not None:
        writable(output)  # before a long log is read
    estimated = estimate([expanded(path) for path in logs], model)  # type: ignore[arg-type]
    echo(show_table(looked_at(estimated), form))
    if form == "text":
        echo(summary(estimated))
    if output is not None:
        write_json(output, estimated.as_dict())
        if form == "text":
            echo(f"  next: examples: {{type: clicks, file: LOG, propensities: {output}}}")


COMMANDS: dict[str, Command] = {"mine": mine}
TEACH_COMMANDS: dict[str, Command] = {
    "distil": distil, "prompt": prompt, "generate": generate, **WRITING_COMMANDS, "clicks": clicks,
}  # fmt: skip
