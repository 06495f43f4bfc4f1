"""The keys of momentum contrast: a slow encoder, its augmented texts, a queue of their vectors."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.protocol import Features, Side

Mode = Literal[0, 1, 2, 3]
MODES: tuple[Mode, ...] = (0, 1, 2, 3)
CLASSES = 24  # of frequency; a word half as frequent as the most frequent one is one class on


@dataclass(frozen=True, slots=True)
class Tokens:
    """What augmentation knows of a tokenizer.

    ``mask`` is the token that hides another, ``ordinary`` ``[vocabulary]`` is False for special
    tokens, which are neither touched nor put in.
    """

    mask: int
    ordinary: Tensor


def count_tokens(features: Features, vocabulary: int) -> Tensor:
    """Return how often each token occurs in a batch, int64 ``[vocabulary]``."""
    ids, real = features["input_ids"], features["attention_mask"].bool()
    return torch.bincount(ids[real].cpu(), minlength=vocabulary)


def frequency_classes(counts: Tensor) -> Tensor:
    """Return each token's class by frequency: ``floor(log2(most / count) + 1/2)``, at most 23.

    ``counts`` ``[vocabulary]``; a token never seen is in the last class.
    """
    most = counts.max().clamp(min=1).double()
    classes = (most / counts.clamp(min=1).double()).log2().add(0.5).floor().long()
    return classes.clamp(max=CLASSES - 1).masked_fill(counts == 0, CLASSES - 1)


def representatives(counts: Tensor, classes: Tensor, tokens: Tokens) -> Tensor:
    """Return the token that represents each class ``[CLASSES]``: its most frequent, then lowest.

    A class without ordinary tokens has the mask.
    """
    ids = tokens.ordinary.nonzero()[:, 0].numpy()
    of, often = classes.numpy()[ids], counts.numpy()[ids]
    order = np.lexsort((ids, -often, of))
    present, first = np.unique(of[order], return_index=True)
    chosen = torch.full((CLASSES,), tokens.mask)
    chosen[torch.from_numpy(present)] = torch.from_numpy(ids[order][first])
    return chosen


def augmented(
    features: Features,
    mode: Mode,
    counts: Tensor,
    tokens: Tokens,
    *,
    rate: float,
    seed: int,
    step: int,
    side: Side,
) -> Features:
    """Return the features with about ``rate`` of their ordinary tokens changed.

    Mode 0 masks a chosen token (80 %), replaces it by a random ordinary one (10 %) or leaves it;
    1 replaces it by the token that stands for its class of frequency; 2 draws one class of a text
    and replaces that class's tokens by its token; 3 does the same with the mask. The classes are by
    ``counts`` ``[vocabulary]``. In 2 and 3 a class is drawn as likely as it has tokens in the text,
    and of a large class a share ``rate`` of the text changes, at least one token.

    CoCoSoDa, Shi et al. 2023, section 3.2 (its released loop leaves texts unchanged in modes 1
    and 2; this is what the paper says).
    """
    random = np.random.default_rng([seed, step, side == "document"])
    ids, real = features["input_ids"], features["attention_mask"].bool()
    device = ids.device
    ids, real = ids.cpu(), real.cpu()
    free = real & tokens.ordinary[ids]
    draws = torch.from_numpy(random.random((3, *ids.shape)))
    classes = frequency_classes(counts)
    if mode == 0:
        words = tokens.ordinary.nonzero()[:, 0]
        other = words[(draws[2] * len(words)).long()] if len(words) else ids
        put = torch.where(draws[1] < 0.8, tokens.mask, torch.where(draws[1] < 0.9, other, ids))
    elif mode == 3:
        put = torch.full_like(ids, tokens.mask)
    else:
        put = representatives(counts, classes, tokens)[classes[ids]]
        free = free & (put != ids)  # what stands for its class already cannot change
    if mode in (0, 1):
        chosen = free & (draws[0] < rate)
    else:
        chosen = _of_one_class(classes[ids], free, draws[:2], rate)
    return {**features, "input_ids": torch.where(chosen, put, ids).to(device)}


def _of_one_class(classes: Tensor, free: Tensor, draws: Tensor, rate: float) -> Tensor:
    """``[n, length]``: the tokens to change where each text has one class drawn."""
    if rate <= 0:
        return torch.zeros_like(free)
    # The class of a token drawn at random among the text's own.
    drawn = draws[0].masked_fill(~free, -1.0).argmax(1, keepdim=True)
    same = free & (classes == classes.gather(1, drawn))
    most = (free.sum(1, keepdim=True) * rate).round().clamp(min=1)
    order = draws[1].masked_fill(~same, 2.0).argsort(1).argsort(1)
    return same & (order < most)


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


ROWS = 256  # texts of one pass
COUNTS = "counts"  # of tokens, among the state's names of weights


class KeyEncoder:
    """A copy of an encoder in evaluation mode, whose weights are a moving average of the trained.

    ``counts`` are of the tokens in the texts so far, which sort them into classes of frequency.
    """

    def __init__(self, encoder: Any, tokens: Tokens) -> None:
        shared = (hooks_of(encoder).tokenizer, hooks_of(encoder).backend)
        self._trained: nn.Module = encoder.module
        self._copy = copy.deepcopy(encoder, {id(part): part for part in shared})
        self.module: nn.Module = self._copy.module
        self.module.eval()
        self.module.requires_grad_(False)
        self.tokens = tokens
        self.vocabulary = len(tokens.ordinary)
        self.counts = torch.zeros(self.vocabulary, dtype=torch.long)
        self._staged = torch.zeros_like(self.counts)

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return vectors ``[n, dim]`` without gradients."""
        total = len(features["input_ids"])
        parts = []
        with torch.no_grad():
            for start in range(0, total, ROWS):
                part = {name: values[start : start + ROWS] for name, values in features.items()}
                parts.append(self._copy.embed(part, side))
        return torch.cat(parts)

    def stage(self, counts: Tensor) -> None:
        """Keep a batch's counts of tokens for the next ``follow``."""
        self._staged += counts

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """Move to ``momentum`` times the own weights plus the rest of the trained ones."""
        self.counts += self._staged
        self._staged = torch.zeros_like(self.counts)
        trained = dict(self._trained.named_parameters())
        for name, parameter in self.module.named_parameters():
            if momentum == 0:  # exactly, whatever the sum would round to
                parameter.copy_(trained[name])
            elif momentum < 1:
                parameter.mul_(momentum).add_(trained[name].detach(), alpha=1 - momentum)
        buffers = dict(self._trained.named_buffers())
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])

    def state(self) -> dict[str, Tensor]:
        """Return weights and counts by name."""
        weights = {name: value.detach().clone() for name, value in self.module.named_parameters()}
        return {**weights, COUNTS: self.counts.clone()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` returned."""
        for name, parameter in self.module.named_parameters():
            parameter.copy_(state[name])
        self.counts = state[COUNTS].cpu().clone()
        self._staged = torch.zeros_like(self.counts)


def tokens_of(encoder: Any) -> Tokens:
    """Return what augmentation needs to know of an encoder's tokens.

    Without a mask token the unknown one hides others, without this the padding.
    """
    rows = [m.num_embeddings for m in encoder.module.modules() if isinstance(m, nn.Embedding)]
    if not rows:
        raise ConfigError(
            "momentum_queue.modes: this encoder has no embeddings of tokens to augment; expected []"
        )
    ordinary = torch.ones(max(rows), dtype=torch.bool)
    # An encoder's own; of separate towers, theirs.
    parts = (encoder, *hooks_of(encoder).towers.values())
    owned = [hooks_of(part).tokenizer for part in parts]
    tokenizers = [tokenizer for tokenizer in owned if tokenizer is not None]
    special = {i for each in tokenizers for i in each.all_special_ids} if tokenizers else {0}
    ordinary[sorted(i for i in special if i < len(ordinary))] = False
    masks = {_hiding(tokenizer) for tokenizer in tokenizers} or {0}
    if len(masks) > 1:
        raise ConfigError(
            "momentum_queue.modes: the towers' tokenizers have different mask tokens; expected []"
        )
    return Tokens(masks.pop(), ordinary)


def _hiding(tokenizer: Any) -> int:
    names = ("mask_token_id", "unk_token_id", "pad_token_id")
    ids = (getattr(tokenizer, name, None) for name in names)
    return next((token for token in ids if token is not None), 0)
