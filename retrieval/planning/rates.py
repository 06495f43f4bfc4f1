"""How fast this machine encodes, scores and trains with a model, and how much a run learns from.

What is not measured is assumed, and says so.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.encoders.foundation.errors import SluiceError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.processes import peak_memory_bytes
from sluice.encoders.table import RERANKERS
from sluice.retrieval.config.component_types import MINED
from sluice.retrieval.config.components import START_KEY, make_encoder
from sluice.retrieval.config.sections import TrainingSection
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.experiments.training.dev_evaluation import PAIR_DEPTH
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.training_data.example_sources import example_source, source_of
from sluice.retrieval.training_data.files.corpus_examples import splits_of
from sluice.training.protocol import BiEncoder, PairEncoder

if TYPE_CHECKING:
    from torch import Tensor, nn


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
    mined = int(negatives.get("per_query", PER_QUERY)) if negatives.get("type") == MINED else 0
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


log = logging.getLogger("sluice")

MOMENTS = 4  # copies of the weights in training: weights, gradients, two moments of Adam
CHECKPOINT = 3  # copies of the weights in a checkpoint: weights, two moments of Adam
COUNTED_PER_SECOND = 4_000  # documents that BM25 counts and indexes; assumed
SEARCH_SECONDS = 0.01  # a query against one retriever, encoded and searched; assumed
TRIAL = 32  # texts of a trial
TRAINED = 16  # texts of a trial of training, which holds their activations
STARTED = 1_800  # texts encoded to start a SPLADE head: 150,000 tokens, ten halvings over 64 texts
STARTING = {"sample": TRIAL, "positions": 2_000}  # of a head that is only measured
FLOAT = 4  # bytes of a weight
GRADIENTS = 1.4  # memory of activations and their gradients against the activations; seen here
TRAINER_BYTES = 400_000_000  # of what training imports and reads beside the model; seen here


class Rate(NamedTuple):
    """Seconds of encoding one document or scoring one pair, and of a step of training per text.

    ``activation_bytes`` is what a text in training keeps for the backward pass, and ``held_bytes``
    what the process had with the model alone; both are 0, as ``trained``, where none is trained.
    """

    seconds: float
    parameters: int = 0
    trained: float = 0.0
    activation_bytes: float = 0.0
    held_bytes: int = 0

    def training_memory_bytes(self, texts: float) -> int:
        """Return the memory of training with so many texts at a time."""
        copies = (MOMENTS - 1) * FLOAT * self.parameters
        activations = GRADIENTS * texts * self.activation_bytes
        return round(self.held_bytes + TRAINER_BYTES + copies + activations)

    def model_bytes(self, copies: int = 1) -> int:
        """Return the disk space of so many copies of the weights."""
        return copies * FLOAT * self.parameters


class Rates:
    """Rates by model, each measured once, on texts of a dataset."""

    def __init__(self, dataset: Dataset | None) -> None:
        self._dataset = dataset
        self._rates: dict[str, Rate] = {}

    def of(self, spec: Mapping[str, Any]) -> Rate:
        """Return the rate of an encoder or reranker; it is loaded, and reads a few texts."""
        return self._known(spec, None)

    def of_training(self, spec: Mapping[str, Any], *, bf16: bool = False) -> Rate:
        """Return the rate of what is trained, which does a step forwards and backwards too."""
        return self._known(spec, bf16)

    def _known(self, spec: Mapping[str, Any], bf16: bool | None) -> Rate:
        key = repr((sorted(spec.items(), key=str), bf16))
        if key not in self._rates:
            self._rates[key] = self._measured(spec, bf16)
        return self._rates[key]

    def _measured(self, spec: Mapping[str, Any], bf16: bool | None) -> Rate:
        level = log.level
        log.setLevel(logging.ERROR)  # a new head is expected: it will be trained
        try:
            encoder = self._loaded(spec)
        finally:
            log.setLevel(level)
        held = peak_memory_bytes()
        texts = self._texts
        pairs = [(texts[0][:100], text) for text in texts]
        paired = ScorerHooks(encoder).scores_pairs
        seconds = _timed(
            lambda: encoder.score(pairs) if paired else encoder.encode_documents(texts)
        )
        rate = Rate(seconds / len(texts))
        if bf16 is None or not isinstance(encoder, BiEncoder | PairEncoder):
            return rate
        if isinstance(encoder, PairEncoder):
            features = encoder.tokenize_pairs(pairs[:TRAINED])
            trained, kept = _trained(encoder.module, lambda: encoder.logits(features), bf16)
        else:
            features = encoder.tokenize(texts[:TRAINED], "document")
            trained, kept = _trained(
                encoder.module, lambda: encoder.embed(features, "document"), bf16
            )
        count = len(texts[:TRAINED])
        parameters = sum(each.numel() for each in encoder.module.parameters())
        return Rate(rate.seconds, parameters, trained / count, kept / count, held)

    def _loaded(self, spec: Mapping[str, Any]) -> Any:
        """Return an encoder; SPLADE that is to be started gets a head made from a few texts."""
        if START_KEY not in spec:
            return make_encoder(spec, where="encoder", model=str)
        from sluice.encoders.splade.start import start_from_config

        plain = {key: value for key, value in spec.items() if key != START_KEY}
        return start_from_config(plain, STARTING, self._texts, where="encoder", seed=0)

    @functools.cached_property
    def _texts(self) -> list[str]:
        corpus = () if self._dataset is None else self._dataset.corpus
        texts = [document.full_text for document in itertools.islice(corpus, TRIAL)]
        return texts or ["a text of some length, as a document of a collection may have"] * TRIAL


def _timed(work: Callable[[], object]) -> float:
    """Return the seconds of the faster of two passes; the first makes room and loads.

    Without a GPU it is the processor's time if that is less: the share of a busy machine that other
    processes take is not counted.
    """
    import torch

    seconds = []
    for _ in range(2):
        start, worked = time.perf_counter(), time.process_time()
        work()
        seconds.append(time.perf_counter() - start)
        if not torch.accelerator.is_available():
            seconds.append(time.process_time() - worked)
    return min(seconds)


def _trained(module: nn.Module, forward: Callable[[], Tensor], bf16: bool) -> tuple[float, int]:
    """Return the seconds of a pass forwards and backwards, and the bytes kept in between."""
    import torch

    weights = {each.untyped_storage().data_ptr() for each in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def step() -> None:
        device = next(module.parameters()).device.type
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with torch.autocast(device, torch.bfloat16, enabled=bf16), hooks:
            value = forward().float().sum()
        torch.autograd.backward([value])
        kept_bytes.append(sum(kept.values()))
        kept.clear()
        module.zero_grad()

    kept_bytes: list[int] = []
    training = module.training
    module.train()
    seconds = _timed(step)
    module.train(training)
    return seconds, kept_bytes[-1]
