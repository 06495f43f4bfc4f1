"""InfoNCE with its options and the decoupled softmax against straight-line formulas."""

import math
from collections.abc import Callable
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.batches.vector_batch import VectorBatch, matrix_targets
from sluice.training.losses import LOSSES
from sluice.training.losses.contrastive.softmax import DecoupledSoftmax, InfoNCE
from sluice.training.protocol import Example, Text

NEGATIVES = ("all", "own", "inbatch_pos", "inbatch_pos+own")


def examples(count: int, negatives: int = 0, positives: int = 1) -> list[Example]:
    return [
        Example(
            Text(f"q{i}", f"query {i}"),
            (
                *(Text(f"d{i}{j}", f"document {i} {j}") for j in range(positives)),
                *(Text(f"n{i}{j}", f"negative {i} {j}") for j in range(negatives)),
            ),
            labels=(1.0,) * positives + (0.0,) * negatives,
        )
        for i in range(count)
    ]


def vectors(
    made: list[Example], *, cosine: bool = True, weights: Tensor | None = None, **options: Any
) -> VectorBatch:
    """Random float64 vectors for the examples, with what the collator lays out."""
    targets = matrix_targets(made, **options)
    owners = torch.tensor([row for row, e in enumerate(made) for _ in e.documents])
    return VectorBatch(
        torch.randn(len(made), 6, dtype=torch.float64, requires_grad=True),
        torch.randn(len(owners), 6, dtype=torch.float64, requires_grad=True),
        labels=targets.labels,
        mask=targets.mask,
        positives=targets.positives,
        owners=owners,
        weights=weights,
        cosine=cosine,
        ids={
            "query": tuple(e.query.id for e in made),
            "document": tuple(d.id for e in made for d in e.documents),
        },
    )


def gradients(value: Tensor, batch: VectorBatch) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, (batch.queries, batch.documents), retain_graph=True)


def agree(ours: Tensor, theirs: Tensor, batch: VectorBatch) -> None:
    assert abs((ours - theirs).item()) < 1e-10
    for one, other in zip(gradients(ours, batch), gradients(theirs, batch), strict=True):
        assert (one - other).abs().max() < 1e-10


def straight(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor,
    weights: Tensor | None = None,
    weigh: Callable[[float], float] = lambda probability: 1.0,
) -> Tensor:
    """Row by row, positive by positive, without a thought for stability."""
    rows, shares = [], []
    for i in range(len(scores)):
        terms = []
        rest = [
            scores[i, j].exp() for j in range(scores.shape[1]) if mask[i, j] and not labels[i, j]
        ]
        for j in range(scores.shape[1]):
            if mask[i, j] and labels[i, j] > 0:
                own = scores[i, j].exp()
                probability = own / (own + sum(rest))
                terms.append(-probability.log() * weigh(probability.item()))
        if terms:
            rows.append(sum(terms) / len(terms))
            shares.append(1.0 if weights is None else weights[i].item())
    return sum(row * share for row, share in zip(rows, shares, strict=True)) / sum(shares)


@pytest.mark.parametrize("negatives", NEGATIVES)
@pytest.mark.parametrize("chunk", [None, 2, 5, 1000])
@pytest.mark.parametrize("loss", [InfoNCE, DecoupledSoftmax])
def test_straight_formula_with_several_positives(
    loss: Any, chunk: int | None, negatives: Any
) -> None:
    torch.manual_seed(0)
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0])
    batch = vectors(examples(4, 2, positives=2), negatives=negatives, weights=weights)
    made = loss(temperature=0.3, negatives=negatives, chunk=chunk)
    expected = straight(batch.scores() / 0.3, batch.labels, batch.mask, weights)
    agree(made.over(batch), expected, batch)


@pytest.mark.parametrize("same_side", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
@pytest.mark.parametrize("cosine", [False, True])
def test_chunked_equals_whole(same_side: bool, symmetric: bool, gamma: float, cosine: bool) -> None:
    torch.manual_seed(1)
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0])
    batch = vectors(examples(5, 2), cosine=cosine, weights=weights, same_side=same_side)
    options: dict[str, Any] = {
        "temperature": 0.2, "same_side": same_side, "symmetric": symmetric, "focal_gamma": gamma,
    }  # fmt: skip
    whole = InfoNCE(**options)(batch.scores(), batch.labels, batch.mask, weights)
    for chunk in (1, 4, 100):
        agree(InfoNCE(**options, chunk=chunk).over(batch), whole, batch)


def test_single_positive_is_info_nce() -> None:
    torch.manual_seed(2)
    batch = vectors(examples(5, 1))
    decoupled = DecoupledSoftmax(temperature=0.1).over(batch)
    agree(decoupled, InfoNCE(temperature=0.1).over(batch), batch)
    agree(decoupled, cross_entropy(batch.scores() / 0.1, batch.positives), batch)


