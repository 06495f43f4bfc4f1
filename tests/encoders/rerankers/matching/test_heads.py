"""The scores of the rankers' heads, against plain float64 formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.own.matching.interactions import (
    BestMatches,
    Histograms,
    Image,
    KernelPooling,
    Kernels,
    LocalAndDistributed,
    NGramKernels,
    pooled,
)
from sluice.encoders.own.matching.ranker import Head
from sluice.encoders.own.matching.sources import OneText, Pairs, aligned, stacked

Array = NDArray[np.float64]
DIM = 5
SIZES = [(3, 6), (1, 2), (4, 1), (0, 4), (3, 0), (0, 0), (2, 7)]  # tokens of queries, documents
HEADS: dict[type[Head], dict[str, int]] = {
    KernelPooling: {"kernels": 5},
    NGramKernels: {"kernels": 4, "ngrams": 2, "filters": 3},
    Histograms: {"bins": 6, "hidden": 3},
    Image: {"filters": 2, "rows": 2, "columns": 3, "hidden": 4},
    BestMatches: {"ngrams": 2, "filters": 3, "top": 2, "hidden": 4},
    LocalAndDistributed: {"filters": 4, "query_terms": 3, "document_terms": 5},
}


def texts(lengths: list[int], seed: int) -> list[OneText]:
    """Unit vectors of tokens of which some are the same in all texts."""
    drawn = np.random.default_rng(seed)
    table = np.random.default_rng(0).standard_normal((12, DIM))
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    made = []
    for length in lengths:
        ids = drawn.integers(0, len(table), length)
        made.append(OneText(torch.from_numpy(table[ids]), torch.from_numpy(ids)))
    return made


QUERIES, DOCUMENTS = (texts([s[side] for s in SIZES], side + 1) for side in (0, 1))
PAIRS = Pairs(stacked(QUERIES), stacked(DOCUMENTS))


def head_of(kind: type[Head]) -> Any:
    torch.manual_seed(3)
    head = kind(DIM, **HEADS[kind]).double()
    for name, parameter in head.named_parameters():
        if name.endswith("bias"):  # so that what lies outside a text would show
            nn.init.uniform_(parameter, 0.1, 0.5)
    return head


def plain(module: Any) -> tuple[Array, Array]:
    return module.weight.detach().numpy(), module.bias.detach().numpy()


def linear(module: Any, values: Array) -> Array:
    weight, bias = plain(module)
    return np.asarray(weight @ values + bias)


def features(one: Array, other: Array, kernels: int) -> list[float]:
    """KNRM's, written as in the paper: K-NRM eq. 4 to 6."""
    step = 2 / (kernels - 1)
    centres = [(1.0, 1e-3)] + [(1 - step * (n + 0.5), step / 2) for n in range(kernels - 1)]
    found = []
    for mean, width in centres:
        total = 0.0
        for u in one:
            inside = sum(math.exp(-((float(u @ v) - mean) ** 2) / (2 * width**2)) for v in other)
            total += 0.01 * math.log(max(inside, 1e-10))
        found.append(total)
    return found


def knrm(head: Any, q: OneText, d: OneText) -> float:
    return linear(head.outer, np.array(features(q.vectors.numpy(), d.vectors.numpy(), 5)))[0]


def conv_knrm(head: Any, q: OneText, d: OneText) -> float:
    def grams(text: OneText, size: int) -> Array:
        weight, bias = plain(head.convolutions[size - 1])  # [filters, dim, size]
        ended = np.vstack([text.vectors.numpy(), np.zeros((size, DIM))])
        made = [
            np.maximum(0, bias + sum(weight[:, :, k] @ ended[i + k] for k in range(size)))
            for i in range(len(text.ids))
        ]
        return np.array([v / max(np.linalg.norm(v), 1e-12) for v in made]).reshape(-1, 3)

    found: list[float] = []
    for one in (1, 2):
        for other in (1, 2):
            found += features(grams(q, one), grams(d, other), 4)
    return linear(head.outer, np.array(found))[0]


def gates(head: Any, q: OneText) -> Array:
    logits = q.vectors.numpy() @ head.gate.weight.weight.detach().numpy()[0]
    return np.exp(logits) / np.exp(logits).sum() if len(logits) else logits


def drmm(head: Any, q: OneText, d: OneText) -> float:
    total, weights = 0.0, gates(head, q)
    for u, weight in zip(q.vectors.numpy(), weights, strict=True):
        counts = np.zeros(6)
        for v in d.vectors.numpy():
            cosine = min(1.0, max(-1.0, float(u @ v)))
            if cosine >= 0.999:
                counts[5] += 1
                continue
            for bin_of, centre in enumerate(np.linspace(-1, 1, 5)):
                counts[bin_of] += max(0.0, 1 - abs(cosine - centre) / 0.5)
        inner = np.tanh(linear(head.network[0], np.log(1 + counts)))
        total += weight * np.tanh(linear(head.network[2], inner))[0]
    return total


