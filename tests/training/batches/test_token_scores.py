"""MaxSim, its mean and XTR against formulas in plain float64 Python, and plain autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers.multi_vector_encoder.scoring.xtr import xtr_scores
from sentence_transformers.util.similarity import maxsim
from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.processes import peak_memory
from sluice.training.batches import scoring as token_scores
from sluice.training.batches.scoring import TokenScoring, widened_to

Floats = NDArray[np.float64]


def texts(count: int, longest: int, dim: int, seed: int, *, least: int = 1) -> Tensor:
    """Token vectors of length 1, ``[count, longest, dim]`` float64, of random lengths."""
    drawn = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, longest, dim, generator=drawn, dtype=torch.float64)
    lengths = torch.randint(least, longest + 1, (count, 1), generator=drawn)
    vectors = torch.nn.functional.normalize(vectors, dim=2)
    return vectors * (torch.arange(longest) < lengths)[..., None]


def by_hand(name: str, queries: Tensor, documents: Tensor, top_k: int = 0) -> Floats:
    """The formulas of ``TokenScoring``, one query and one document at a time."""
    tokens = [[v for v in text.tolist() if any(v)] for text in documents]
    scores = np.zeros((len(queries), len(documents)))
    for row, query in enumerate(queries.tolist()):
        asked = [v for v in query if any(v)]
        products = [
            [[sum(a * b for a, b in zip(q, d, strict=True)) for d in text] for text in tokens]
            for q in asked
        ]
        for column, text in enumerate(tokens):
            found = []
            for of_token in products:
                every = sorted((p for each in of_token for p in each), reverse=True)
                limit = min(every[:top_k], default=0.0) if name == "xtr" else -np.inf
                if not text:  # an XTR search never finds it
                    found += [] if name == "xtr" else [-1.0]
                elif max(of_token[column]) >= limit:
                    found.append(max(of_token[column]))
            count = {"max_sim": 1, "mean_max_sim": len(asked), "xtr": len(found)}[name]
            scores[row, column] = sum(found) / max(1, count)
    return scores


def plain(name: str, queries: Tensor, documents: Tensor, top_k: int) -> Tensor:
    """The same as one differentiable expression that holds all products."""
    products = torch.einsum("bqd,nld->bqnl", queries, documents)
    filled = (documents != 0).any(2)
    products = products.masked_fill(~filled, -torch.inf)
    best = products.max(3)[0]
    asked = (queries != 0).any(2)[..., None]
    counted = asked & filled.any(1)
    if name == "xtr":
        every = products.flatten(2)
        limit = every.topk(min(top_k, every.shape[2]), 2)[0][..., -1:]
        counted = counted & (best >= limit)
    best = torch.where(counted, best, 0.0)
    if name == "max_sim":
        return best.sum(1)
    count = counted.sum(1) if name == "xtr" else asked.sum(1)
    return best.sum(1) / count.clamp(min=1)


NAMES = ["max_sim", "mean_max_sim", "xtr"]


def scoring(name: str, top_k: int = 6) -> TokenScoring:
    return TokenScoring(name, top_k if name == "xtr" else None)  # type: ignore[arg-type]


@pytest.mark.parametrize("cells", [1, 40, 1 << 22])
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_the_formula(name: str, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_scores, "CELLS", cells)
    queries, documents = texts(4, 5, 6, 1), texts(7, 9, 6, 2)
    documents[3] = 0.0  # no tokens
    queries[2] = 0.0
    scores = scoring(name).scores(queries, documents)
    assert scores.dtype == torch.float64
    assert np.abs(scores.numpy() - by_hand(name, queries, documents, 6)).max() < 1e-12
    assert not scores[2].any()
    single = scoring(name).scores(queries.float(), documents.float())
    assert np.abs(single.numpy() - scores.numpy()).max() < 1e-5


@pytest.mark.parametrize("cells", [1, 40, 1 << 22])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_plain_autograd(
    name: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_scores, "CELLS", cells)
    queries = texts(4, 5, 6, 1).requires_grad_()
    documents = texts(7, 9, 6, 2).requires_grad_()
    weights = torch.randn(4, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    mine = scoring(name).scores(queries, documents)
    theirs = plain(name, queries, documents, 6)
    assert torch.allclose(mine, theirs, atol=1e-12)
    own = torch.autograd.grad((mine * weights).sum(), [queries, documents])
    expected = torch.autograd.grad((theirs * weights).sum(), [queries, documents])
    for one, other in zip(own, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    assert not own[0][queries == 0].any()  # what is no token has no gradient
    assert not own[1][documents == 0].any()


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_differences(name: str) -> None:
    queries = texts(2, 3, 4, 5, least=3).requires_grad_()  # moved zeros would become tokens
    documents = texts(3, 4, 4, 6, least=4).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q, d: scoring(name, 3).scores(q, d), (queries, documents), eps=1e-7, atol=1e-5
    )


def test_zeros_around_the_tokens_change_nothing() -> None:
    queries, documents = texts(3, 4, 5, 1), texts(6, 7, 5, 2)
    gaps = torch.cat([torch.zeros(6, 2, 5, dtype=torch.float64), documents], dim=1)
    for name in NAMES:
        scores = scoring(name).scores(queries, documents)
        wide = scoring(name).scores(widened_to(queries, 9), widened_to(gaps, 12))
        assert torch.equal(scores, wide)


def test_all_products_below_zero() -> None:
    """Padding, whose products are 0, must not be the best."""
    queries = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    documents = torch.tensor([[[-0.6, -0.8], [0.0, 0.0]]])
    assert scoring("max_sim").scores(queries, documents).item() == pytest.approx(-1.4)
    assert scoring("xtr", 1).scores(queries, documents).item() == pytest.approx(-0.7)


def test_of_equal_tokens_the_first_learns() -> None:
    queries = torch.tensor([[[1.0, 0.0]]])
    documents = torch.tensor([[[0.6, 0.8], [0.6, 0.8]]], requires_grad=True)
    scoring("max_sim").scores(queries, documents).sum().backward()  # type: ignore[no-untyped-call]
    assert documents.grad is not None
    assert documents.grad.tolist() == [[[1.0, 0.0], [0.0, 0.0]]]


def test_xtr_of_all_tokens_is_the_mean_and_ties_all_count() -> None:
    queries, documents = texts(3, 4, 5, 1), texts(6, 7, 5, 2)
    everything = scoring("xtr", 1000).scores(queries, documents)
    assert torch.allclose(everything, scoring("mean_max_sim").scores(queries, documents))
    twins = documents[:1].expand(4, -1, -1)
    scores = scoring("xtr", 1).scores(queries, twins)
    assert (scores == scores[:, :1]).all()
    assert (scores > 0).all()


@pytest.mark.parametrize("unit", [False, True])
def test_unit_makes_each_token_as_long(unit: bool) -> None:
    queries, documents = 3 * texts(3, 4, 5, 1), 0.5 * texts(6, 7, 5, 2)
    scores = scoring("max_sim").scores(queries, documents, unit=unit)
    expected = by_hand("max_sim", queries / 3, documents * 2) * (1 if unit else 1.5)
    assert np.abs(scores.numpy() - expected).max() < 1e-12


def test_equals_sentence_transformers() -> None:
    queries, documents = texts(4, 5, 16, 1).float(), texts(8, 9, 16, 2).float()
    ours = scoring("max_sim").scores(queries, documents)
    assert torch.allclose(ours, maxsim(queries, documents), atol=1e-5)
    grouped = documents.view(4, 2, 9, 16)
    assert torch.allclose(
        scoring("xtr", 11).scores(queries, documents), xtr_scores(queries, grouped, top_k=11),
        atol=1e-5,
    )  # fmt: skip


def test_no_queries_or_documents() -> None:
    none = torch.zeros(0, 5, 6, requires_grad=True)
    some = texts(2, 3, 6, 1).float().requires_grad_()
    for name in NAMES:
        assert scoring(name).scores(none, some).shape == (0, 2)
        assert scoring(name).scores(some, none).shape == (2, 0)
        scores = scoring(name).scores(some, torch.zeros(2, 0, 6))
        assert scores.tolist() == by_hand(name, some, torch.zeros(2, 0, 6), 6).tolist()
        scores.sum().backward()  # type: ignore[no-untyped-call]
        assert not some.grad.any()  # type: ignore[union-attr]


def test_a_large_batch_needs_little_memory() -> None:
    """64 x 256 documents of 180 tokens: all products would be 377 MB, their copies more."""
    queries, documents = texts(64, 32, 64, 1).float(), texts(256, 180, 64, 2).float()
    queries.requires_grad_()
    documents.requires_grad_()
    whole = 64 * 32 * 256 * 180 * 4
    scoring("max_sim").scores(queries[:2], documents[:2]).sum().backward()  # type: ignore[no-untyped-call]
    with peak_memory() as peak:
        before = peak()
        scoring("max_sim").scores(queries, documents).sum().backward()  # type: ignore[no-untyped-call]
        taken = peak() - before
    assert taken < whole / 2, (taken, whole)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match=r"scoring: 'maxsim'.*did you mean"):
        TokenScoring("maxsim")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="xtr_top_k: 5: is for scoring: xtr"):
        TokenScoring("mean_max_sim", 5)
    with pytest.raises(ConfigError, match="expected 1 or more"):
        TokenScoring("xtr", 0)
    assert TokenScoring("xtr").facts == {"name": "xtr", "top_k": 256}
