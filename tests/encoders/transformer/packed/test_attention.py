"""Attention and norms of packed passes against plain formulas in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from sluice.encoders.transformer.packed.attention import (
    BLOCK,
    Heads,
    Sight,
    TextAttention,
)
from sluice.encoders.transformer.packed.norms import RootMeanSquare, norm_of

HEADS = Heads(queries=4, keys=2, size=6)
LONG = 2 * BLOCK + 42
LENGTHS = [LONG, 9, 9, 4, 1]
SEEN = [LONG - 30, 9, 4, 2, 1]


def turned(rows: Any) -> Any:
    """Rotate ``[length, size]``: a head's halves are the two parts of complex numbers."""
    half = rows.shape[1] // 2
    angles = np.arange(len(rows))[:, None] / 100.0 ** (np.arange(half) / half)
    pairs = (rows[:, :half] + 1j * rows[:, half:]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], axis=1)


def tables(length: int) -> torch.Tensor:
    half = HEADS.size // 2
    angles = np.arange(length)[:, None] / 100.0 ** (np.arange(half) / half)
    return torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)])).float()


def expected(tokens: Any, seen: list[int], sight: Sight, rotates: bool, bias: Any) -> Any:
    """Attend one text and one head at a time."""
    out = np.zeros((len(tokens), HEADS.queries, HEADS.size))
    ends = np.cumsum(LENGTHS)
    for text, end in enumerate(ends):
        places = np.arange(LENGTHS[text])
        rows = tokens[end - len(places) : end].astype(np.float64)
        rows = rows.reshape(len(places), -1, HEADS.size)
        visible = np.broadcast_to(places < seen[text], (len(places), len(places))).copy()
        if sight.causal:
            visible &= places[None] <= places[:, None]
        if sight.window is not None:
            visible &= np.abs(places[None] - places[:, None]) <= sight.window
        for head in range(HEADS.queries):
            asked = HEADS.queries + head // 2
            query, key, value = rows[:, head], rows[:, asked], rows[:, asked + HEADS.keys]
            if rotates:
                query, key = turned(query), turned(key)
            scores = 0.3 * query @ key.T
            if bias is not None:
                scores = scores + np.asarray(bias)[head, : len(places), : len(places)]
            shares = np.exp(scores) * visible
            total = shares.sum(axis=1, keepdims=True)
            # A token that sees none has zeros.
            out[end - len(places) : end, head] = shares @ value / np.where(total == 0, 1, total)
    return out.reshape(len(tokens), -1)


@pytest.fixture(scope="module")
def tokens() -> Any:
    width = (HEADS.queries + 2 * HEADS.keys) * HEADS.size
    return np.random.default_rng(5).normal(size=(sum(LENGTHS), width)).astype(np.float32)


CASES = {
    "all": (Sight(), False, False, None),
    "rotated": (Sight(), True, False, None),
    "causal": (Sight(causal=True), True, False, None),
    "causal, some unseen": (Sight(causal=True), True, False, SEEN),
    "window": (Sight(window=3), True, False, None),
    "window, some unseen": (Sight(window=2), True, False, SEEN),
    "causal window": (Sight(causal=True, window=3), True, False, None),
    "bias": (Sight(), False, True, None),
    "bias, some unseen": (Sight(), False, True, SEEN),
    "bias, causal window": (Sight(causal=True, window=2), False, True, None),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_attention_is_the_formula(case: str, dtype: torch.dtype, tokens: Any) -> None:
    sight, rotates, biased, seen = CASES[case]
    bias = None
    if biased:
        values = np.random.default_rng(6).normal(size=(HEADS.queries, LONG, LONG))
        bias = torch.from_numpy(values).to(dtype)
    attend = TextAttention(
        LENGTHS, HEADS, seen, scale=0.3, bias=bias, sight=sight,
        turns=tables(LONG) if rotates else None,
    )  # fmt: skip
    projected = torch.from_numpy(tokens).to(dtype)
    atol = 1e-5 if dtype is torch.float32 else 0.05
    with torch.inference_mode():
        found = attend(projected.clone()).float()
    floats = None if bias is None else bias.float()
    right = expected(projected.float().numpy(), seen or LENGTHS, sight, rotates, floats)
    np.testing.assert_allclose(found, right, atol=atol)
    width = HEADS.queries * HEADS.size
    ends = np.cumsum(LENGTHS)
    for last, rows in ((False, ends - LENGTHS), (True, ends - 1)):
        with torch.inference_mode():
            one = attend.single(projected[rows, :width], projected[:, width:], last=last).float()
        np.testing.assert_allclose(one, right[rows], atol=atol)


def test_a_bias_goes_through_torchs_fused_kernel() -> None:
    bias, projected = torch.zeros(4, 9, 9), torch.ones(2 * 7, 3 * 4 * 6)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.inference_mode():
        TextAttention([7, 7], Heads(4, 4, 6), bias=bias)(projected)


def test_root_mean_square_is_the_formula() -> None:
    values = np.random.default_rng(7).normal(size=(5, 3, 8)) * 3
    weight = np.random.default_rng(8).normal(size=8)
    right = values / np.sqrt((values**2).mean(-1, keepdims=True) + 1e-3) * weight
    norm = RootMeanSquare(torch.from_numpy(weight).float(), 1e-3)
    found = norm(torch.from_numpy(values).float())
    np.testing.assert_allclose(found, right, atol=1e-5)
    assert not norm(torch.zeros(2, 8)).any()


def test_norms_of_other_makers_are_refused() -> None:
    assert norm_of(None) is None
    assert norm_of(torch.nn.Identity()) is None
    with pytest.raises(TypeError, match="GroupNorm"):
        norm_of(torch.nn.GroupNorm(2, 4))
