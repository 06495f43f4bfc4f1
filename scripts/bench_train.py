#!/usr/bin/env python
"""Measure training steps against sentence-transformers, and print the table of targets.

    python scripts/bench_train.py
    python scripts/bench_train.py --threads 1 --rounds 3 --data ../shared/data --json FILE
    python scripts/bench_train.py --large
    python scripts/bench_train.py --neighbour

Both sides train the same weights on the same padded features in one process, in turn: 64 queries
of 16 tokens and 64 passages of up to 128, in-batch softmax, clipping, fused AdamW. A ratio is that
of the medians. ``real`` batches have the lengths of a collection's texts (``--data`` or
SLUICE_DATA, else lognormal ones), ``full`` ones have no padding at all. Peak memory of a SPLADE
step is that of two processes that do nothing else, above what they had before it. ``--large``
measures a contrastive batch of 4,096 passages of 128 tokens through the gradient cache, in a
process of its own. ``--neighbour`` measures our steps alone, idle and beside one process that takes
all it can get of a core, in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import MODEL, memory, options as parsed, printed_by, refuse, write_record

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import sluice  # noqa: F401  before torch: it says how threads wait

QUERY, PASSAGE = 16, 128
CACHED = 32  # texts encoded at once under the gradient cache
# Ratio of the two medians, and the target it must reach.
TARGETS = {
    "bfloat16 over float32": ("ours float32", "ours bfloat16", 1.6),
    "ours over sentence-transformers, float32": ("theirs float32", "ours float32", 1.0),
    "ours over sentence-transformers, bfloat16": ("theirs bfloat16", "ours bfloat16", 1 / 0.7),
    "packed over padded, float32": ("padded float32", "ours float32", 1.0),
    "packed over padded, bfloat16": ("padded bfloat16", "ours bfloat16", 1.0),
    "plain over gradient cache, float32": ("ours float32", "cached float32", 1 / 1.35),
    "plain over gradient cache, bfloat16": ("ours bfloat16", "cached bfloat16", 1 / 1.35),
}


def texts_of(folder: str | None, count: int) -> tuple[list[str], list[str]] | None:
    """Return queries and relevant passages of a collection; None without one."""
    from sluice.retrieval import load_dataset

    for name in ("scifact", "feedbackqa") if folder else ():
        if not (Path(str(folder)) / name / "corpus.jsonl").exists():
            continue
        found = load_dataset(str(Path(str(folder)) / name), split="test")
        texts = {document.id: document.full_text for document in found.corpus}
        pairs = [
            (text, texts[next(iter(found.qrels[query]))])
            for query, text in found.queries.items()
            if query in found.qrels and next(iter(found.qrels[query])) in texts
        ][:count]
        if len(pairs) == count:
            return [query for query, _ in pairs], [text for _, text in pairs]
    return None


def features_of(tokenizer: Any, batch: int, folder: str | None, full: bool) -> tuple[Any, Any]:
    """Return padded features of queries and passages."""
    import torch

    found = None if full else texts_of(folder, batch)
    if found is not None:
        return tuple(  # type: ignore[return-value]
            dict(tokenizer(part, padding=True, truncation=True, max_length=length,
                           return_tensors="pt", return_token_type_ids=False))
            for part, length in zip(found, (QUERY, PASSAGE), strict=True)
        )  # fmt: skip
    chance = random.Random(13)
    made = []
    for length in (QUERY, PASSAGE):
        sizes = [
            length if full else min(length, max(4, int(chance.lognormvariate(0, 0.5) * length / 2)))
            for _ in range(batch)
        ]
        mask = (torch.arange(max(sizes))[None] < torch.tensor(sizes)[:, None]).long()
        ids = torch.randint(1_000, 29_000, mask.shape, generator=torch.Generator().manual_seed(13))
        made.append({"input_ids": ids * mask, "attention_mask": mask})
    return made[0], made[1]


def arithmetic(half: bool) -> Any:
    """Return the context of autocast, or none."""
    import torch

    return torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext()


def contrast(vectors: Any) -> Any:
    """Return the in-batch softmax loss."""
    import torch

    queries, passages = vectors["query"].float(), vectors["document"].float()
    return torch.nn.functional.cross_entropy(queries @ passages.T * 20, torch.arange(len(queries)))


class Step:
    """One step of training: a function from a batch to its backward pass, and the optimizer."""

    clock = staticmethod(time.perf_counter)

    def __init__(self, module: Any, backward: Callable[[Any, bool], None]) -> None:
        import torch

        module.train()
        self._module = module
        self._backward = backward
        self._optimizer = torch.optim.AdamW(module.parameters(), lr=1e-6, fused=True)

    def __call__(self, batch: Any, half: bool) -> float:
        """Return the seconds it took."""
        import torch

        start = self.clock()
        self._backward(batch, half)
        torch.nn.utils.clip_grad_norm_(self._module.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return self.clock() - start


def steps() -> tuple[dict[str, Step], Any]:
    """Return the kinds of steps by name, and the tokenizer."""
    from sentence_transformers import SentenceTransformer

    from sluice.encoders import DenseEncoder
    from sluice.encoders.model_files.locate import model_folder
    from sluice.training.loop.large_batches import cached_backward

    encoder = DenseEncoder.from_pretrained(MODEL, device="cpu", document_length=PASSAGE)
    theirs = SentenceTransformer(str(model_folder(MODEL)), device="cpu")

    def by(embed: Callable[[Any, Any], Any]) -> Callable[[Any, bool], None]:
        def backward(batch: Any, half: bool) -> None:
            with arithmetic(half):
                vectors = {
                    name: embed(part, name)
                    for name, part in zip(("query", "document"), batch, strict=True)
                }
            contrast(vectors).backward()

        return backward

    def ours(part: Any, side: Any) -> Any:
        encoder.packed_training = True
        return encoder.embed(part, side)

    def padded(part: Any, side: Any) -> Any:
        encoder.packed_training = False
        return encoder.embed(part, side)

    def cached(batch: Any, half: bool) -> None:
        encoder.packed_training = True
        cached_backward(
            lambda parts: {name: encoder.embed(part, name) for name, part in parts.items()},  # type: ignore[arg-type]
            {"query": batch[0], "document": batch[1]},
            CACHED,
            contrast,
            arithmetic=functools.partial(arithmetic, half),
        )

    found = {
        "ours": Step(encoder.module, by(ours)),
        "padded": Step(encoder.module, by(padded)),
        "cached": Step(encoder.module, cached),
        "theirs": Step(theirs, by(lambda part, _: theirs(dict(part))["sentence_embedding"])),
    }
    return found, encoder.tokenizer


def measure_steps(options: argparse.Namespace) -> dict[str, float]:
    """Return median seconds of each kind of step, by name, arithmetic and batch."""
    kinds, tokenizer = steps()
    seconds: dict[str, list[float]] = {}
    for name in ("real", "full"):
        batch = features_of(tokenizer, options.batch, options.data, name == "full")
        lengths = [int(part["attention_mask"].sum()) for part in batch]
        cells = [part["attention_mask"].numel() for part in batch]
        print(f"{name}: {sum(lengths):,} tokens in {sum(cells):,} places", flush=True)
        for turn in range(options.rounds + 1):  # the first warms up
            for kind, step in kinds.items():
                for half in (False, True):
                    took = step(batch, half)
                    if turn:
                        label = f"{name} {kind} {'bfloat16' if half else 'float32'}"
                        seconds.setdefault(label, []).append(took)
    return {label: statistics.median(found) for label, found in seconds.items()}


def measure_beside(options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of our steps, idle and beside a busy process."""
    from bench_neighbour import beside_neighbour

    kinds, tokenizer = steps()
    batch = features_of(tokenizer, options.batch, options.data, False)
    calls = {
        f"training step {'bfloat16' if half else 'float32'}": functools.partial(
            kinds["ours"], batch, half
        )
        for half in (False, True)
    }
    return beside_neighbour(calls, options.rounds)


