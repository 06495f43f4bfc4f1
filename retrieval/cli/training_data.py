"""``mine`` and ``teach``: negatives, teacher scores and queries, for trainings to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.retrieval.cli.options import Command, DatasetName, check_choice, parse_numbers

TEACH = """Make teacher scores or queries to train on.

Each writes a file that a training's YAML names, and continues after a kill.
"""
BASELINE = "key-sentences"
LIMITS = "Limits: s is a candidate's score, s+ that of the query's positives"
JUDGE = "Judge: J is its score"
CHOICE = "Choice"
BEAMS = "Diverse beam search"
SAMPLING = "Sampling"


def mine(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A retriever's folder, or a TREC run file.")
    ],
    dataset: DatasetName,
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="The JSON lines {query, pos, neg, ...} to write.")
    ],
    also: Annotated[
        list[str] | None, typer.Option(metavar="SOURCE", help="A further source; may be repeated.")
    ] = None,
    split: Annotated[
        str, typer.Option(metavar="SPLIT", help="The split whose queries get negatives.")
    ] = "train",
    audit: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Also hide this share of the positives, and report which modes reject them.",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            show_default="percentage",
            help="A set of limits: naive, shifted, absolute, margin, percentage, window, adaptive "
            "or judge. The options below replace single ones.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    max_positive_ratio: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            show_default="0.95",
            help="Keep s < X s+ (TopK-PercPos); 0 turns it off.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    positives: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            show_default="lowest",
            help="Take s+ of several positives as their lowest, mean or highest score.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(metavar="X", help="Keep s < s+ - X.", rich_help_panel=LIMITS),
    ] = None,
    adaptive_margin: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Keep s < s+ - (A + B |s+|).", rich_help_panel=LIMITS),
    ] = None,
    max_score: Annotated[
        float | None, typer.Option(metavar="X", help="Keep s < X.", rich_help_panel=LIMITS)
    ] = None,
    min_score: Annotated[
        float | None, typer.Option(metavar="X", help="Keep s >= X.", rich_help_panel=LIMITS)
    ] = None,
    range_min: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="0",
            help="Skip the first N candidates.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    range_max: Annotated[
        int | None,
        typer.Option(metavar="N", help="Stop after N candidates.", rich_help_panel=LIMITS),
    ] = None,
    consistency: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Drop pairs whose positive is not among the first N.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A cross-encoder's folder or hub id, or a run of its scores.",
            rich_help_panel=JUDGE,
        ),
    ] = None,
    judge_margin: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            show_default="0.01 in mode judge",
            help="Keep J < J+ - X.",
            rich_help_panel=JUDGE,
        ),
    ] = None,
    judge_depth: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="50",
            help="Judge N candidates of each query.",
            rich_help_panel=JUDGE,
        ),
    ] = None,
    per_query: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="4",
            help="Negatives for each query.",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            show_default="top",
            help="Choose negatives by top, random or cyclic sampling.",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="5",
            help="Distance between choices of cyclic sampling.",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="100, or what the limits need",
            help="Candidates for each query.",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", help="Random seed for sampling and --audit.", rich_help_panel=CHOICE
        ),
    ] = 13,
) -> None:
    """Mine hard negatives for training.

    Negatives are taken from the hits of a retriever or a run, below the score of the positives. It
    prints what was kept and dropped, and why. Beside FILE, .report.json and .provenance.parquet
    have every candidate, who found it, its rank and scores; --audit adds .audit.json and .audit.md.

    The settings are those of `negatives: {type: mined}` in a training's YAML.

    Examples:
      sluice mine runs/x/retrievers/bm25 scifact --output negatives.jsonl --per-query 5
      sluice mine runs/x/retrievers/bm25 nfcorpus --output n.jsonl --positives mean
      sluice mine bm25.trec scifact --output n.jsonl --also dense.trec --mode margin --audit 0.1
    """
    from sluice.retrieval.jobs import audit as audit_modes
    from sluice.retrieval.jobs import mine as mine_file

    settings: dict[str, Any] = {
        "mode": mode, "per_query": per_query, "margin": margin, "max_score": max_score,
        "min_score": min_score, "range_min": range_min, "range_max": range_max, "judge": judge,
        "judge_margin": judge_margin, "judge_depth": judge_depth, "consistency": consistency,
        "sampling": sampling, "step": step, "depth": depth, "positives": positives,
    }  # fmt: skip
    spec = {key: value for key, value in settings.items() if value is not None}
    if max_positive_ratio is not None:
        spec["max_positive_ratio"] = max_positive_ratio or None
    if adaptive_margin is not None:
        spec["adaptive_margin"] = parse_numbers(adaptive_margin, "--adaptive-margin", "0.02,0.05")
    sources = [source, *(also or [])]
    typer.echo(str(mine_file(sources, dataset, output, spec, split=split, seed=seed)))
    if audit is None:
        return
    from sluice.encoders.foundation.files import write_json, write_text

    report = audit_modes(sources, dataset, spec, share=audit, split=split, seed=seed)
    write_json(output.with_suffix(".audit.json"), report.as_dict())
    write_text(output.with_suffix(".audit.md"), report.to_markdown())
    typer.echo(f"\n{report}")


def distil(
    dataset: DatasetName,
    teacher: Annotated[
        list[str],
        typer.Option(
            metavar="MODEL",
            help="A cross-encoder or encoder (folder or hub id), or a run file; repeat it for an "
            "ensemble.",
        ),
    ],
    candidates: Annotated[
        str,
        typer.Option(
            metavar="SOURCE", help="A run, a retriever's folder, or a training file of sluice mine."
        ),
    ],
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="The parquet file of scores to write.")
    ],
    depth: Annotated[
        int, typer.Option(metavar="N", help="Score the first N candidates of a run or retriever.")
    ] = 50,
    split: Annotated[
        str, typer.Option(metavar="SPLIT", help="The split whose queries are scored.")
    ] = "train",
    weight: Annotated[
        list[float] | None,
        typer.Option(metavar="X", show_default="equal", help="Repeat it: one for each teacher."),
    ] = None,
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Turn each teacher's scores into z-scores by query.")
    ] = False,
    shard: Annotated[
        int, typer.Option(metavar="N", help="Pairs saved at a time; a kill loses one shard.")
    ] = 2048,
) -> None:
    """Score pairs with a teacher, for distillation.

    The positives and candidates of each query go into parquet with the columns query_id, doc_id and
    score. A training reads them by `teacher: scores.parquet`, for margin_mse, kl_div and other
    losses.

    Example:
      sluice teach distil scifact --teacher CROSS --candidates bm25.trec --output scores.parquet
    """
    from sluice.retrieval.training_data.teachers.distil_dataset import (
        distil_dataset,
        teacher_weights,
    )

    report = distil_dataset(
        teacher, dataset, candidates, output, depth=depth, split=split,
        weights=teacher_weights(weight, teacher), normalise=normalise, shard=shard,
    )  # fmt: skip
    typer.echo(str(report))


def generate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A generator's folder or hub id (T5, BART, GPT, ...), or key-sentences, which "
            "copies titles and sentences of the document.",
        ),
    ],
    dataset: DatasetName,
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="The training rows to write, JSON lines.")
    ],
    expanded: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the corpus too, each text with its queries."),
    ] = None,
    consistency: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Keep a query only if BM25 ranks its document among the first N."
        ),
    ] = None,
    queries: Annotated[
        int, typer.Option(metavar="N", help="Queries (groups of beams) for each document.")
    ] = 5,
    documents: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="all", help="Take the first N documents only."),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The model's input, with {text} for the document."),
    ] = None,
    length: Annotated[int, typer.Option(metavar="N", help="Most tokens of a query.")] = 32,
    document_length: Annotated[
        int, typer.Option(metavar="N", help="Most tokens of a document.")
    ] = 384,
    by: Annotated[
        str,
        typer.Option(metavar="HOW", help="Decode by beams (diverse beam search) or sampling."),
    ] = "beams",
    batch: Annotated[int, typer.Option(metavar="N", help="Documents in one batch.")] = 8,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda, ...")] = "cpu",
    beams: Annotated[
        int, typer.Option(metavar="N", help="Beams in each group.", rich_help_panel=BEAMS)
    ] = 2,
    penalty: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Penalty for a token that an earlier group chose.",
            rich_help_panel=BEAMS,
        ),
    ] = 1.0,
    top: Annotated[
        int,
        typer.Option(
            metavar="N", help="Sample from the N likeliest tokens.", rich_help_panel=SAMPLING
        ),
    ] = 10,
    temperature: Annotated[
        float,
        typer.Option(metavar="X", help="Above 1 is more even.", rich_help_panel=SAMPLING),
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Random seed.", rich_help_panel=SAMPLING)
    ] = 13,
) -> None:
    """Generate queries for documents.

    The queries serve as training data, read by `examples: {file: queries.jsonl}`, or expand the
    documents (doc2query).

    Examples:
      sluice teach generate runs/doc2query scifact --output queries.jsonl --consistency 30
      sluice teach generate key-sentences scifact --output q.jsonl --expanded corpus.jsonl
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.training_data.query_generation import generate_queries

    check_choice(by, "--by", ("beams", "sampling"))
    data = load_dataset(dataset, None)
    generator: Any
    if model == BASELINE:
        from sluice.training.generation.query_generation import KeySentences

        generator = KeySentences(queries)
    else:
        from sluice.training.generation.decoding import DiverseBeams, TopKSampling
        from sluice.training.generation.query_generation import ModelGenerator

        way = (
            DiverseBeams(groups=queries, beams=beams, penalty=penalty, length=length)
            if by == "beams"
            else TopKSampling(samples=queries, top=top, temperature=temperature, length=length)
        )
        generator = ModelGenerator.from_pretrained(
            model, by=way, prompt=prompt, document_length=document_length, batch=batch,
            device=device, seed=seed,
        )  # fmt: skip
    report = generate_queries(
        generator, data, output,
        consistency=consistency, expanded=expanded, documents=documents,
    )  # fmt: skip
    typer.echo(str(report))


COMMANDS: dict[str, Command] = {"mine": mine}
TEACH_COMMANDS: dict[str, Command] = {"distil": distil, "generate": generate}
