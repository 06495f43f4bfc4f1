"""Losses against formulas, cross_entropy and sentence-transformers."""

import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.vector_batch import matrix_targets, score_matrix
from sluice.training.losses import LOSSES
from sluice.training.losses.contrastive.pairs import BCE
from sluice.training.losses.contrastive.softmax import InfoNCE, LocalizedSoftmax
from sluice.training.protocol import Example, Text


def pairs(count: int, negatives: int = 0) -> list[Example]:
    return [
        Example(
            Text(f"q{i}", f"query {i}"),
            (
                Text(f"d{i}", f"document {i}"),
                *(Text(f"n{i}{j}", f"negative {i} {j}") for j in range(negatives)),
            ),
            relevant=frozenset({f"d{i}"}),
        )
        for i in range(count)
    ]


def gradient(value: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, of, retain_graph=True)[0]


@pytest.mark.parametrize("negatives", [0, 2])
def test_info_nce_is_cross_entropy(negatives: int) -> None:
    torch.manual_seed(0)
    targets = matrix_targets(pairs(5, negatives))
    scores = torch.randn(targets.labels.shape, dtype=torch.float64, requires_grad=True)
    ours = InfoNCE(temperature=0.05)(scores, targets.labels, targets.mask)
    theirs = cross_entropy(scores / 0.05, targets.positives)
    straight = torch.stack(
        [
            torch.log(torch.exp(20 * row).sum()) - 20 * row[place]
            for row, place in zip(scores, targets.positives, strict=True)
        ]
    ).mean()
    for other in (theirs, straight):
        assert abs((ours - other).item()) < 1e-10
        assert (gradient(ours, scores) - gradient(other, scores)).abs().max() < 1e-10


@pytest.mark.parametrize("symmetric", [False, True])
def test_info_nce_is_multiple_negatives_ranking(symmetric: bool) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

    class Given(torch.nn.Module):
        """Stands for a model whose embeddings are the features."""

        def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"sentence_embedding": features["x"]}

    torch.manual_seed(1)
    queries = torch.randn(6, 8, requires_grad=True)
    documents = torch.randn(6, 8, requires_grad=True)
    negatives = torch.randn(6, 8, requires_grad=True)
    directions = ("query_to_doc", "doc_to_query") if symmetric else ("query_to_doc",)
    theirs = losses.MultipleNegativesRankingLoss(
        Given(), scale=20.0, directions=directions, partition_mode="per_direction"
    )([{"x": queries}, {"x": documents}, {"x": negatives}], None)
    targets = matrix_targets(pairs(6, 1))
    matrix = torch.stack([documents, negatives], dim=1).reshape(12, 8)
    ours = InfoNCE(temperature=0.05, symmetric=symmetric)(
        score_matrix(queries, matrix, cosine=True), targets.labels, targets.mask
    )
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for leaf in (queries, documents, negatives):
        assert torch.allclose(gradient(ours, leaf), gradient(theirs, leaf), atol=1e-5)


def test_one_query_one_negative_is_logistic_loss() -> None:
    scores = torch.tensor([[1.3, 0.4]], dtype=torch.float64)
    value = InfoNCE(temperature=1.0)(scores, torch.tensor([[1.0, 0.0]]))
    assert value.item() == pytest.approx(math.log1p(math.exp(0.4 - 1.3)), abs=1e-12)


@pytest.mark.parametrize("same", ["id", "text"])
def test_duplicated_positive_contributes_nothing(same: str) -> None:
    one = Example(Text("a", "first"), (Text("d", "the answer"),), relevant=frozenset({"d"}))
    twin = Text("d", "the answer") if same == "id" else Text("e", "the answer")
    two = Example(Text("b", "second"), (twin,), relevant=frozenset({twin.id}))
    targets = matrix_targets([one, two])
    scores = torch.randn(2, 2, requires_grad=True)
    value = InfoNCE()(scores, targets.labels, targets.mask)
    assert value.item() == 0.0
    assert torch.equal(gradient(value, scores), torch.zeros(2, 2))


def test_relevant_documents_of_others_are_masked() -> None:
    one = Example(
        Text("a", "x"), (Text("d1", "1"), Text("d9", "9")), relevant=frozenset({"d1", "d2"})
    )
    two = Example(Text("b", "y"), (Text("d2", "2"),), relevant=frozenset({"d2"}))
    targets = matrix_targets([one, two])
    assert targets.mask.tolist() == [[True, True, False], [True, True, True]]
    assert targets.labels.tolist() == [[1, 0, 0], [0, 0, 1]]


def test_text_of_a_relevant_document_is_masked() -> None:
    relevant = frozenset({"d1", "d2"})
    one = Example(Text("a", "x"), (Text("d1", "1"), Text("d9", "same")), relevant=relevant)
    two = Example(Text("b", "y"), (Text("d2", "same"),), relevant=frozenset({"d2"}))
    three = Example(Text("c", "z"), (Text("d3", "3"), Text("d8", "same")))
    mask = matrix_targets([one, two, three]).mask  # columns: d1 d9 d2 d3 d8
    assert mask[0].tolist() == [True, False, False, True, False]
    assert mask[1].tolist() == [True, False, True, True, False]
    assert mask[2].tolist() == [True, False, False, True, True]  # its own counts, and once