def splade_child(kind: str, folder: str, options: argparse.Namespace) -> dict[str, float]:
    """Train two SPLADE steps, and return their peak memory above what was there before, in MB."""
    from sluice.encoders import SpladeEncoder

    if kind == "ours":
        encoder = SpladeEncoder.from_pretrained(folder, device="cpu")
        batch = features_of(encoder.tokenizer, options.batch, options.data, True)

        def backward(batch: Any, half: bool) -> None:
            with arithmetic(half):
                vectors = [
                    encoder.embed(part, side)
                    for part, side in zip(batch, ("query", "document"), strict=True)
                ]
            loss = contrast(dict(zip(("query", "document"), vectors, strict=True)))
            flops = sum((part.mean(0) ** 2).sum() for part in vectors)
            (loss + 1e-4 * flops).backward()

        step = Step(encoder.module, backward)
    else:
        from sentence_transformers import SparseEncoder
        from sentence_transformers.sparse_encoder.losses import (
            SparseMultipleNegativesRankingLoss,
            SpladeLoss,
        )

        model = SparseEncoder(folder, device="cpu")
        loss = SpladeLoss(model, SparseMultipleNegativesRankingLoss(model), 1e-4, 1e-4)
        batch = features_of(model.tokenizer, options.batch, options.data, True)

        def backward(batch: Any, half: bool) -> None:
            import torch

            with arithmetic(half):
                found = loss([dict(part) for part in batch], torch.arange(options.batch))
            sum(found.values()).backward() if isinstance(found, dict) else found.backward()

        step = Step(model, backward)
    before = memory("VmHWM")
    step(batch, options.half)
    took = step(batch, options.half)
    return {"peak": memory("VmHWM"), "step": memory("VmHWM") - before, "seconds": took}


