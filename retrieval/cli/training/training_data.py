"""The verbs that produce negatives, teacher scores and labels from clicks to train on."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from sluice.encoders.foundation.numbers import duration
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import (
    Allow,
    Command,
    DatasetName,
    ExecutorName,
    Form,
    Plan,
    Shown,
    allowed,
    executor_of,
    parse_numbers,
    show_table,
    takes,
)
from sluice.retrieval.cli.training.writing import WRITING_COMMANDS, generate, prompt

TEACH = """Make teacher scores or queries to train on.

Each writes a file for the YAML of a training run, and continues after an interruption; clicks,
which reads a log for where users looked, starts again.
"""


@takes(
    "sluice.training.negatives.settings:Mining",
    panels={
        "Limits: s is a candidate's score, s+ that of the query's positives": "mode positives"
        " max_positive_ratio margin adaptive_margin max_score min_score range_min range_max"
        " consistency",
        "Judge: J is its score": "judge judge_margin judge_gamma judge_depth",
        "Choice": "per_query shares sampling step depth seed",
    },
    judge_margin=Shown("0.01 in mode judge"),
)
def mine(
    source: Annotated[str, "A retriever's folder, or a TREC run file."],
    dataset: DatasetName,
    *,
    output: Annotated[Path, "The JSON lines {query, pos, neg, ...} to write."],
    also: Annotated[
        list[str] | None, "SOURCE", "Another source, or random (of the corpus); may be repeated."
    ] = None,
    split: Annotated[str, "The split whose queries get negatives."] = "train",
    audit: Annotated[
        float | None,
        "SHARE",
        "Also hide this share of the positives, and report which modes reject them.",
    ] = None,
    mode: Annotated[
        str | None,
        "A set of limits: naive, shifted, absolute, margin, percentage, window, adaptive "
        "or judge. The options below replace single ones.",
        Shown("percentage"),
    ] = None,
    max_positive_ratio: Annotated[
        float | None, "Keep s < X s+ (TopK-PercPos); 0 turns it off.", Shown("0.95")
    ] = None,
    adaptive_margin: Annotated[str | None, "A,B", "Keep s < s+ - (A + B |s+|)."] = None,
    judge: Annotated[
        str | None, "MODEL", "A cross-encoder's folder or hub id, or a run of its scores."
    ] = None,
    shares: Annotated[
        str | None,
        "A,B",
        "Each source's share of the negatives.",
        Shown("none: the best of all"),
    ] = None,
    depth: Annotated[
        int | None, "Candidates for each query.", Shown("100, or what the limits need")
    ] = None,
    seed: Annotated[int, "Random seed for sampling and --audit."] = 13,
    executor: ExecutorName = "local",
    plan: Plan = False,
    allow: Allow = None,
    **values: Any,
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
    from sluice.retrieval.execution.executor import estimate_of
    from sluice.retrieval.jobs import audit as audit_modes, mine as mine_file

    own = {"mode": mode, "judge": judge, "depth": depth}
    spec = {**values, **{key: value for key, value in own.items() if value is not None}}
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


@takes("sluice.retrieval.training_data.teachers.distil_dataset:distil_dataset")
def distil(
    dataset: DatasetName,
    *,
    teacher: Annotated[
        list[str],
        "MODEL",
        "A cross-encoder or encoder (folder or hub id), bm25, a run or a file of scores, or a "
        "language model as YAML: '{type: generative, model: ...}'; several make an ensemble.",
    ],
    candidates: Annotated[
        str, "SOURCE", "A run, a retriever's folder, or a training file of sluice mine."
    ],
    output: Annotated[Path, "The parquet file of scores to write."],
    weight: Annotated[
        list[float] | None, "A teacher's weight; one for each.", Shown("equal")
    ] = None,
    executor: ExecutorName = "local",
    plan: Plan = False,
    allow: Allow = None,
    **values: Any,
) -> None:
    """Score pairs with a teacher, for distillation.

    The positives and candidates of each query go into parquet with the columns query_id, doc_id and
    score. `teacher: scores.parquet` in a training run's YAML reads them, for margin_mse, kl_div and
    other losses. A task of the executor is one shard; the file has the same bits by any of them.

    Examples:
      sluice teach distil scifact --teacher CROSS --candidates bm25.trec --output scores.parquet
      sluice teach distil scifact --teacher CROSS --candidates bm25.trec --output s.parquet --plan
    """
    from sluice.retrieval.execution.executor import estimate_of
    from sluice.retrieval.training_data.teachers.distil_dataset import (
        distil_dataset,
        teacher_weights,
    )

    job = partial(
        distil_dataset, teacher, dataset, candidates, output, allow=allowed(allow),
        weights=teacher_weights(weight, teacher), executor=executor_of(executor), **values,
    )  # fmt: skip
    echo(estimate_of(job) if plan else str(job()))


@takes("sluice.retrieval.training_data.clicks.models:estimate")
def clicks(
    logs: Annotated[
        list[Path],
        "LOG",
        "A click log (.jsonl, .tsv, .csv or .parquet): query_id or query, doc_id, "
        "position, clicked, or clicks and impressions; session for cascade and dbn.",
    ],
    *,
    output: Annotated[Path | None, "Also write the figures as JSON, which a YAML reads."] = None,
    form: Form = "text",
    **values: Any,
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
    from sluice.encoders.foundation.bounded_input import expanded
    from sluice.encoders.foundation.disk.files import writable, write_json
    from sluice.retrieval.training_data.clicks.models import estimate, looked_at, summary

    if output is not None:
        writable(output)  # before a long log is read
    estimated = estimate([expanded(path) for path in logs], **values)
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
