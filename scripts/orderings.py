#!/usr/bin/env python
"""Orderings that papers promise, each on the cheapest collection that can show it.

    SLUICE_DATA=FOLDER .venv/bin/python scripts/orderings.py bixse --seeds 13 14 15
    SLUICE_DATA=FOLDER .venv/bin/python scripts/orderings.py --show

Names: layers (2D Matryoshka at half the layers), bixse (under wrong positives), psl (under hidden
positives), clp (cosines to the queries that negatives answer), star (stability), pooling (SPLADE,
max over sum), mining (thresholds, with planted false negatives), cloze (ICT > MLM > none), links
(WLP, ICT, BFS, none; from the whole corpus: for ``--dataset pydocs``, whose texts name others). All
train on a cut of a collection's train split and are measured on its dev queries; no test split is
read. A result that is there is not made again. ``--show`` prints a table and a verdict for each
claim: it holds if each of three or more seeds says so and, where there is a value for each query,
a paired t-test over queries (means over seeds) has p < .05.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import options, refuse, same_settings, write_whole
from orderings_bench import (
    INFO_NCE,
    MODEL,
    NDCG,
    Bench,
    Ordering,
    Trained,
    Values,
    over,
    results_of,
    table,
)  # fmt: skip
from orderings_losses import BIXSE, CLP, MINING, PSL, STAR

# Half the layers


def layers_of(loss: Values) -> Trained:
    def train(bench: Bench, seed: int) -> Values:
        from sluice.training import pair_examples

        encoder = bench.encoder(layers=2 * bench.layers)
        half, values = bench.layers, {}
        if loss:
            examples = pair_examples(bench.queries, bench.positives, bench.texts)
            bench.fitted(encoder, examples, loss, seed)
        with tempfile.TemporaryDirectory() as folder:
            encoder.save_pretrained(Path(folder) / "model")
            for name, cut in {
                "": {}, "half the layers": {"layers": half},
                "half, a quarter of the dimensions": {"layers": half, "dim": encoder.dim // 4},
            }.items():  # fmt: skip
                short = bench.encoder(Path(folder) / "model", **cut)
                values[f"{NDCG} {name}".strip()] = bench.measured(short)
        return values

    return train


HALF, QUARTER = f"{NDCG} half the layers", f"{NDCG} half, a quarter of the dimensions"
LAYERS = Ordering(
    "2D Matryoshka at half the layers",
    {
        "untrained": layers_of({}),
        "plain": layers_of(INFO_NCE),
        "matryoshka": layers_of({"type": "matryoshka", "loss": INFO_NCE}),
        "matryoshka_2d": layers_of({"type": "matryoshka_2d", "loss": INFO_NCE}),
    },
    [
        over("2D over plain, half the layers", HALF, "matryoshka_2d", "plain"),
        over("2D over 1D, half the layers", HALF, "matryoshka_2d", "matryoshka"),
        over("2D over plain, a quarter of the dimensions", QUARTER, "matryoshka_2d", "plain"),
        over("2D over 1D, a quarter of the dimensions", QUARTER, "matryoshka_2d", "matryoshka"),
    ],
)


# SPLADE


def pooled(pooling: str) -> Trained:
    def train(bench: Bench, seed: int) -> Values:
        from sluice.encoders.splade.start import start_splade
        from sluice.training import pair_examples

        query, document = bench.lengths
        with tempfile.TemporaryDirectory() as folder:
            bench.encoder().save_pretrained(Path(folder) / "model")
            encoder = start_splade(
                Path(folder) / "model", bench.texts.values(), positions=20_000, terms=120,
                pooling=pooling, query_length=query, document_length=document, dtype="bfloat16",
            )  # fmt: skip
        examples = pair_examples(bench.queries, bench.positives, bench.texts, bench.mined())
        bench.fitted(
            encoder, examples, {"type": "info_nce", "temperature": 0.3}, seed,
            sparsity={"target_query_terms": 30, "target_doc_terms": 120},
            head_learning_rate=2e-4, trainer={"per_device_train_batch_size": bench.batch // 2},
        )  # fmt: skip
        vectors = Held(
            encoder.encode_queries(list(bench.dev_queries.values())),
            encoder.encode_documents(list(bench.texts.values())),
        )
        pruned = vectors.pruned(FLOPS)
        return {
            NDCG: bench.measured(vectors), AT_EQUAL: bench.measured(pruned),
            "terms of a query": vectors.queries.nnz / vectors.queries.shape[0],
            "terms of a document": vectors.documents.nnz / vectors.documents.shape[0],
            "FLOPS": vectors.flops, "FLOPS, pruned": pruned.flops,
        }  # fmt: skip

    return train


FLOPS = 8.0  # below what either pooling has at these numbers of terms
AT_EQUAL = f"{NDCG} at {FLOPS:g} FLOPS"


class Held(NamedTuple):
    """The vectors of a bench's dev queries and documents, in the place of their encoder."""

    queries: Any
    documents: Any

    def encode_queries(self, texts: object) -> Any:
        """Return the queries' vectors."""
        return self.queries

    def encode_documents(self, texts: object) -> Any:
        """Return the documents' vectors."""
        return self.documents

    @property
    def flops(self) -> float:
        """Products of a query with a document, expected (Paria et al. 2020): sum_t q_t d_t."""
        sides = (self.queries, self.documents)
        query, document = (s.astype(bool).sum(axis=0) / s.shape[0] for s in sides)
        return float(query @ document)

    def pruned(self, flops: float) -> Held:
        """Leave out the lightest weights of documents until no more than ``flops`` remain."""
        weights, least, most = np.sort(self.documents.data), 0, self.documents.nnz
        while least < most:
            middle = (least + most) // 2
            if self._above(weights[middle]).flops <= flops:
                most = middle
            else:
                least = middle + 1
        return self if self.flops <= flops else self._above(weights[least])

    def _above(self, weight: float) -> Held:
        documents = self.documents.copy()
        documents.data[documents.data <= weight] = 0
        documents.eliminate_zeros()
        return self._replace(documents=documents)


