"""Makes a batch of tensors from examples: tokenises texts, lays out labels and mask.

With several processes the targets are those of the whole batch, and the texts the process's own.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset
from transformers import TrainingArguments

from sluice.encoders.encoder import encoder_of
from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.processes import rank, shares, world
from sluice.training.batches.stream import Mixture
from sluice.training.batches.vector_batch import (
    Negatives,
    Targets,
    group_targets,
    matrix_targets,
    row_weights,
)
from sluice.training.protocol import BiEncoder, Example, PairEncoder, Side, Text


class BatchTeacher(Protocol):
    """Bi-encoders whose vectors of all training texts are at hand.

    A cross-encoder cannot be one: every query of a batch is scored with every document.
    """

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever a score would."""
        ...

    def prepare(self, examples: Sequence[Example]) -> None:
        """Make ready for the texts of these examples, and of those of the first call."""
        ...

    def scores(
        self, queries: Sequence[Text], documents: Sequence[Text]
    ) -> NDArray[np.floating[Any]]:
        """Return ``[B, N]``: every query with every document."""
        ...

    def vectors(self, texts: Sequence[Text], side: Side) -> NDArray[np.floating[Any]]:
        """Return ``[n, dim]``, the vectors of the texts."""
        ...


def vectors_of_texts(
    teacher: BatchTeacher, examples: Sequence[Example]
) -> NDArray[np.floating[Any]]:
    """Return ``[n, dim]``, the vectors of the examples' distinct queries, then documents."""
    queries = {example.query.text: example.query for example in examples}
    documents = {text.text: text for example in examples for text in example.documents}
    both = (teacher.vectors([*queries.values()], "query"),
            teacher.vectors([*documents.values()], "document"))  # fmt: skip
    return np.concatenate(both)


Batch = dict[str, Any]


def laid_out(targets: Targets, examples: Sequence[Example]) -> Batch:
    """Return the targets and the ids of a batch under the names that ``Objective`` reads."""
    ids = {
        "query": tuple(e.query.id for e in examples),
        "document": tuple(d.id for e in examples for d in e.documents),
        "relevant": tuple(e.relevant for e in examples),
    }
    return {**targets._asdict(), "ids": ids, "source": examples[0].source}  # a batch is of one


class _Share:
    """The part of a batch that this process encodes, and how much each process has."""

    def __init__(self, examples: Sequence[Example]) -> None:
        slices = shares(len(examples), world())
        self.parts = [examples[part] for part in slices]
        self.own = self.parts[rank()]

    def sizes(self, counts: Sequence[int]) -> list[int]:
        starts = [0]
        for part in self.parts:
            starts.append(starts[-1] + len(part))
        return [sum(counts[a:b]) for a, b in itertools.pairwise(starts)]


@dataclass(frozen=True, slots=True)
class BiEncoderCollator:
    """Queries in one call of the tokenizer, all documents of the batch in another.

    ``answered`` adds the queries that negatives answer, as a third part encoded like queries,
    ``negative_queries`` those that positives do not answer, as a fourth.
    ``teacher`` scores all pairs of the batch where ``teacher_matrix`` is set, and gives its vectors
    where ``teacher_vectors`` is.
    """

    encoder: BiEncoder
    negatives: Negatives = "all"
    same_side: bool = False
    answered: bool = False
    negative_queries: bool = False
    teacher: BatchTeacher | None = None
    teacher_matrix: bool = False
    teacher_vectors: bool = False
    views: Mapping[str, BiEncoder] = field(default_factory=dict)  # of sources with own prompts

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Return the features of all parts and what the cells of the batch mean."""
        targets = matrix_targets(examples, self.negatives, same_side=self.same_side)
        share = _Share(examples)
        batch = laid_out(targets, examples)
        source = examples[0].source  # a batch is of one
        batch["features"] = {
            "query": self._tokens([e.query.text for e in share.own], "query", source),
            "document": self._tokens(
                [d.text for e in share.own for d in e.documents], "document", source
            ),
        }
        batch["sizes"] = {
            "query": share.sizes([1] * len(examples)),
            "document": share.sizes([len(e.documents) for e in examples]),
        }
        if self.teacher is not None:
            batch |= self._taught(examples, targets, self.teacher)
        if self.answered:
            texts = [e.answered or ("",) * len(e.documents) for e in examples]
            flat = [text for part in texts for text in part]
            batch["answered_columns"] = torch.tensor(
                [column for column, text in enumerate(flat) if text], dtype=torch.long
            )
            own = [t for e in share.own for t in e.answered if t]
            sizes = share.sizes([sum(map(bool, part)) for part in texts])
            self._add(batch, "answered", own, sizes, source)
        if self.negative_queries:
            counts = [len(e.negative_queries) for e in examples]
            batch["negative_rows"] = torch.arange(len(counts)).repeat_interleave(
                torch.tensor(counts)
            )
            own = [text for e in share.own for text in e.negative_queries]
            self._add(batch, "negative_query", own, share.sizes(counts), source)
        return batch

    def _add(
        self, batch: Batch, name: str, texts: Sequence[str], sizes: list[int], source: str
    ) -> None:
        """Add texts encoded like queries to a batch, unless a process has none of them."""
        batch["sizes"][name] = sizes
        if all(sizes):
            batch["features"][name] = self._tokens(texts, "query", source)

    def _taught(
        self, examples: Sequence[Example], targets: Targets, teacher: BatchTeacher
    ) -> Batch:
        """Return what the teacher makes of the batch, under the names that it goes by."""
        queries = [example.query for example in examples]
        documents = [document for example in examples for document in example.documents]
        made: Batch = {}
        if self.teacher_matrix:
            scores = torch.from_numpy(teacher.scores(queries, documents)).float()
            beyond = targets.labels.shape[1] - scores.shape[1]  # same-side cells
            made["teacher"] = pad(scores, (0, beyond), value=math.nan)
        if self.teacher_vectors:
            made["teacher_vectors"] = {
                "query": torch.from_numpy(teacher.vectors(queries, "query")).float(),
                "document": torch.from_numpy(teacher.vectors(documents, "document")).float(),
            }
        return made

    def _tokens(self, texts: Sequence[str], side: Side, source: str) -> dict[str, torch.Tensor]:
        view = self.views.get(source) or encoder_of(self.encoder, source)
        tokenized: dict[str, torch.Tensor] = view.tokenize(texts, side)
        return tokenized


@dataclass(frozen=True, slots=True)
class BySourceCollator:
    """Lays out each batch as the loss of its source needs it."""

    collators: Mapping[str, Callable[[Sequence[Example]], Batch]]

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Return what the source's own collator makes of the batch."""
        return self.collators[examples[0].source](examples)


