"""How much a training run learns from: examples, steps, and texts of a step."""

from __future__ import annotations

import math
from typing import NamedTuple

from sluice.encoders.foundation.errors import SluiceError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.table import RERANKERS
from sluice.retrieval.config.sections import TrainingSection
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.experiments.training.dev_evaluation import PAIR_DEPTH
from sluice.retrieval.training_data.example_sources import example_source, source_of
from sluice.retrieval.training_data.files.corpus_examples import splits_of

PER_QUERY = 4  # mined negatives, unless the section says how many
PAIRS = 2  # made from a document of the corpus, unless the section says how many
QUERY_SHARE = 0.3  # of a document's cost, for its query
EVALUATIONS = 5  # of a training run that does not say after how many steps


class TrainingSize(NamedTuple):
    """Examples and steps, None where only reading a file would tell; texts of one step.

    ``held`` of them are in memory at a time; ``evaluated`` are read by all dev evaluations.
    """

    examples: int | None
    steps: int | None
    batch: int
    texts: float
    held: float
    evaluated: float

    def __str__(self) -> str:
        of = "" if self.examples is None else f" ({plural(self.examples, 'example')} in all)"
        steps = (
            "as many steps as its file has" if self.steps is None else plural(self.steps, "step")
        )
        return f"{steps} of {plural(self.batch, 'example')}{of}"


def training_size(section: TrainingSection, dataset: Dataset | None, seed: int) -> TrainingSize:
    """Return how much a training run learns from; files are counted by their lines."""
    from sluice.training.loop.arguments import DEFAULTS  # imports torch

    trainer = {**DEFAULTS, **section.trainer}
    batch = int(trainer["per_device_train_batch_size"])
    times = int(trainer.get("gradient_accumulation_steps") or 1)
    batch *= times
    datasets: list[Dataset | None] = [dataset]
    if section.datasets is not None:
        datasets = [load_dataset(each, None) for each in section.datasets]
    counts = [_examples(section, each, seed) for each in datasets]
    known = [count for count in counts if count is not None]
    examples = sum(known) if len(known) == len(counts) else None
    limit = int(trainer.get("max_steps") or 0)
    steps = limit if limit > 0 else None
    if steps is None and examples is not None:
        steps = max(1, math.ceil(examples / batch * float(trainer["num_train_epochs"])))
    negatives = section.negatives or {}
    mined = int(negatives.get("per_query", PER_QUERY)) if negatives.get("type") == "mined" else 0
    documents = section.positives + mined
    texts = batch * (documents + QUERY_SHARE)
    held = min(texts / times, section.gradient_cache or math.inf)
    evaluated = sum(_evaluated(section, each, steps) for each in datasets)
    return TrainingSize(examples, steps, batch, texts, held, evaluated)


def _evaluated(section: TrainingSection, dataset: Dataset | None, steps: int | None) -> float:
    """Return how many texts, or pairs, all dev evaluations read."""
    dev = section.evaluate
    if dev is None:
        return 0.0
    times = EVALUATIONS if dev.every is None else math.ceil((steps or 0) / dev.every)
    if section.encoder.get("type") in RERANKERS:
        return float(times * dev.queries * PAIR_DEPTH)
    size = dev.documents if dataset is None else dataset.corpus.size or dev.documents
    return times * (min(size, dev.documents) + dev.queries * QUERY_SHARE)


def _examples(section: TrainingSection, dataset: Dataset | None, seed: int) -> int | None:
    spec = source_of(section)
    if spec is None and dataset is not None:
        try:
            train, _ = splits_of(section, dataset, seed)
        except SluiceError:
            return None
        positives = (sum(g > 0 for g in judged.values()) for judged in train.qrels.values())
        return sum(math.ceil(each / section.positives) for each in positives)
    if spec is not None and spec.get("type") == "texts" and dataset is not None:
        return dataset.corpus.size
    size = None if dataset is None else dataset.corpus.size
    if spec is not None and spec.get("type") == "corpus" and size is not None:
        return min(size, spec.get("documents") or size) * int(spec.get("per_document", PAIRS))
    if spec is not None and spec.get("type") == "generated" and size is not None:  # at most
        return min(size, spec.get("documents") or size) * int(spec.get("queries", 1))
    files = example_source(spec).paths
    if spec is not None and spec.get("type") == "clicks":  # rows are impressions
        return None
    if not files or any(file.suffix not in (".csv", ".tsv", ".jsonl", ".txt") for file in files):
        return None
    lines = 0
    for file in files:
        with file.open("rb") as stream:
            lines += sum(1 for _ in stream) - (file.suffix == ".csv")  # its header
    return lines