POOLING = Ordering(
    "SPLADE: max over sum, both held at 30 / 120 terms",
    {"sum": pooled("sum"), "max": pooled("max")},
    [over("max over sum", NDCG, "max", "sum"), over("max over sum", AT_EQUAL, "max", "sum")],
)


# Pre-training

LARGE = {"per_device_train_batch_size": 64, "learning_rate": 1e-3, "max_steps": 120}


def pretrained(task: str, questions: int = 64) -> Trained:
    """A fresh BERT, pre-trained on the documents, then trained with a few queries."""

    def train(bench: Bench, seed: int) -> Values:
        from sluice.encoders import SpladeEncoder
        from sluice.encoders.transformer.from_scratch import fresh_model
        from sluice.training import pair_examples
        from sluice.training.generation.inverse_cloze import Passage, ict_examples

        with tempfile.TemporaryDirectory() as folder:
            fresh = fresh_model(
                bench.texts.values(), Path(folder) / "fresh",
                layers=2, hidden=128, vocabulary=4000, seed=seed,
            )  # fmt: skip
            encoder = bench.encoder(fresh)
            passages = [Passage(name, "", text) for name, text in bench.texts.items()]
            if task == "cloze":
                examples = [e for epoch in range(20) for e in ict_examples(passages, seed, epoch)]
                bench.fitted(encoder, examples, INFO_NCE, seed, trainer=LARGE)
            elif task == "words":
                masked = SpladeEncoder.from_pretrained(fresh, document_length=bench.lengths[1])
                pairs = pair_examples(bench.queries, bench.positives, bench.texts)
                bench.fitted(masked, pairs, {"type": "masked_language"}, seed, trainer=LARGE)
                weights = masked.model.base_model.state_dict()
                encoder.model.load_state_dict(weights, strict=False)
        values: Values = {f"{NDCG} before": bench.measured(encoder)}
        few = random.Random(seed).sample(sorted(bench.positives), questions)
        positives = {query: bench.positives[query] for query in few}
        examples = list(pair_examples(bench.queries, positives, bench.texts))
        bench.fitted(encoder, examples, INFO_NCE, seed, trainer={"learning_rate": 5e-4})
        return {**values, NDCG: bench.measured(encoder)}

    return train


def from_corpus(task: str, questions: int = 64) -> Trained:
    """A fresh BERT, pre-trained on pairs of the whole corpus, then trained with a few queries."""

    def train(bench: Bench, seed: int) -> Values:
        from sluice.encoders.transformer.from_scratch import fresh_model
        from sluice.training import pair_examples

        with tempfile.TemporaryDirectory() as folder:
            fresh = fresh_model(
                bench.texts.values(), Path(folder) / "fresh",
                layers=2, hidden=128, vocabulary=4000, seed=seed,
            )  # fmt: skip
            encoder = bench.encoder(fresh)
        examples = corpus_pairs(task, bench.dataset, seed)
        if examples:
            bench.fitted(encoder, examples, INFO_NCE, seed, trainer=LARGE)
        values: Values = {"pairs": len(examples), f"{NDCG} before": bench.measured(encoder)}
        few = random.Random(seed).sample(sorted(bench.positives), questions)
        positives = {query: bench.positives[query] for query in few}
        judged = list(pair_examples(bench.queries, positives, bench.texts))
        bench.fitted(encoder, judged, INFO_NCE, seed, trainer={"learning_rate": 5e-4})
        return {**values, NDCG: bench.measured(encoder)}

    return train


