"""SPLADE: the formula in value and gradient, variants, sentence-transformers both ways."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sluice.encoders import SpladeEncoder
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.splade.pooling import BLOCK, VocabularyProduct, splade_max, splade_sum
from sluice.encoders.splade.terms import keep_top
from sluice.encoders.transformer.packed.attention import Span


def straight(
    states: torch.Tensor, mask: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, pool: str
) -> torch.Tensor:
    """The formula of the papers, logits and all."""
    activated = torch.log1p(torch.relu(states @ weight.T + bias)) * mask.unsqueeze(-1)
    return activated.max(dim=1).values if pool == "max" else activated.sum(dim=1)


@pytest.mark.parametrize("pool", ["max", "sum"])
@pytest.mark.parametrize("shift", [0.0, -6.0])  # half of the terms active, or few
@pytest.mark.parametrize("terms", [50, 2 * BLOCK + 3])
def test_pooling_equals_the_formula_in_value_and_gradient(
    pool: str, shift: float, terms: int
) -> None:
    torch.manual_seed(3)
    states = torch.randn(7, 7, 8)
    mask = (torch.arange(7) < torch.tensor([[7], [3], [1], [5], [7], [7], [0]])).long()
    mask[5, [0, 1, 4]] = 0  # on the left, and amid the text; the last has no token at all
    weight, bias = torch.randn(terms, 8), torch.randn(terms) + shift
    target = torch.randn(7, terms)
    gradients = []
    for function in (
        lambda *a: straight(*a, pool),
        splade_max if pool == "max" else splade_sum,
    ):
        leaves = [t.clone().requires_grad_() for t in (states, weight, bias)]
        value = function(leaves[0], mask, leaves[1], leaves[2])
        (value * target).sum().backward()
        gradients.append((value.detach(), *[leaf.grad for leaf in leaves]))
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_maximum_of_a_packed_batch_is_that_of_each_text(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    weight, bias = torch.randn(BLOCK + 7, 8), torch.randn(BLOCK + 7) - 2
    states = torch.randn(17, 8).to(dtype)
    runs = [Span(0, 4, 1, 4, 4), Span(4, 10, 2, 3, 3), Span(10, 17, 1, 7, 7)]
    pooled = VocabularyProduct(weight, bias, dtype)
    found = pooled(states, runs, pooling="max", twice=False)
    logits = states.float() @ weight.to(dtype).float().T + bias.to(dtype).float()
    texts = [logits[a:b] for a, b in [(0, 4), (4, 7), (7, 10), (10, 17)]]
    expected = torch.log1p(torch.relu(torch.stack([text.amax(dim=0) for text in texts])))
    exact = {"atol": 1e-5, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 0.02, "rtol": 0.01}
    torch.testing.assert_close(found, expected, **exact)
    states[5, 2] = float("nan")  # is not hidden, whatever its sign
    assert pooled(-states, runs, pooling="max", twice=False)[1].isnan().all()


def test_max_pooling_keeps_the_parameter_dtypes_under_autocast() -> None:
    states = torch.randn(2, 3, 8, requires_grad=True)
    weight, bias = torch.randn(9, 8, requires_grad=True), torch.zeros(9, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        value = splade_max(states, torch.ones(2, 3), weight, bias)
    value.sum().backward()
    assert value.dtype == weight.grad.dtype == torch.float32
    exact = splade_max(states, torch.ones(2, 3), weight, bias)
    torch.testing.assert_close(value, exact, atol=0.05, rtol=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_saved_folder_loads_in_sentence_transformers_and_back(
    masked_bert: Path, texts: list[str], tmp_path: Path, pooling: str, activation: str
) -> None:
    from sentence_transformers import SparseEncoder

    ours = SpladeEncoder.from_pretrained(masked_bert, pooling=pooling, activation=activation)
    ours.save_pretrained(tmp_path / "ours")
    theirs = SparseEncoder(str(tmp_path / "ours"), device="cpu")
    expected = theirs.encode(texts, convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(
        ours.encode_documents(texts).toarray(), expected, rtol=1e-6, atol=1e-5
    )
    theirs.save(str(tmp_path / "theirs"))
    again = SpladeEncoder.from_pretrained(tmp_path / "theirs")
    assert (again.pooling, again.activation) == (pooling, activation)
    np.testing.assert_allclose(
        again.encode_queries(texts).toarray(), expected, rtol=1e-6, atol=1e-5
    )


def test_top_k_keeps_the_heaviest_terms_per_side(masked_bert: Path, texts: list[str]) -> None:
    full = SpladeEncoder.from_pretrained(masked_bert).encode_queries(texts).toarray()
    encoder = SpladeEncoder.from_pretrained(masked_bert, query_top_k=5, document_top_k=9)
    for matrix, k in ((encoder.encode_queries(texts), 5), (encoder.encode_documents(texts), 9)):
        assert (np.diff(matrix.indptr) <= k).all()
        kept = matrix.toarray()
        np.testing.assert_allclose(np.sort(kept)[:, -k:], np.sort(full)[:, -k:], atol=1e-6)
    tied = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.5]])
    assert keep_top(tied, 2).tolist() == [[0.0, 2.0, 2.0, 0.0, 0.0]]


def test_splade_doc_counts_overlap_and_runs_no_network_for_queries(masked_bert: Path) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, query_model="bow")
    encoder.model.forward = None  # calling it would fail
    queries = ["gold river gold", "the unknownword", ""]
    vectors = encoder.encode_queries(queries).toarray()
    vocabulary = encoder.tokenizer.get_vocab()
    assert set(np.flatnonzero(vectors[0])) == {vocabulary["gold"], vocabulary["river"]}
    assert set(np.unique(vectors)) == {0.0, 1.0}
    assert vectors[2].sum() == 0
    # documents with logits exp(tf) - 1 on their own terms score the term-frequency overlap
    document = torch.full((1, 1, len(vocabulary)), -1.0)
    document[0, 0, vocabulary["gold"]] = torch.e**3 - 1
    weights = splade_max(
        document, torch.ones(1, 1), torch.eye(len(vocabulary)), torch.zeros(len(vocabulary))
    )
    assert float(weights[0] @ torch.tensor(vectors[0])) == pytest.approx(3.0, abs=1e-6)


def test_a_model_without_a_head_is_refused(bert: Path) -> None:
    with pytest.raises(ModelError, match="no masked-language-model head"):
        SpladeEncoder.from_pretrained(bert)


def test_a_raised_head_has_more_active_terms(masked_bert: Path, texts: list[str]) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, query_model="idf")
    before = encoder.encode_documents(texts)
    assert encoder.raises("document")
    assert not encoder.raises("query")  # weights of its own
    encoder.raise_bias(0.05)
    after = encoder.encode_documents(texts)
    assert after.nnz > before.nnz
    raised = np.expm1(after.toarray()[before.toarray() > 0]) - np.expm1(before.data)
    np.testing.assert_allclose(raised, 0.05, atol=1e-4)
    encoder.module.requires_grad_(False)
    assert not encoder.raises("document")
