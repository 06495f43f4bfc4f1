#!/usr/bin/env python
"""Measure encoding against sentence-transformers, and print the table of targets.

    python scripts/bench_encode.py
    python scripts/bench_encode.py --texts 256 --rounds 7 --data ../shared/data --json FILE
    python scripts/bench_encode.py --only mixed --model mpnet --length 384 --processor
    python scripts/bench_encode.py --neighbour
    python scripts/bench_encode.py --families

Both sides encode the same texts with the same weights in one process, in turn; a ratio is the
median over the rounds of their time over ours. sentence-transformers runs ``encode`` or ``predict``
with its defaults (batches of 32); how far its vectors are from ours is printed beside the ratio.
Peak memory is that of two processes that do nothing else. ``--data`` is a folder of collections in
BEIR layout; without it the texts come from the interpreter's own documentation. Rows of
dense vectors are of ``--model``, at ``--length`` tokens; ``--processor`` counts their processor
seconds, for one thread on a busy machine. ``--neighbour`` measures our side alone, idle and beside
one process that takes all it can get of a core, in turn.
``--families`` compares both on each family of published encoders, with random weights in four
layers of 256 dimensions, over texts of mixed lengths (targets: 1x, 1.5x), and says how much of the
peer's batches is padding.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import (
    MODEL,
    interleaved,
    memory,
    options as parsed,
    printed_by,
    ratios,
    write_record,
)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import sluice  # noqa: F401  before torch: it says how threads wait

LENGTH = 256
COLLECTIONS = ("scifact", "nfcorpus")
TARGETS = {
    "passages bfloat16": (2.4, 3.0), "passages float32": (1.35, 2.8),
    "passages int8": (4.5, 6.0),
    "splade": (2.0, 3.0), "cross-encoder": (2.0, 3.0), "mixed": (2.0, 3.0), "family": (1.0, 1.5),
}  # fmt: skip
MEMORY_TARGET = 0.25


def passages(count: int, words: int = 150, seed: int = 0) -> list[str]:
    """Return passages of documentation, lognormal in length around ``words`` (200 tokens)."""
    from sluice.retrieval import load_dataset

    said = " ".join(d.full_text for d in load_dataset("pydocs", split="test").corpus).split()
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        length = int(min(400, max(12, chance.lognormvariate(5.0106, 0.55) * words / 150)))
        start = chance.randrange(len(said) - length)
        found.append(" ".join(said[start : start + length]))
    return found


def collection(folder: Path, count: int) -> list[str]:
    """Return a spread of ``count`` documents of a collection."""
    from sluice.retrieval import load_dataset

    documents = [document.full_text for document in load_dataset(str(folder), split="test").corpus]
    return random.Random(0).sample(documents, min(count, len(documents)))


def rows(
    label: str, unit: str, count: int, calls: dict[str, Callable[[], Any]], rounds: int, note: str,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield one row for each call after the first, which is the peer's."""
    peer, *ours = calls
    found = ratios(interleaved(calls, rounds, clock), peer, count)
    for name in ours:
        yield {
            "what": f"{label} {name}".strip(), "unit": unit, **found[name],
            "ours": found[name]["rate"], "theirs": found[peer]["rate"], "note": note,
        }  # fmt: skip


