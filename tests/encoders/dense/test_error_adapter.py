"""The error adapter: its formula, the segment, its file."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sluice.encoders.dense.error_adapter import FILE, ErrorAdapter, segment_distance
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError


def drawn(dim: int = 5, hidden: int = 3) -> ErrorAdapter:
    torch.manual_seed(3)
    adapter = ErrorAdapter(dim, hidden)
    torch.nn.init.normal_(adapter.outer.weight)
    torch.nn.init.normal_(adapter.outer.bias)
    return adapter


def vectors(count: int, dim: int = 5, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def test_relevance_is_the_formula() -> None:
    from scipy.special import erf, expit

    adapter = drawn().double()
    queries, documents = vectors(7), vectors(7, seed=2)
    weights = {name: value.detach().numpy() for name, value in adapter.state_dict().items()}
    expected = []
    for left, right in zip(queries.astype(float), documents.astype(float), strict=True):
        q, c = left / np.linalg.norm(left), right / np.linalg.norm(right)
        inner = weights["inner.weight"] @ np.concatenate([q - c, q * c, q + c])
        inner = inner + weights["inner.bias"]
        gelu = inner * 0.5 * (1 + erf(inner / np.sqrt(2)))
        a = c + weights["outer.weight"] @ gelu + weights["outer.bias"]
        cosine = q @ a / np.linalg.norm(a)
        expected.append(expit(weights["scale"] * cosine + weights["shift"]))
    q, c = torch.from_numpy(queries).double(), torch.from_numpy(documents).double()
    ours = adapter.logits(q, adapter(q, c)).sigmoid().detach().numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-10)
    assert torch.autograd.gradcheck(adapter, (q[:2].requires_grad_(), c[:2].requires_grad_()))
    adapter.float()
    np.testing.assert_allclose(adapter.scores(queries, documents, None), expected, atol=1e-6)


def test_weight_0_is_the_cosine_and_weights_are_powers() -> None:
    adapter, queries, documents = drawn(), vectors(9), vectors(9, seed=2)
    q, c = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, documents))
    own = (1 + (q * c).sum(1)) / 2
    np.testing.assert_allclose(adapter.scores(queries, documents, 0.0), own, atol=1e-6)
    once, thrice = (adapter.scores(queries, documents, weight) for weight in (1.0, 3.0))
    a = adapter(torch.from_numpy(queries), torch.from_numpy(documents)).detach().numpy()
    moved = (1 + (q * a / np.linalg.norm(a, axis=1, keepdims=True)).sum(1)) / 2
    np.testing.assert_allclose(once, own * moved, atol=1e-6)
    np.testing.assert_allclose(thrice, own * moved**3, atol=1e-6)
    np.testing.assert_allclose(adapter.scores(3 * queries, documents, 1.0), once, atol=1e-6)


def test_a_new_adapter_changes_nothing() -> None:
    queries, documents = (torch.from_numpy(vectors(4, seed=seed)) for seed in (2, 1))
    unit = torch.nn.functional.normalize(documents, dim=1)
    assert torch.equal(ErrorAdapter(5, 3)(queries, documents), unit)


def test_distance_from_the_segment() -> None:
    """Nothing for any point of it, elsewhere the least over a fine grid."""
    torch.manual_seed(0)
    q, c, a = (torch.randn(6, 4, dtype=torch.float64) for _ in range(3))
    q, c = (torch.nn.functional.normalize(each, dim=1) for each in (q, c))
    for share in (0.0, 0.3, 1.0):
        on = share * q + (1 - share) * c
        assert float(segment_distance(on, q, c).abs().max()) < 1e-24
    shares = torch.linspace(0, 1, 20_001, dtype=torch.float64)[:, None, None]
    grid = ((a - (shares * q + (1 - shares) * c)) ** 2).sum(-1).min(0).values
    np.testing.assert_allclose(segment_distance(a, q, c), grid, atol=1e-7)
    assert float(segment_distance(a[:1], q[:1], q[:1])) == pytest.approx(
        float(((a[0] - q[0]) ** 2).sum())
    )
    a.requires_grad_()
    assert torch.autograd.gradcheck(lambda point: segment_distance(point, q, c), (a,))


def test_file(tmp_path: Path) -> None:
    adapter = drawn()
    adapter.save(tmp_path)
    again = ErrorAdapter.load(tmp_path)
    left, right = vectors(9), vectors(9, seed=4)
    np.testing.assert_array_equal(again.scores(left, right), adapter.scores(left, right))
    assert again.scores(left[:0], right[:0]).shape == (0,)
    with pytest.raises(DataError, match=r"expected \[n, 5\] of both"):
        again.scores(left, right[:, :3])
    with pytest.raises(ConfigError, match="hidden"):
        ErrorAdapter(3, 0)


def test_a_file_that_is_ill(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(ModelError, match="no such file; `sluice fit adapter`"):
        ErrorAdapter.load(tmp_path)
    tensors = drawn().state_dict()
    right = {"format": "sluice.error_adapter"}

    def written(tensors: dict[str, torch.Tensor], **facts: str) -> None:
        save_file(tensors, tmp_path / FILE, facts)

    sizes = json.dumps({"dim": 5, "hidden": 3})
    nan = {**tensors, "shift": torch.tensor(float("nan"))}
    for said, held, facts in (
        ("format None", tensors, {}),
        ("facts", tensors, right),
        ("dim -1", tensors, {**right, "facts": json.dumps({"dim": -1, "hidden": 3})}),
        ("expected", tensors, {**right, "facts": json.dumps({"dim": 9_999_999, "hidden": 3})}),
        ("shift is not finite", nan, {**right, "facts": sizes}),
    ):
        written(held, **facts)
        with pytest.raises(ModelError, match=said):
            ErrorAdapter.load(tmp_path)
    (tmp_path / FILE).write_bytes(b"nothing")
    with pytest.raises(ModelError, match="not an error adapter"):
        ErrorAdapter.load(tmp_path)