def match_pyramid(head: Any, q: OneText, d: OneText) -> float:
    cosines = np.pad(q.vectors.numpy() @ d.vectors.numpy().T, 1)
    weight, bias = plain(head.convolution)
    rows, columns = len(q.ids), len(d.ids)
    image = np.array([
        [[max(0, bias[f] + (weight[f, 0] * cosines[i : i + 3, j : j + 3]).sum())
          for j in range(columns)] for i in range(rows)] for f in range(2)
    ]).reshape(2, rows, columns)  # fmt: skip
    grid = np.zeros((2, 2, 3))
    for f, r, c in np.ndindex(grid.shape):
        part = image[
            f,
            r * rows // 2 : math.ceil((r + 1) * rows / 2),
            c * columns // 3 : math.ceil((c + 1) * columns / 3),
        ]
        grid[f, r, c] = part.max() if part.size else 0.0
    inner = np.maximum(0, linear(head.network[0], grid.reshape(-1)))
    return linear(head.network[2], inner)[0]


def pacrr(head: Any, q: OneText, d: OneText) -> float:
    cosines = q.vectors.numpy() @ d.vectors.numpy().T
    weight, bias = plain(head.convolutions[0])
    around = np.pad(cosines, ((0, 1), (0, 1)))
    state, cell = np.zeros(4), np.zeros(4)
    reader = {n: p.detach().numpy() for n, p in head.reader.named_parameters()}

    def sigmoid(x: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-x)))

    for i, gate in enumerate(gates(head, q)):
        pairs = [
            max(max(0.0, bias[f] + (weight[f, 0] * around[i : i + 2, j : j + 2]).sum())
                for f in range(3))
            for j in range(len(d.ids))
        ]  # fmt: skip
        row = [
            value
            for signals in (cosines[i].tolist(), pairs)
            for value in [*sorted(signals, reverse=True), 0.0, 0.0][:2]
        ]
        sums = (
            reader["weight_ih_l0"] @ np.array([*row, gate]) + reader["bias_ih_l0"]
            + reader["weight_hh_l0"] @ state + reader["bias_hh_l0"]
        )  # fmt: skip
        enter, forget, new, out = sums.reshape(4, 4)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
        state = sigmoid(out) * np.tanh(cell)
    return linear(head.outer, state)[0]