def corpus_pairs(task: str, dataset: str, seed: int, most: int = 7680) -> list[Any]:
    """Return as many pairs as ``LARGE`` reads, over as many epochs as that takes."""
    from sluice.retrieval import load_dataset
    from sluice.training.generation import inverse_cloze as made

    corpus = load_dataset(dataset, None).corpus
    passages = [made.Passage(each.id, each.title, each.text) for each in corpus]
    links = made.mention_links(passages)
    linked = {name for source, targets in links.items() for name in (source, *targets)}
    own = [passage for passage in passages if passage.id in linked]
    make: dict[str, Callable[[int], Iterator[Any]]] = {
        "none": lambda epoch: iter(()),
        "ICT": lambda epoch: made.ict_examples(passages, seed, epoch),
        "ICT, linked documents": lambda epoch: made.ict_examples(own, seed, epoch),
        "BFS": lambda epoch: made.body_examples(passages, seed, epoch),
        "WLP": lambda epoch: made.linked_examples(passages, links, seed, epoch),
    }
    found: list[Any] = []
    for epoch in range(40):
        found += make[task](epoch)
        if len(found) >= most:
            break
    return found[:most]


TASKS = ("none", "ICT", "ICT, linked documents", "BFS", "WLP")
LINKS = Ordering(
    "Pre-training on a whole corpus before 64 queries: WLP, ICT, BFS, none",
    {name: from_corpus(name) for name in TASKS},
    [
        over("WLP over none", NDCG, "WLP", "none"),
        over("WLP over ICT", NDCG, "WLP", "ICT"),
        over("WLP over ICT on the linked documents", NDCG, "WLP", "ICT, linked documents"),
        over("BFS over none", NDCG, "BFS", "none"),
        over("ICT over none", NDCG, "ICT", "none"),
        over("WLP over none, before the queries", f"{NDCG} before", "WLP", "none"),
    ],
)

CLOZE = Ordering(
    "Pre-training before 64 queries: ICT, masked words, none",
    {name: pretrained(name) for name in ("none", "words", "cloze")},
    [
        over("masked words over none", NDCG, "words", "none"),
        over("ICT over masked words", NDCG, "cloze", "words"),
        over("ICT over none", NDCG, "cloze", "none"),
    ],
)

ORDERINGS = {
    "layers": LAYERS, "bixse": BIXSE, "psl": PSL, "clp": CLP, "star": STAR, "pooling": POOLING,
    "mining": MINING, "cloze": CLOZE, "links": LINKS,
}  # fmt: skip
NUMBERS = ("documents", "dev", "steps", "batch", "layers")


def main(words: Sequence[str] | None = None) -> None:
    asked = options(__doc__, {
        "names": ({"nargs": "*", "metavar": "NAME"}, ", ".join(ORDERINGS)),
        "--seeds": [13, 14, 15], "--only": ({"nargs": "+"}, "these systems"),
        "--dataset": ("feedbackqa", "with a train and a dev split"), "--model": MODEL,
        **{f"--{name}": getattr(Bench, name) for name in NUMBERS},
        "--output": Path("runs/orderings"),
        "--show": (False, "print what is there, train nothing"),
    }, words)  # fmt: skip
    names = asked.names or list(ORDERINGS)
    unknown = [name for name in names if name not in ORDERINGS]
    if unknown:
        refuse(f"{unknown[0]!r}: unknown; names are {', '.join(ORDERINGS)}")
    systems = [system for name in names for system in ORDERINGS[name].systems]
    if stray := [system for system in asked.only or () if system not in systems]:
        refuse(f"--only {stray[0]!r}: unknown; systems are {'; '.join(systems)}")
    if not asked.show:
        settings = {key: getattr(asked, key) for key in ("dataset", "model", *NUMBERS)}
        bench = Bench(**settings)
        if wrong := same_settings(asked.output, settings):
            refuse(wrong)
        for name in names:
            for seed in asked.seeds:
                for system, train in ORDERINGS[name].systems.items():
                    again = system == "untrained" and seed != asked.seeds[0]
                    if not again and (not asked.only or system in asked.only):
                        one(bench, train, seed, asked.output / name / f"{system}.{seed}.json")
    for name in names:
        print("\n".join(table(ORDERINGS[name], results_of(asked.output / name))), end="\n\n")


def one(bench: Bench, train: Trained, seed: int, result: Path) -> None:
    """Train and measure one system, unless its result is there."""
    if result.exists():
        return
    start = time.monotonic()
    values = {**train(bench, seed), "seconds": round(time.monotonic() - start, 1)}
    write_whole(result, values)
    print(
        f"{result.parent.name}: {result.stem}, {values['seconds']} s", file=sys.stderr, flush=True
    )


if __name__ == "__main__":
    main()