def test_a_document_that_came_twice_counts_once() -> None:
    shared, other = Text("n", "shared"), Text("m", "shared")
    batch = [
        Example(Text("a", "a"), (Text("d1", "1"), shared, other)),
        Example(Text("b", "b"), (Text("d2", "2"), shared)),
        Example(Text("c", "c"), (Text("n", "shared"), Text("d9", "9"))),
        Example(Text("e", "e"), (Text("d3", "3"),)),
    ]  # columns: d1 n m d2 n n d9 d3
    columns = [i for i, d in enumerate(d for e in batch for d in e.documents) if d.id in "nm"]
    rows = matrix_targets(batch).mask[:, columns]  # n m n n
    assert rows.int().tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
    own = matrix_targets(batch, "own").mask[:, columns]
    assert own.int().tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    single = matrix_targets(batch[:1]).mask
    assert single.tolist() == [[True, True, False]]


def test_a_document_that_reads_like_the_query_is_no_negative() -> None:
    one = Example(Text("a", "to be"), (Text("d1", "1"), Text("d9", "to be")))
    two = Example(Text("b", "or not"), (Text("d2", "to be"),))
    assert matrix_targets([one, two]).mask.tolist() == [[True, False, False], [True, False, True]]


def test_negatives_option_chooses_the_columns() -> None:
    batch = pairs(2, 1)  # columns: d0 n0 d1 n1
    rows = {
        "all": [True, True, True, True],
        "own": [True, True, False, False],
        "inbatch_pos": [True, False, True, False],
        "inbatch_pos+own": [True, True, True, False],
    }
    for name, expected in rows.items():
        assert matrix_targets(batch, name).mask[0].tolist() == expected


def test_same_side_adds_queries_and_positives() -> None:
    batch = pairs(3)
    targets = matrix_targets(batch, same_side=True)
    off_diagonal = ~torch.eye(3, dtype=torch.bool)
    assert targets.labels.shape == (3, 9)
    assert torch.equal(targets.mask[:, 3:6], off_diagonal)
    assert torch.equal(targets.mask[:, 6:], off_diagonal)
    queries, documents = torch.randn(3, 4), torch.randn(3, 4)
    scores = score_matrix(queries, documents, cosine=False, positives=targets.positives)
    assert torch.allclose(scores[:, 3:6], queries @ queries.T)
    assert torch.allclose(scores[:, 6:], documents @ documents.T)
    assert torch.isfinite(InfoNCE(same_side=True)(scores, targets.labels, targets.mask))


def test_several_positives_are_no_negatives_of_each_other() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.5]], dtype=torch.float64)
    value = InfoNCE(temperature=1.0)(scores, torch.tensor([[1.0, 2.0, 0.0]]))
    apart = [math.log1p(math.exp(0.5 - 2.0)), math.log1p(math.exp(0.5 - 1.0))]
    assert value.item() == pytest.approx(sum(apart) / 2, abs=1e-12)


def test_weights_are_a_weighted_mean() -> None:
    torch.manual_seed(2)
    scores, labels = torch.randn(3, 3), torch.eye(3)
    each = torch.stack([InfoNCE()(scores[i : i + 1], labels[i : i + 1]) for i in range(3)])
    weights = torch.tensor([1.0, 0.0, 3.0])
    value = InfoNCE()(scores, labels, weights=weights)
    assert torch.allclose(value, (each * weights).sum() / 4)


def test_default_temperature_follows_the_similarity() -> None:
    scores, labels = torch.randn(2, 2), torch.eye(2)
    bound = InfoNCE().bound_to("dot")
    assert torch.equal(bound(scores, labels), InfoNCE(temperature=1.0)(scores, labels))
    assert InfoNCE(similarity="cosine").bound_to("dot").similarity == "cosine"


def test_localized_softmax_and_bce_formulas() -> None:
    torch.manual_seed(3)
    scores = torch.randn(4, 3, dtype=torch.float64)
    labels = torch.tensor([[1.0, 0, 0]] * 4, dtype=torch.float64)
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[0, 2] = mask[3, 1] = False
    softmax = torch.stack([scores[i, mask[i]].logsumexp(0) - scores[i, 0] for i in range(4)]).mean()
    assert LocalizedSoftmax()(scores, labels, mask).item() == pytest.approx(
        softmax.item(), abs=1e-10
    )
    expected = binary_cross_entropy_with_logits(scores[mask], labels[mask])
    assert BCE()(scores, labels, mask).item() == pytest.approx(expected.item(), abs=1e-10)
    heavier = binary_cross_entropy_with_logits(
        scores[mask], labels[mask], pos_weight=torch.tensor(2.0)
    )
    assert BCE(positive_weight=2.0)(scores, labels, mask).item() == pytest.approx(heavier.item())


def test_extreme_scores_stay_finite() -> None:
    scores = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    value = InfoNCE(temperature=0.01)(scores, torch.eye(2).flip(0))
    assert torch.isfinite(value)
    assert torch.isfinite(gradient(value, scores)).all()


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        build({"type": "info_nce", "temprature": 0.1}, LOSSES, where="loss.info_nce")