def test_a_strong_positive_is_not_pushed_down() -> None:
    labels = torch.tensor([[1.0, 1.0, 0.0]])
    scores = torch.tensor([[5.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    (apart,) = torch.autograd.grad(DecoupledSoftmax(temperature=1.0)(scores, labels), scores)
    together = -(scores.log_softmax(1)[0, :2]).mean()
    (siblings,) = torch.autograd.grad(together, scores)
    assert siblings[0, 0].item() == pytest.approx(0.487, abs=5e-4)
    assert apart[0, 0].item() == pytest.approx(-0.003, abs=5e-4)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("loss", [InfoNCE, DecoupledSoftmax])
def test_focal_weights_are_constants(loss: Any, gamma: float) -> None:
    torch.manual_seed(3)
    batch = vectors(examples(4, 2, positives=2))
    made = loss(temperature=0.5, focal_gamma=gamma).over(batch)
    weigh = lambda p: (1 - p) ** gamma  # noqa: E731
    expected = straight(batch.scores() / 0.5, batch.labels, batch.mask, weigh=weigh)
    agree(made, expected, batch)
    if gamma == 0.0:
        agree(made, loss(temperature=0.5).over(batch), batch)


def test_focal_weight_falls_with_the_probability() -> None:
    gaps = torch.linspace(-4, 8, 30, dtype=torch.float64)
    ratios = []
    for gap in gaps.tolist():
        scores, labels = torch.tensor([[gap, 0.0]]), torch.tensor([[1.0, 0.0]])
        plain = InfoNCE(temperature=1.0)(scores.double(), labels)
        ratios.append(InfoNCE(temperature=1.0, focal_gamma=0.5)(scores.double(), labels) / plain)
    weights = torch.stack(ratios)
    assert (weights.diff() < 0).all()
    assert torch.allclose(weights, (1 - gaps.sigmoid()).sqrt())


# -- the sampled-softmax correction ---------------------------------------------------------------


def with_counts(counts: dict[str, float], **options: Any) -> InfoNCE:
    loss = InfoNCE(temperature=0.2, logq=True, **options)
    loss.bind_counts(counts)
    return loss


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_logq_subtracts_log_expected_counts(chunk: int | None, symmetric: bool) -> None:
    torch.manual_seed(4)
    batch = vectors(examples(3, 1))
    counts = {name: float(1 + i) for i, name in enumerate(batch.ids["document"])}
    total = sum(counts.values())
    logs = torch.tensor([math.log(6 * c / total) for c in counts.values()], dtype=torch.float64)
    scores = batch.scores() / 0.2
    expected = straight(scores - logs, batch.labels, batch.mask)
    if symmetric:  # from documents to queries a document's own count cancels
        back = straight(scores.T, batch.labels.T, batch.mask.T)
        expected = (expected + back) / 2
    agree(with_counts(counts, chunk=chunk, symmetric=symmetric).over(batch), expected, batch)


def test_logq_with_equal_counts_changes_nothing() -> None:
    torch.manual_seed(5)
    batch = vectors(examples(4, 1))
    counts = dict.fromkeys(batch.ids["document"], 3.0)
    agree(with_counts(counts).over(batch), InfoNCE(temperature=0.2).over(batch), batch)


def test_corrected_partition_is_unbiased_on_a_toy_vocabulary() -> None:
    counts = {"a": 5.0, "b": 2.0, "c": 1.0}
    scores = {"a": 0.3, "b": -1.0, "c": 2.0}
    loss = with_counts(counts)
    assert loss.counts is not None
    mean = 0.0
    for drawn in product(counts, repeat=3):  # every batch of three documents and its probability
        chance = math.prod(counts[name] / 8 for name in drawn)
        logs = loss.counts.log_counts(drawn)
        estimate = sum(math.exp(scores[n] - q.item()) for n, q in zip(drawn, logs, strict=True))
        mean += chance * estimate
    assert mean == pytest.approx(sum(map(math.exp, scores.values())), abs=1e-12)


def test_logq_says_what_it_misses() -> None:
    batch = vectors(examples(2))
    with pytest.raises(ConfigError, match=r"info_nce.logq: needs .* counts"):
        InfoNCE(logq=True).over(batch)
    with pytest.raises(DataError, match=r"'d' occurs 0 times"):
        InfoNCE(logq=True).bind_counts({"d": 0})
    with pytest.raises(ConfigError, match=r"info_nce.logq.*same_side: false"):
        InfoNCE(logq=True, same_side=True)
    assert "scores" in InfoNCE().forms
    assert "scores" not in InfoNCE(logq=True).forms
    unknown = with_counts({"elsewhere": 4.0}).counts
    assert unknown is not None
    assert unknown.log_counts(["new"])[0].item() == pytest.approx(math.log(1 / 4))


# -- the learnt temperature -----------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [None, 2])
def test_temperature_has_the_gradient_of_its_logarithm(chunk: int | None) -> None:
    torch.manual_seed(6)
    batch = vectors(examples(4, 1))
    loss = InfoNCE(temperature=0.1, learnable_temperature=True, chunk=chunk)
    (learnt,) = loss.parameters()
    value = loss.over(batch)
    (ours,) = torch.autograd.grad(value, learnt, retain_graph=True)
    logarithm = torch.tensor(math.log(0.1), dtype=torch.float64, requires_grad=True)
    other = cross_entropy(batch.scores() / logarithm.exp(), batch.positives)
    (theirs,) = torch.autograd.grad(other, logarithm)
    assert value.item() == pytest.approx(other.item(), rel=1e-6)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)


def test_learnt_temperature_is_kept_bounded_and_told() -> None:
    loss = InfoNCE(learnable_temperature=True).bound_to("cosine")
    (learnt,) = loss.parameters()
    assert loss.notes()["temperature"] == pytest.approx(0.05)
    assert InfoNCE(learnable_temperature=True).bound_to("dot").notes()["temperature"] == 1.0
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    loss(torch.eye(3), torch.eye(3)).backward()  # right already: sharper would be better
    optimizer.step()
    assert loss.notes()["temperature"] < 0.05
    again = InfoNCE(learnable_temperature=True)
    again.restore(loss.state())
    assert torch.equal(again(torch.eye(3), torch.eye(3)), loss(torch.eye(3), torch.eye(3)))
    for far, bound in ((-50.0, 0.01), (50.0, 10.0)):
        learnt.data.fill_(far)
        loss.advance(1)
        assert loss.notes()["temperature"] == pytest.approx(bound)
    plain = InfoNCE()
    plain.restore({})
    assert (plain.parameters(), plain.state(), plain.notes()) == ([], {}, {})


def test_learnt_temperature_must_start_inside_its_bounds() -> None:
    with pytest.raises(ConfigError, match=r"temperature: 0.001, expected 0.01 to 10.0 when"):
        InfoNCE(temperature=0.001, learnable_temperature=True)


# -- against sentence-transformers ----------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    return pytest.importorskip("sentence_transformers.sentence_transformer.losses")


class Given(torch.nn.Module):
    """Stands for a model whose embeddings are the features."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features["x"]}


@pytest.mark.parametrize("chunk", [None, 3])
def test_same_side_is_their_joint_partition(theirs: ModuleType, chunk: int | None) -> None:
    torch.manual_seed(7)
    batch = vectors(examples(5), same_side=True)
    other = theirs.MultipleNegativesRankingLoss(
        Given(), scale=20.0, directions=("query_to_doc", "query_to_query", "doc_to_doc")
    )([{"x": batch.queries}, {"x": batch.documents}], None)
    made = InfoNCE(temperature=0.05, same_side=True, chunk=chunk).over(batch)
    agree(made, other, batch)


# -- properties -----------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1.0, 100.0, 1e4]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    name=st.sampled_from(["info_nce", "decoupled_softmax", "star", "bixse", "soft_top_k", "psl"]),
)
@settings(derandomize=True, deadline=None, max_examples=80)
def test_finite_and_blind_to_masked_cells(
    seed: int, size: float, dtype: torch.dtype, name: str
) -> None:
    torch.manual_seed(seed)
    labels = (torch.rand(3, 6) > 0.6).float()
    mask = torch.rand(3, 6) > 0.3
    plain = ((torch.rand(3, 6) * 2 - 1) * size).to(dtype)
    for rubbish in (0.0, math.inf, math.nan):
        scores = plain.masked_fill(~mask, rubbish).requires_grad_()
        value = build({"type": name}, LOSSES, where="loss")(scores, labels, mask)
        (gradient,) = torch.autograd.grad(value, scores)
        assert value.isfinite()
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert gradient.isfinite().all()
        assert not gradient[~mask].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("chunk", [None, 2])
def test_half_precision_vectors(dtype: torch.dtype, chunk: int | None) -> None:
    torch.manual_seed(8)
    batch = vectors(examples(4, 1))
    half = batch.with_vectors(
        batch.queries.detach().to(dtype).requires_grad_(),
        batch.documents.detach().to(dtype).requires_grad_(),
    )
    value = InfoNCE(temperature=0.05, chunk=chunk).over(half)
    whole = InfoNCE(temperature=0.05).over(batch)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(whole.item(), rel=0.1)
    assert all(gradient.isfinite().all() for gradient in gradients(value, half))


def test_normalised_alike() -> None:
    batch = vectors(examples(3), cosine=True)
    dots = batch.with_vectors(
        normalize(batch.queries, dim=1), normalize(batch.documents, dim=1), cosine=False
    )
    agree(InfoNCE(chunk=2).over(batch), InfoNCE(chunk=3).over(dots), batch)
