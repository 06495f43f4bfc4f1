"""A first-in, first-out queue of the vectors of the latest pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Pairs(NamedTuple):
    """Codes of the queries and of their positive documents, int64 ``[n]`` each."""

    queries: Tensor
    documents: Tensor


def codes(ids: Iterable[str]) -> Tensor:
    """Return 64-bit hashes of ids, the same in every run."""
    return torch.tensor([_code(each) for each in ids], dtype=torch.long)


class VectorQueue:
    """The last ``size`` pairs' vectors, oldest first, without gradients.

    ``names`` are the kinds of vectors a pair has, of ``dim`` dimensions each. What is staged joins
    at ``push``. A batch larger than the queue leaves its last pairs.
    """

    def __init__(self, size: int, dim: int, names: Sequence[str], device: torch.device) -> None:
        self.size = size
        self.dim = dim
        self._vectors = {name: torch.zeros((0, dim), device=device) for name in names}
        empty = torch.zeros(0, dtype=torch.long, device=device)
        self.pairs = Pairs(empty, empty)
        self._staged: list[tuple[dict[str, Tensor], Pairs]] = []

    def __len__(self) -> int:
        return len(self.pairs.queries)

    def __getitem__(self, name: str) -> Tensor:
        """Return the vectors of one name, ``[len, dim]``."""
        return self._vectors[name]

    def stage(self, vectors: Mapping[str, Tensor], pairs: Pairs) -> None:
        """Keep a batch's vectors, ``[B, dim]`` under every name, for the next ``push``."""
        if not self.size:
            return
        copies = {name: values.detach().clone() for name, values in vectors.items()}
        self._staged.append((copies, pairs))
        waiting = sum(len(each.queries) for _, each in self._staged[1:])
        if waiting >= self.size:  # the first would fall out again
            del self._staged[0]

    def push(self) -> None:
        """Append what was staged, and drop the oldest beyond ``size``."""
        for vectors, pairs in self._staged:
            for name, held in self._vectors.items():
                self._vectors[name] = torch.cat([held, vectors[name].to(held)])[-self.size :]
            self.pairs = Pairs(
                *(
                    torch.cat([held, new.to(held)])[-self.size :]
                    for held, new in zip(self.pairs, pairs, strict=True)
                )
            )
        self._staged = []

    def state(self) -> dict[str, Tensor]:
        """Return vectors and codes by name."""
        pairs = self.pairs
        return {"of.queries": pairs.queries, "of.documents": pairs.documents, **self._vectors}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` returned; what was staged is dropped."""
        self._staged = []
        for name, held in self._vectors.items():
            self._vectors[name] = state[name].to(held).clone()
        device = self.pairs.queries.device
        self.pairs = Pairs(
            state["of.queries"].to(device).clone(), state["of.documents"].to(device).clone()
        )


def _code(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