@dataclass(frozen=True, slots=True)
class PairCollator:
    """Every query with each of its own documents, in one call of the tokenizer.

    ``texts`` adds queries and documents apart, for losses that need vectors of both.
    """

    encoder: PairEncoder
    texts: bool = False

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Return the features of the pairs and what the cells of their groups mean."""
        share = _Share(examples)
        batch = laid_out(group_targets(examples), examples)
        pairs = [(e.query.text, d.text) for e in share.own for d in e.documents]
        documents = share.sizes([len(e.documents) for e in examples])
        batch["features"] = {"pairs": self.encoder.tokenize_pairs(pairs)}
        batch["sizes"] = {"pairs": documents}
        if self.texts:
            tokenize: Any = self.encoder.tokenize_texts  # type: ignore[attr-defined]
            batch["features"] |= {
                "query": tokenize([e.query.text for e in share.own]),
                "document": tokenize([d.text for e in share.own for d in e.documents]),
            }
            batch["sizes"] |= {"query": share.sizes([1] * len(examples)), "document": documents}
        return batch


@dataclass(frozen=True, slots=True)
class QueryCollator:
    """Queries alone, for training against the live results of a frozen index."""

    encoder: BiEncoder

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Return the features of the queries and the ids they go by."""
        share = _Share(examples)
        ids = {"query": tuple(e.query.id for e in examples), "document": ()}
        return {
            "features": {
                "query": self.encoder.tokenize([e.query.text for e in share.own], "query")
            },
            "sizes": {"query": share.sizes([1] * len(examples))},
            "weights": row_weights(examples),
            "ids": ids,
        }


class ExampleList(Dataset[Example]):
    """Examples by position; they can be exchanged between epochs.

    Those of a mixture with streamed ones are drawn as they are.
    """

    def __init__(self, examples: Sequence[Example] | Mixture) -> None:
        self.examples: Any = examples if isinstance(examples, Mixture) else list(examples)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place: int | Example) -> Example:
        example: Example = place if isinstance(place, Example) else self.examples[place]
        return example

    def replace(self, examples: Sequence[Example]) -> None:
        """Exchange examples while an epoch runs: the same queries, in the same order."""
        if [e.query.id for e in examples] != [e.query.id for e in self.examples]:
            raise DataError(
                "refreshed examples: expected the same queries in the same order as before; only "
                "their documents may change within an epoch"
            )
        self.examples = list(examples)


# What a worker takes over from the server that forks it; a name that is wrong would be ignored.
PRELOADED = (BiEncoderCollator.__module__, ExampleList.__module__)


def batch_loader(
    examples: Dataset[Example],
    sampler: Iterable[list[Any]],
    collator: Any,
    settings: TrainingArguments,
) -> DataLoader[Example]:
    """Return batches in the sampler's order.

    Workers (``dataloader_num_workers``) do not start by a plain fork unless configured: a fork
    copies OpenMP's locks but not its threads, and the worker may hang or crash.
    """
    context: Any = None
    if settings.dataloader_num_workers:
        context = getattr(settings, "dataloader_multiprocessing_context", None) or "spawn"
        if context == "spawn" and "forkserver" in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(list(PRELOADED))
    return DataLoader(
        examples,
        batch_sampler=sampler,
        collate_fn=collator,
        num_workers=settings.dataloader_num_workers,
        pin_memory=settings.dataloader_pin_memory and torch.cuda.is_available(),
        multiprocessing_context=context,
    )