def duet(head: Any, q: OneText, d: OneText) -> float:
    equal = np.zeros((3, 5))
    for i, one in enumerate(q.ids[:3].tolist()):
        for j, other in enumerate(d.ids[:5].tolist()):
            equal[i, j] = one == other
    local = np.concatenate([np.tanh(linear(head.rows, row)) for row in equal])

    def represented(text: OneText, side: int, parts: int) -> list[Array]:
        weight, bias = plain(head.convolutions[side])
        padded = np.pad(text.vectors.numpy(), ((1, 1), (0, 0)))
        length = len(text.ids)
        values = [
            np.tanh(bias + sum(weight[:, :, k] @ padded[i + k] for k in range(3)))
            for i in range(length)
        ]
        made = []
        for p in range(parts):
            part = values[p * length // parts : math.ceil((p + 1) * length / parts)]
            largest = np.max(part, axis=0) if part else np.zeros(4)
            made.append(np.tanh(linear(head.layers[side], largest)))
        return made

    def network(layers: Any, values: Array) -> float:
        return linear(layers[2], np.tanh(linear(layers[0], values)))[0]

    (query,) = represented(q, 0, 1)
    products = np.concatenate([query * each for each in represented(d, 1, 8)])
    return network(head.local, local) + network(head.distributed, products)


FORMULAS: dict[type[Head], Callable[[Any, OneText, OneText], float]] = {
    KernelPooling: knrm, NGramKernels: conv_knrm, Histograms: drmm, Image: match_pyramid,
    BestMatches: pacrr, LocalAndDistributed: duet,
}  # fmt: skip


@pytest.mark.parametrize("kind", HEADS)
def test_scores_are_the_formula_whatever_lies_beside_them(kind: type[Head]) -> None:
    head = head_of(kind)
    expected = [FORMULAS[kind](head, q, d) for q, d in zip(QUERIES, DOCUMENTS, strict=True)]
    # DRMM adds what it judges of query tokens, so that without any all documents have 0.
    assert len(set(np.round(expected, 9))) >= 5
    with torch.no_grad():
        np.testing.assert_allclose(head(PAIRS).numpy(), expected, rtol=0, atol=1e-10)
        widened = Pairs(*(stacked([*each, longer])
                          for each, longer in zip((QUERIES, DOCUMENTS), texts([9, 11], 4),
                                                  strict=True)))  # fmt: skip
        np.testing.assert_allclose(head(widened).numpy()[:-1], expected, rtol=0, atol=1e-10)
        order = torch.tensor([6, 2, 2, 0])
        chosen = Pairs(PAIRS.queries.rows(order), PAIRS.documents.rows(order))
        found = head(chosen).numpy()
    np.testing.assert_allclose(found, np.array(expected)[order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", HEADS)
def test_gradients_are_finite_differences(kind: type[Head]) -> None:
    """Of the vectors (where a head has such gradients), and of the weights along one direction."""
    head = head_of(kind)
    if kind.differentiable:
        drawn = torch.Generator().manual_seed(2)
        noise = torch.randn(PAIRS.documents.vectors.shape, generator=drawn, dtype=torch.float64)
        noise *= PAIRS.documents.mask.unsqueeze(2)
        vectors = (PAIRS.documents.vectors + 0.1 * noise).requires_grad_()  # no two are the same
        queries = PAIRS.queries

        def scored(values: Any) -> Any:
            return head(Pairs(queries, PAIRS.documents._replace(vectors=values)))

        weights = torch.linspace(1, 2, len(SIZES), dtype=torch.float64)
        (scored(vectors) @ weights).backward()
        assert vectors.grad is not None
        direction, step = noise.flip(2), 1e-7
        with torch.no_grad():
            up, down = (scored(vectors + s * step * direction) @ weights for s in (1, -1))
        slope = float((vectors.grad * direction).sum())
        assert slope == pytest.approx(float(up - down) / (2 * step), rel=1e-4, abs=1e-7)
        assert abs(slope) > 1e-6
    head.zero_grad()
    head(PAIRS).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in head.parameters())
    assert all(p.grad.any() for p in head.parameters() if p.dim() > 1)


def test_the_exact_kernel_counts_equal_terms_of_one_hot_vectors() -> None:
    """Of one-hot vectors K_1 is each query term's frequency in the document."""
    eye = torch.eye(6, dtype=torch.float64)
    query, document = torch.tensor([0, 3, 5]), torch.tensor([3, 3, 1, 0, 3, 2])
    pairs = Pairs(*(stacked([OneText(eye[ids], ids)]) for ids in (query, document)))
    sums = Kernels(11).sums(pairs.cosines(), pairs.documents.mask)
    assert sums[0, :, 0].tolist() == [1.0, 3.0, 0.0]


def test_kernels_are_those_of_the_paper() -> None:
    kernels = Kernels(11)
    assert kernels.means == pytest.approx([1, *np.arange(0.9, -1, -0.2)])
    assert kernels.widths == pytest.approx([1e-3, *[0.1] * 10])


def test_a_histogram_counts_every_token_once() -> None:
    head = head_of(Histograms)
    counts = head.counts(PAIRS).sum(2)
    for row, (queries, documents) in enumerate(SIZES):
        expected = np.zeros(counts.shape[1])
        expected[:queries] = documents
        np.testing.assert_allclose(counts[row].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_pooling_is_torchs_over_each_rows_own_length(parts: int) -> None:
    values = torch.randn(6, 2, 7, generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([7, 5, 3, 2, 1, 0])
    found = pooled(values, lengths, parts, 2)
    for row, length in enumerate(lengths.tolist()):
        own = values[row : row + 1, :, :length]
        expected = nn.functional.adaptive_max_pool1d(own, parts) if length else torch.zeros(1, 2, 1)
        assert (found[row] == expected[0]).all()


def test_own_tokens_move_together() -> None:
    vectors = torch.arange(1.0, 13.0).reshape(2, 3, 2)
    ids = torch.tensor([[5, 6, 7], [8, 9, 4]])
    found = aligned(vectors, ids, torch.tensor([[False, True, True], [False, False, False]]))
    assert found.lengths.tolist() == [2, 0]
    assert found.ids.tolist() == [[6, 7], [-1, -1]]
    np.testing.assert_allclose(found.vectors[0, 0], np.array([3, 4]) / 5)
    assert not found.vectors[1].any()
    nothing = aligned(vectors[1:], ids[1:], torch.zeros(1, 3, dtype=torch.bool))
    assert nothing.vectors.shape == (1, 1, 2)
    assert stacked([OneText(vectors[0, :0], ids[0, :0])]).ids.tolist() == [[-1]]


@pytest.mark.parametrize(
    ("kind", "setting", "message"),
    [
        (KernelPooling, {"kernels": 1}, "kernels is 1, expected a whole number, 2 to 101"),
        (NGramKernels, {"ngrams": 9}, "ngrams is 9"),
        (NGramKernels, {"filters": 0}, "filters is 0"),
        (Histograms, {"bins": 2}, "bins is 2"),
        (Histograms, {"hidden": 0}, "hidden is 0"),
        (Image, {"columns": 0}, "columns is 0"),
        (BestMatches, {"top": 0}, "top is 0"),
        (LocalAndDistributed, {"query_terms": 0}, "query_terms is 0"),
        (LocalAndDistributed, {"document_terms": 1_000_000}, "document_terms is 1000000"),
    ],
)
def test_settings_out_of_range_are_refused(
    kind: type[Head], setting: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(DIM, **setting)