def large_child(options: argparse.Namespace) -> dict[str, float]:
    """Train one step of a large contrastive batch through the gradient cache."""
    found, tokenizer = steps()
    options.batch = options.large
    batch = features_of(tokenizer, options.batch, None, True)
    took = found["cached"](batch, True)
    return {"peak": memory("VmHWM"), "seconds": took}


def child(options: argparse.Namespace, *arguments: str) -> dict[str, float]:
    """Run a measurement in a process of its own."""
    settings = ("--batch", options.batch, "--threads", options.threads)
    return dict(printed_by(__file__, *settings, *arguments))


def masked_model(folder: str) -> None:
    """Save the model under a fresh language-model head."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer
    from transformers.utils import logging

    from sluice.encoders.model_files.locate import model_folder

    logging.set_verbosity_error()  # it tells of the fresh head
    logging.disable_progress_bar()
    source = str(model_folder(MODEL))
    AutoModelForMaskedLM.from_pretrained(source).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def measure_splade(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return what a SPLADE step of both sides takes, in either arithmetic."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        masked_model(folder)
        for half in ((), ("--half",)):
            for kind in ("ours", "theirs"):
                label = f"{kind} {'bfloat16' if half else 'float32'}"
                found[label] = child(options, "--child", kind, "--folder", folder, *half)
                facts = {name: round(value, 2) for name, value in found[label].items()}
                print(f"  splade {label:<20}", facts, flush=True)
    return found


def verdict(met: bool) -> str:
    """Return how a target is reported."""
    return "met" if met else "MISSED"


def table(seconds: dict[str, float]) -> None:
    """Print the seconds and the ratios of the steps."""
    for label, value in seconds.items():
        print(f"  {label:<28}{value:8.3f} s")
    for batch in ("real", "full"):
        for label, (slow, fast, target) in TARGETS.items():
            ratio = seconds[f"{batch} {slow}"] / seconds[f"{batch} {fast}"]
            line = f"{batch}: {label}"
            print(f"{line:<56}{ratio:6.2f}  target {target:.2f}  {verdict(ratio >= target)}")


def main() -> None:
    hidden = argparse.SUPPRESS
    options = parsed(__doc__, {
        "--batch": 64, "--rounds": 5, "--threads": os.cpu_count() or 1,
        "--data": {"default": os.environ.get("SLUICE_DATA")},
        "--large": {"type": int, "nargs": "?", "const": 4_096, "default": 0},
        "--only": {"choices": ("steps", "splade")}, "--json": Path,
        "--neighbour": (False, "idle against a busy machine"),
        "--cpu-time": (False, "for a busy machine, one thread"), "--child": (str, hidden),
        "--folder": (str, hidden), "--half": (False, hidden),
    })  # fmt: skip
    if options.neighbour and options.only == "splade":
        refuse("--neighbour measures dense training steps alone; leave --only splade out")
    import torch

    torch.set_num_threads(options.threads)
    if options.cpu_time:
        Step.clock = staticmethod(time.process_time)
    if options.child == "large":
        print(json.dumps(large_child(options)))
        return
    if options.child:
        print(json.dumps(splade_child(options.child, options.folder, options)))
        return
    report: dict[str, Any] = {}
    if options.neighbour:
        report["neighbour"] = measure_beside(options)
    elif options.only in (None, "steps"):
        report["steps"] = measure_steps(options)
        table(report["steps"])
    if not options.neighbour and options.only in (None, "splade"):
        report["splade"] = found = measure_splade(options)
        for dtype in ("float32", "bfloat16"):
            share = found[f"ours {dtype}"]["step"] / found[f"theirs {dtype}"]["step"]
            line = f"splade {dtype}: step memory, ours of theirs"
            print(f"{line:<56}{share:6.2f}  target 0.50  {verdict(share < 0.5)}")
    if options.large:
        report["large"] = values = child(options, "--child", "large", "--large", str(options.large))
        line = f"{options.large:,} x {PASSAGE} tokens, {values['seconds']:.0f} s: peak MB"
        print(f"{line:<56}{values['peak']:6.0f}  target 8192  {verdict(values['peak'] < 8192)}")
    write_record(options.json, report)


if __name__ == "__main__":
    main()
