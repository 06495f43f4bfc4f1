#!/usr/bin/env python
"""Does an adapter tell false negatives better than the cosine? Hidden positives, found again.

    SLUICE_DATA=FOLDER scripts/prove_rrra.py OUTPUT [--dataset nfcorpus] [--seeds 13 14 15]

A fifth of the train positives is hidden. An adapter (RRRA, stage 2) is fitted on the rest, by the
vectors of an encoder: as it is, or with ``--tune STEPS`` trained on the rest first (stage 1), and
with ``--joint STEPS`` beside the adapter afterwards (stage 3, ``loss: rrra``; measured on the dev
queries against as many further steps without the adapter). Then the first 100
hits of each query that are no known positive are scored, and the area under the curve says how
often a hidden positive stands above another. With ``--filtered STEPS`` the encoder is trained on
the rest with hard negatives from its own hits, hidden positives among them: as they come, those
left out that the adapter judges too likely, and those first that it judges unlikely; then each is
measured on the dev queries. Nothing is read of test queries.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness import MODEL, options, trainer, write_beir

LENGTHS = {"query_length": 32, "document_length": 64}  # in training
SHARE, DEPTH = 0.2, 100


def trained(pairs: Path, model: Path | str, loss: Any, steps: int, output: Path, seed: int) -> Path:
    """Train a dense encoder on pairs; return its folder."""
    from sluice.retrieval import train

    found: Path = train({
        "output": str(output), "seed": seed, "loss": loss, "examples": {"file": str(pairs)},
        "encoder": {"type": "dense", "model": str(model), **LENGTHS},
        "trainer": trainer(steps),
    })  # fmt: skip
    return found


def retriever_of(model: Path | str, dataset: Any, place: Path) -> Any:
    """Return the retriever of a model, indexed once."""
    from sluice import DenseEncoder, Retriever

    if not (place / "retriever.json").exists():
        encoder = DenseEncoder.from_pretrained(model, document_length=128, dtype="bfloat16")
        Retriever.build(encoder, dataset.corpus, path=place)
    return Retriever.open(place)


def write_folder(folder: Path, whole: Any, left: Any, dev: Any) -> None:
    """Write a BEIR folder whose train split lacks the hidden positives."""
    corpus = ((each.id, each.title, each.text) for each in whole.corpus)
    asked = {query: whole.queries[query] for query in left}
    asked |= {query: dev.queries[query] for query in dev.qrels}
    write_beir(folder, corpus, asked, {"train": left, "dev": dev.qrels})


def filtered(
    retriever: Any, whole: Any, left: Any, adapted: Any, asked: argparse.Namespace, seed: int
) -> dict[str, float]:
    """Return the dev nDCG@10 of trainings on negatives that nobody, or the adapter, judged."""
    from sluice.retrieval import load_dataset, train
    from sluice.retrieval.datasets.dataset import training_splits
    from sluice.retrieval.evaluation.significance import paired_t_test

    home = asked.output / Path(asked.dataset).name / f"filtered-{asked.filtered}-{seed}"
    adapted.save_pretrained(home / "adapter")
    _, dev = training_splits(asked.dataset, seed)
    write_folder(home / "data", whole, left, dev)
    data = load_dataset(home / "data", "train")
    judge = {"judge": {"type": "rrra", "model": str(home / "adapter")}}
    negatives = {"type": "mined", "retriever": str(retriever.path), "per_query": 3}
    arms: dict[str, dict[str, Any]] = {
        "as they come": {"mode": "naive"},
        "judged, likely ones left out": {**judge, "mode": "judge"},
        "judged, unlikely ones first": {**judge, "judge_gamma": 1.0, "mode": "naive"},
    }
    found, plain = {}, np.array([])
    for name, arm in arms.items():
        place = home / name.replace(",", "").replace(" ", "-")
        model = train({
            "dataset": str(home / "data"), "output": str(place), "seed": seed,
            "encoder": {"type": "dense", "model": MODEL, **LENGTHS},
            "loss": {"type": "info_nce", "temperature": 0.05}, "negatives": {**negatives, **arm},
            "trainer": trainer(asked.filtered, 16),
        })  # fmt: skip
        values = by_query(retriever_of(model, data, place / "index"), dev)
        plain = plain if len(plain) else values
        found[f"negatives {name}: nDCG@10"] = float(values.mean())
        if name != "as they come":
            found[f"negatives {name}: p"] = paired_t_test(values, plain)
    return found


def by_query(retriever: Any, dev: Any) -> Any:
    """Return the nDCG@10 of each dev query."""
    from sluice.retrieval import evaluate

    run = retriever.run({query: dev.queries[query] for query in dev.qrels}, k=DEPTH)
    return np.array(list(evaluate(run, dev.qrels, ["nDCG@10"]).per_query["nDCG@10"].values()))


def areas(retriever: Any, data: Any, hidden: Any, scorers: Any) -> dict[str, float]:
    """Return the area under the curve of the cosine and of each adapter with each weight."""
    from sluice.training.negatives.audit import auc

    run = retriever.run({query: data.queries[query] for query in data.qrels}, k=DEPTH)
    pairs = [
        (query, document, score)
        for query in data.qrels
        for document, score in run[query]
        if not data.qrels[query].get(document)
    ]
    hides = np.array([document in hidden.get(query, ()) for query, document, _ in pairs])
    names = list(data.qrels)
    row = {query: place for place, query in enumerate(names)}
    queries = retriever.encoder.encode_queries([data.queries[query] for query in names])
    places = retriever.store.rows([document for _, document, _ in pairs])
    left = queries[[row[query] for query, _, _ in pairs]]
    right = retriever.index.documents(places)
    found = {"hidden": float(hides.sum()), "others": float((~hides).sum()),
             "cosine": auc(np.array([score for _, _, score in pairs]), hides)}  # fmt: skip
    for name, adapter in scorers.items():
        for weight in (1.0, None):
            values = adapter.scores(left, right, weight)
            found[f"{name}, weight {'none' if weight is None else weight}"] = auc(values, hides)
    return found


def cut(name: str, documents: int, queries: int, folder: Path) -> str:
    """Write a cut of a collection, the same for all seeds, and return its folder."""
    from sluice.retrieval import load_dataset

    if not (folder / "corpus.jsonl").exists():
        chance, splits = random.Random(0), {s: load_dataset(name, s) for s in ("train", "dev")}
        every = list(splits["train"].corpus)
        corpus = {each.id: each for each in chance.sample(every, min(documents, len(every)))}
        asked, qrels = {}, {}
        for split, data in splits.items():
            judged = {
                query: own for query, grades in sorted(data.qrels.items())
                if (own := {d: g for d, g in grades.items() if d in corpus and g > 0})
            }  # fmt: skip
            chosen = chance.sample(sorted(judged), min(queries, len(judged)))
            qrels[split] = {query: judged[query] for query in chosen}
            asked |= {query: data.queries[query] for query in chosen}
        write_beir(folder, ((d.id, d.title, d.text) for d in corpus.values()), asked, qrels)
    return str(folder)


def measured(asked: argparse.Namespace, seed: int) -> dict[str, float]:
    """Hide, fit and measure with one seed."""
    from sluice.encoders.dense.error_adapter import ErrorAdapter
    from sluice.retrieval import Dataset, load_dataset
    from sluice.retrieval.datasets.dataset import training_splits
    from sluice.retrieval.evaluation.significance import paired_t_test
    from sluice.retrieval.training_data.false_negatives import fit_adapter
    from sluice.training.negatives.audit import hidden_positives

    whole = load_dataset(asked.dataset, "train")
    texts = {document.id: document.full_text for document in whole.corpus}
    known = {q: {d: g for d, g in own.items() if d in texts} for q, own in whole.qrels.items()}
    hidden = hidden_positives(known, SHARE, seed)
    left = {
        query: {doc: grade for doc, grade in grades.items() if doc not in hidden.get(query, ())}
        for query, grades in known.items()
    }
    data = Dataset.from_memory(whole.corpus, {q: whole.queries[q] for q in left}, left)
    home = asked.output / Path(asked.dataset).name
    model: Path | str = MODEL
    place = home / "start"
    if asked.tune:
        own = home / f"tuned-{asked.tune}-{seed}"
        pairs = own / "pairs.jsonl"
        pairs.parent.mkdir(parents=True, exist_ok=True)
        with pairs.open("w", encoding="utf-8") as stream:
            for query, grades in left.items():
                for doc, grade in grades.items():
                    if grade > 0:
                        line = {"query": whole.queries[query], "pos": texts[doc]}
                        stream.write(json.dumps(line) + "\n")
        model = trained(pairs, MODEL, {"type": "info_nce", "temperature": 0.05}, asked.tune,
                        own / "one", seed)  # fmt: skip
        place = own / "index"
    retriever = retriever_of(model, data, place)
    adapted = fit_adapter(retriever, data, seed=seed)
    found = areas(retriever, data, hidden, {"fitted": adapted.adapter})
    if asked.filtered:
        found |= filtered(retriever, whole, left, adapted, asked, seed)
    if asked.joint:
        start = own / "adapter"
        adapted.save_pretrained(start)
        loss = {"type": "rrra", "adapter": str(start), "loss": {"type": "info_nce",
                "temperature": 0.05}}  # fmt: skip
        plain = trained(pairs, model, loss["loss"], asked.joint, own / "plain", seed)
        model = trained(pairs, model, loss, asked.joint, own / "two", seed)
        joint = {"joint": ErrorAdapter.load(model)}
        after = retriever_of(model, data, own / "index-two")
        later = areas(after, data, hidden, joint)
        found |= {f"after stage 3: {name}": value for name, value in later.items()}
        _, dev = training_splits(asked.dataset, seed)
        values = {
            "stage 1": by_query(retriever, dev), "stage 3": by_query(after, dev),
            "as many steps without": by_query(retriever_of(plain, data, own / "index-plain"), dev),
        }  # fmt: skip
        found |= {f"{name}: nDCG@10": float(each.mean()) for name, each in values.items()}
        found["stage 3 against without: p"] = paired_t_test(
            values["stage 3"], values["as many steps without"]
        )
    return found


def main() -> None:
    asked = options(__doc__, {
        "output": (Path, "The folder of models and indexes."), "--dataset": "nfcorpus",
        "--seeds": [13, 14, 15], "--tune": {"type": int, "default": 0, "metavar": "STEPS"},
        "--joint": {"type": int, "default": 0, "metavar": "STEPS"},
        "--filtered": {"type": int, "default": 0, "metavar": "STEPS"},
        "--documents": {"type": int, "default": 0, "help": "of a cut with as many queries at most"},
    })  # fmt: skip
    if asked.joint and not asked.tune:
        sys.exit("--joint: continues what --tune began; give --tune STEPS too")
    if asked.documents:
        place = asked.output / f"cut-{asked.documents}"
        asked.dataset = cut(asked.dataset, asked.documents, asked.documents, place)
    rows = []
    for seed in asked.seeds:
        rows.append(measured(asked, seed))
        print(seed, json.dumps(rows[-1]), file=sys.stderr, flush=True)
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"| {name} | {' | '.join(f'{value:.4f}' for value in values)} |", flush=True)


if __name__ == "__main__":
    main()
