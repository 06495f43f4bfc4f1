"""Writes model soups; the greedy one is chosen by a measure on a dataset's dev split."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.provenance import provenance
from sluice.encoders.table import RERANKERS
from sluice.retrieval.config.sections import DevSection
from sluice.retrieval.datasets.dataset import Dataset, load_dataset, training_splits
from sluice.retrieval.experiments.training.dev_evaluation import (
    PAIR_DEPTH,
    dev_depth,
    dev_evaluation,
    dev_measure,
)
from sluice.retrieval.experiments.training.tested_queries import without_tested

if TYPE_CHECKING:
    from sluice.encoders.tuning.soup import GreedySoup


def make_soup(models: Sequence[str], output: Path, weights: Sequence[float] | None) -> Path:
    """Write a soup with its manifest, see ``sluice.encoders.tuning.soup.soup``."""
    from sluice.encoders.tuning.soup import soup

    start = time.monotonic()
    made = soup(models, output, weights=weights)
    shares = None if weights is None else list(weights)
    _note(made, {"soup": list(models), "weights": shares}, time.monotonic() - start)
    return made


def make_greedy_soup(
    models: Sequence[str], output: Path, dataset: str, section: DevSection, *, seed: int = 13
) -> GreedySoup:
    """Write the greedy soup by the first measure of ``section`` on the dataset's dev split.

    Cross-encoders rerank BM25's top documents. Raises ``DataError`` for a dataset without judged
    queries, ``ConfigError`` where more than a few of them are queries of its test split.
    """
    from sluice.encoders.tuning.soup import greedy_soup

    start = time.monotonic()
    _, dev = training_splits(dataset, seed)
    dev = without_tested(dev, partial(load_dataset, dataset), "test")
    score = dev_score(dev, section, models, seed=seed)
    made = greedy_soup(models, output, score)
    facts = {
        "soup": list(made.chosen), "scores": dict(made.scores), "value": made.value,
        "dataset": dev.name, "split": "dev", "measure": dev_measure(section), "seed": seed,
    }  # fmt: skip
    _note(made.path, facts, time.monotonic() - start)
    return made


def dev_score(
    dev: Dataset, section: DevSection, models: Sequence[str], *, seed: int
) -> Callable[[Path], float]:
    """Return ``score(model folder)``: the first measure of ``section`` on a dev split."""
    from sluice.encoders.model_files.locate import model_folder
    from sluice.encoders.model_files.registry import kind_of, open_encoder

    kinds = {kind_of(model_folder(model)) for model in models}
    if len(kinds) > 1:
        raise ConfigError(f"models: several types, {', '.join(sorted(kinds))}; expected one")
    candidates = None
    if kinds <= set(RERANKERS):
        from sluice.encoders.lexical.bm25 import BM25Encoder
        from sluice.retrieval.retrievers.candidate_lists import run_on
        from sluice.retrieval.retrievers.retriever import Retriever

        lists = Retriever.build(BM25Encoder(), dev.corpus)
        candidates = run_on(lists, dev, max(PAIR_DEPTH, dev_depth(section)))
    evaluate = dev_evaluation(dev, section, seed=seed, candidates=candidates)

    def score(folder: Path) -> float:
        return next(iter(evaluate(open_encoder(folder)).values()))

    return score


def _note(folder: Path, facts: dict[str, Any], seconds: float) -> None:
    write_json(folder / MANIFEST, {**facts, **provenance(facts, seconds=seconds)})