def against(
    label: str, unit: str, count: int, theirs: Callable[[], Any], ours: Callable[[Any], Any],
    rounds: int, note: str, apart: Callable[[Any, Any], str],
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return rows of what ``ours`` makes in each arithmetic, and how far its result is."""
    types: tuple[Any, ...] = ("float32", "bfloat16", "int8")
    calls: dict[str, Callable[[], Any]] = {"theirs": theirs, **{t: ours(t) for t in types}}
    expected = theirs()
    notes = ", ".join(f"{note} {kind} {apart(calls[kind](), expected)}" for kind in types)
    return list(rows(label, unit, count, calls, rounds, notes, clock))


def least_cosine(mine: Any, expected: Any) -> str:
    return f"{(mine * expected).sum(axis=1).min():.6f}"


def dense(texts: list[str], label: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of dense encoding."""
    from sentence_transformers import SentenceTransformer

    from sluice.encoders import DenseEncoder
    from sluice.encoders.model_files.locate import model_folder

    model = SentenceTransformer(str(model_folder(options.model)), device="cpu")
    model.max_seq_length = options.length

    def ours(dtype: Any) -> Callable[[], Any]:
        encoder = DenseEncoder.from_pretrained(
            options.model, dtype=dtype, document_length=options.length, device="cpu"
        )
        return partial(encoder.encode_documents, texts)

    theirs = partial(model.encode, texts, show_progress_bar=False)
    return against(
        label, "texts/s", len(texts), theirs, ours, options.rounds, "least cosine", least_cosine,
        time.process_time if options.processor else time.perf_counter,
    )  # fmt: skip


def families(names: list[str], count: int, rounds: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the row of each family of published encoders, in float32."""
    import numpy as np
    from bench_encode_families import folders
    from sentence_transformers import SentenceTransformer

    from sluice.encoders.model_files.registry import open_encoder

    # 3 to 40 words: the families' tokenizers know few words, and make about five tokens of each.
    texts = [" ".join(text.split()[::4]) for text in passages(count, words=60)]
    for name, folder in folders():
        if names and name not in names:
            continue
        theirs = SentenceTransformer(str(folder), device="cpu")
        ours = open_encoder(folder, device="cpu")
        calls: dict[str, Callable[[], Any]] = {
            "theirs": lambda model=theirs: model.encode_document(texts, show_progress_bar=False),
            "float32": lambda encoder=ours: encoder.encode_documents(texts),
        }
        mine, expected = calls["float32"](), calls["theirs"]()
        lengths = np.linalg.norm(expected, axis=1, keepdims=True) if ours.normalize else 1.0
        apart = float(np.abs(mine - expected / lengths).max())
        wasted = padding_share(texts, ours.tokens(texts, "document").ids)
        note = f"largest difference {apart:.2g}, padding of the peer {wasted:.0%}"
        yield list(rows(f"family {name}", "texts/s", len(texts), calls, rounds, note))


def padding_share(texts: list[str], tokens: Sequence[Sequence[int]], batch: int = 32) -> float:
    """Return the share of padding in batches of texts by their characters, as the peer's are."""
    order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
    lengths = [len(tokens[row]) for row in order]
    groups = [lengths[start : start + batch] for start in range(0, len(lengths), batch)]
    return 1 - sum(lengths) / sum(len(group) * max(group) for group in groups)


def splade_folder(texts: list[str]) -> str:
    """Return a SPLADE model folder made from the dense model's weights, in closed form."""
    from sluice.encoders import start_splade

    folder = Path(tempfile.gettempdir()) / f"sluice-bench-splade-{os.getpid()}"
    start_splade(MODEL, texts, document_length=LENGTH).save_pretrained(folder)
    return str(folder)


def splade(folder: str, texts: list[str], rounds: int) -> list[dict[str, Any]]:
    """Return the rows of SPLADE document encoding."""
    import numpy as np
    from sentence_transformers import SparseEncoder

    from sluice.encoders import SpladeEncoder

    model = SparseEncoder(folder, device="cpu")
    model.max_seq_length = LENGTH
    return against(
        "splade", "texts/s", len(texts), partial(model.encode, texts, show_progress_bar=False),
        lambda t: partial(SpladeEncoder.from_pretrained(folder, dtype=t).encode_documents, texts),
        rounds, "largest difference",
        lambda mine, other: f"{np.abs(mine.toarray() - other.to_dense().numpy()).max():.2g}",
    )  # fmt: skip


def cross(texts: list[str], rounds: int) -> list[dict[str, Any]]:
    """Return the rows of cross-encoder scoring: queries of about ten words with passages."""
    import numpy as np
    from sentence_transformers import CrossEncoder as Theirs

    from sluice.encoders import CrossEncoder

    folder = Path(tempfile.gettempdir()) / f"sluice-bench-cross-{os.getpid()}"
    CrossEncoder.from_pretrained(MODEL, max_length=LENGTH).save_pretrained(folder)
    pairs = [(" ".join(text.split()[3:13]), text) for text in texts]
    predict = Theirs(str(folder), device="cpu").predict
    return against(
        "cross-encoder", "pairs/s", len(pairs), partial(predict, pairs, show_progress_bar=False),
        lambda t: partial(CrossEncoder.from_pretrained(folder, dtype=t).score, pairs),
        rounds, "largest difference", lambda mine, other: f"{np.abs(mine - other).max():.2g}",
    )  # fmt: skip


def beside(texts: list[str], rounds: int) -> dict[str, Any]:
    """Return the seconds of our encoding and scoring, idle and beside a busy process."""
    from bench_neighbour import beside_neighbour

    from sluice.encoders import CrossEncoder, DenseEncoder

    options: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16"}
    dense = DenseEncoder.from_pretrained(MODEL, document_length=LENGTH, **options)
    cross = CrossEncoder.from_pretrained(MODEL, max_length=LENGTH, **options)
    short = [" ".join(text.split()[3:13]) for text in texts]
    pairs = list(zip(short, texts, strict=True))
    calls: dict[str, Callable[[], Any]] = {
        "encode passages, bfloat16": lambda: dense.encode_documents(texts),
        "encode queries one by one, bfloat16": lambda: [dense.encode_queries([q]) for q in short],
        "score pairs, bfloat16": lambda: cross.score(pairs),
    }
    return beside_neighbour(calls, rounds)


def peak(side: str, folder: str, count: int) -> None:
    """Encode with one side's SPLADE in this process and print its memory in MB, before and most."""
    texts = passages(count)
    if side == "ours":
        from sluice.encoders import SpladeEncoder

        ours = SpladeEncoder.from_pretrained(folder)
        encode: Callable[[list[str]], Any] = ours.encode_documents
    else:
        from sentence_transformers import SparseEncoder

        theirs = SparseEncoder(folder, device="cpu")
        theirs.max_seq_length = LENGTH
        encode = theirs.encode
    encode(texts[:1])
    before = memory("VmRSS")
    encode(texts)
    print(json.dumps([before, memory("VmHWM")]))


def peaks(folder: str, count: int) -> dict[str, Any]:
    """Return the peak memory of both sides' SPLADE encoding, each in a process of its own."""
    return {
        side: printed_by(__file__, "--peak", side, folder, "--texts", count)
        for side in ("ours", "theirs")
    }


def verdict(row: dict[str, Any]) -> str:
    """Return which target a row has met."""
    wanted = next((t for name, t in TARGETS.items() if row["what"].startswith(name)), None)
    if wanted is None:
        return ""
    must, stretch = wanted
    if row["ratio"] >= stretch:
        return f"stretch {stretch:g}x met"
    return f"must {must:g}x met" if row["ratio"] >= must else f"below {must:g}x"


def memory_line(found: dict[str, Any]) -> str:
    """Return the sentence about both sides' peak memory."""
    (ours, most), (theirs, their_most) = found["ours"], found["theirs"]
    share, above = most / their_most, (most - ours) / (their_most - theirs)
    return (
        f"\nSPLADE peak memory: {most:,.0f} MB against {their_most:,.0f} MB: {share:.2f}x of "
        f"the process (target {MEMORY_TARGET:g}x), {above:.2f}x of what encoding adds to the "
        f"loaded model ({most - ours:,.0f} and {their_most - theirs:,.0f} MB)"
    )


def compared(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both sides, print the tables, and return their rows."""
    import torch

    print(
        f"{torch.get_num_threads()} threads, {options.rounds} rounds, torch {torch.__version__}\n"
    )
    print("| | Sluice | sentence-transformers | ratio (least to most) | target | |")
    print("|---|---|---|---|---|---|", flush=True)
    texts = passages(options.texts)
    found: list[dict[str, Any]] = []
    peak_memory = {}

    def show(rows: list[dict[str, Any]]) -> None:
        found.extend(rows)
        for row in rows:
            print(
                f"| {row['what']} | {row['ours']:.1f} {row['unit']} | {row['theirs']:.1f} | "
                f"**{row['ratio']:.2f}x** ({row['least']:.2f} to {row['most']:.2f}) | "
                f"{verdict(row)} | {row['note']} |",
                flush=True,
            )

    if options.families is not None:
        for each in families(options.families, options.texts, options.rounds):
            show(each)
        mean = statistics.geometric_mean(row["ratio"] for row in found)
        print(f"\nGeometric mean of {len(found)} families: {mean:.2f}x")
        return {"rows": found, "mean": mean}
    if "passages" in options.only:
        show(dense(texts, "passages", options))
    if "mixed" in options.only:
        for name in COLLECTIONS:
            if (options.data / name).is_dir():
                real = collection(options.data / name, 2 * options.texts)
                show(dense(real, f"mixed {name}", options))
    if "cross" in options.only:
        show(cross(texts, options.rounds))
    if "splade" in options.only:
        folder = splade_folder(texts)
        show(splade(folder, texts, options.rounds))
        peak_memory = peaks(folder, options.texts)
    if peak_memory:
        print(memory_line(peak_memory))
    return {"rows": found, "memory": peak_memory}


def main() -> int:
    options = parsed(__doc__, {
        "--texts": 128, "--rounds": 5, "--data": Path("../shared/data"),
        "--only": {"nargs": "*", "default": ["passages", "mixed", "splade", "cross"]},
        "--model": MODEL, "--length": LENGTH, "--processor": (False, "processor seconds"),
        "--json": Path, "--neighbour": (False, "idle against a busy machine"),
        "--families": ({"nargs": "*", "metavar": "NAME"}, "these families of encoders; alone: all"),
        "--peak": {"nargs": 2, "metavar": ("SIDE", "FOLDER")},
    })  # fmt: skip
    if options.peak:
        peak(*options.peak, options.texts)
        return 0
    if options.neighbour:
        report = {"neighbour": beside(passages(options.texts), options.rounds)}
    else:
        report = compared(options)
    write_record(options.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
