"""Examples by position, and the loader of their batches: in this process or in workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import TrainingArguments

from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.collator import BiEncoderCollator
from sluice.training.example import Example


class ExampleList(Dataset[Example]):
    """Examples by position; they can be exchanged between epochs."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = list(examples)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place: int) -> Example:
        return self.examples[place]

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
    sampler: Iterable[list[int]],
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
