#!/usr/bin/env python
"""New query encoders on an old index: which losses make one that searches it better.

    SLUICE_DATA=FOLDER scripts/prove_upgrade.py OUTPUT [--dataset feedbackqa] [--only NAME ...]
        [--old "old, simplex" --only stationary info_nce "info_nce + hoc"]

An old model is trained for a few steps and indexes the corpus. Then new ones are trained for longer
by the losses of ``SYSTEMS``, and each searches the old index with the dev queries, by
``sluice.retrieval.studies.upgrade``. ``old, simplex`` is drawn to the corners as ``stationary`` is,
whose classes are the corners that the old vectors are nearest to. ``apart`` starts from a random
projection, so that its vectors have nothing to do with the old ones. What is made already is not
made again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import MODEL, options, trainer

LENGTHS = {"query_length": 32, "document_length": 64}
INFO = {"type": "info_nce", "temperature": 0.05}
OLD = "old"  # replaced by the old model's folder
QUERIES = {"sides": "query"}
SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    "old": {"loss": INFO},
    "old, simplex": {"teacher": MODEL, "loss": {"type": "sum", "losses": [
        INFO, {"type": "simplex", "weight": 0.1}]}},
    "info_nce": {"loss": INFO},
    "frozen documents": {"loss": INFO, "encoder": {
        "type": "towers", "freeze": "document", "document": {"type": "dense", "model": OLD},
        "query": {"type": "dense", "model": MODEL, **LENGTHS}}},
    "info_nce + alignment": {"teacher": OLD, "loss": {"type": "sum", "losses": [
        INFO, {"type": "alignment", **QUERIES}]}},
    "info_nce + hoc": {"teacher": OLD, "loss": {"type": "sum", "losses": [
        {**INFO, "weight": 0.1}, {"type": "hoc", "weight": 0.9}]}},
    "simplex + hoc": {"teacher": OLD, "loss": {"type": "sum", "losses": [
        {"type": "simplex", "weight": 0.1}, {"type": "hoc", "weight": 0.9}]}},
    "stationary": {"teacher": OLD, "loss": {"type": "sum", "losses": [
        {**INFO, "weight": 0.1}, {"type": "simplex", "rounds": 0, "weight": 0.1},
        {"type": "hoc", "weight": 0.9}]}},
    "apart": {"loss": INFO, "encoder": {"projection": 384}, "rate": 1.0e-3},
    "apart, hoc": {"teacher": OLD, "loss": {"type": "hoc"}, "encoder": {"projection": 384},
                   "rate": 1.0e-3},
}  # fmt: skip


def recipe(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Return the YAML of one training run."""
    own, old = dict(SYSTEMS[name]), str(folder(asked, asked.old) / "model")
    encoder = {"type": "dense", "model": MODEL, **LENGTHS, **own.pop("encoder", {})}
    if encoder["type"] == "towers":
        encoder = {**SYSTEMS[name]["encoder"], "document": {"type": "dense", "model": old}}
    if own.get("teacher") == OLD:
        own["teacher"] = {"type": "dense", "model": old}
    return {
        "dataset": asked.dataset, "output": str(folder(asked, name)),
        "seed": asked.seed + (name != asked.old), "encoder": encoder,
        "trainer": trainer(
            asked.old_steps if name == asked.old else asked.steps, 16, own.pop("rate", 5.0e-5)
        ),
        **own,
    }  # fmt: skip


def folder(asked: argparse.Namespace, name: str) -> Path:
    """Return the folder of a system's training."""
    home: Path = asked.output
    return home / f"{name.replace(' ', '-').replace(',', '')}-{asked.seed}"


def main() -> None:
    from sluice import DenseEncoder, Retriever, load_dataset, train
    from sluice.retrieval.datasets.dataset import training_splits
    from sluice.retrieval.studies import upgrade

    asked = options(__doc__, {
        "output": (Path, "The folder of models and the old index."), "--dataset": "feedbackqa",
        "--only": {"nargs": "+", "default": list(SYSTEMS)[2:], "metavar": "NAME"}, "--seed": 13,
        "--old": {"choices": list(SYSTEMS)[:2], "default": "old"}, "--old-steps": 15, "--steps": 40,
    })  # fmt: skip
    _, dev = training_splits(asked.dataset, 13)
    train(recipe(asked.old, asked))
    place = folder(asked, asked.old) / "index"
    if not (place / "retriever.json").exists():
        old = DenseEncoder.from_pretrained(folder(asked, asked.old) / "model")
        Retriever.build(old, load_dataset(asked.dataset, None).corpus, path=place)
    for name in asked.only:
        train(recipe(name, asked))
        found = upgrade(place, folder(asked, name) / "model", dev)
        change = found.change
        print(
            f"| {name} | {found.old:.4f} | {found.new:.4f} | {change.difference:+.4f} "
            f"({change.low:+.4f} to {change.high:+.4f}) | {found.p_value:.1g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
