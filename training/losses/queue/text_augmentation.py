"""Soft augmentation: tokens of a text masked or replaced, as a function of seed and step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

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
