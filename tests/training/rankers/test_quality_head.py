from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.training.rankers.quality_head import QualityHead, drawn_pairs, fit_quality_head


def sample(rows: int = 80, dim: int = 6, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=(rows, dim)) * [0.1, 1, 2, 5, 1, 0.01] + 3).astype(np.float32)
    logits = (vectors - 3) @ [5, 0.5, -0.5, 0.1, 0, 20]
    return vectors, (logits + rng.logistic(size=rows) > 0).astype(float)


class TestCrossEntropy:
    def test_equals_sklearns_logistic_regression(self) -> None:
        linear_model = pytest.importorskip("sklearn.linear_model")
        vectors, targets = sample()
        scaled = (vectors - vectors.mean(0, dtype=float)) / vectors.std(0, dtype=float)
        for l2 in (0.3, 1.0, 20.0):
            head = fit_quality_head(vectors, targets, l2=l2)
            reference = linear_model.LogisticRegression(C=1 / l2, tol=1e-10, max_iter=5000)
            expected = reference.fit(scaled, targets).decision_function(scaled)
            np.testing.assert_allclose(head.quality(vectors), expected, atol=2e-4)

    def test_soft_targets_without_features_give_their_mean(self) -> None:
        targets = np.array([0.2, 0.4, 0.9])
        head = fit_quality_head(np.ones((3, 2)), targets)
        expected = np.log(0.5 / 0.5)
        np.testing.assert_allclose(head.quality(np.ones((3, 2))), expected, atol=1e-4)


class TestPairs:
    def test_are_all_that_differ(self) -> None:
        targets = np.array([2.0, 0.0, 1.0, 1.0, 0.0])
        higher, lower = drawn_pairs(targets, 100, 1)
        found = set(zip(higher.tolist(), lower.tolist(), strict=True))
        expected = {(i, j) for i in range(5) for j in range(5) if targets[i] > targets[j]}
        assert found == expected
        assert len(higher) == len(expected)

    def test_are_drawn_evenly_where_there_are_more(self) -> None:
        targets = np.array([2.0, 0.0, 1.0, 1.0, 0.0])
        higher, lower = drawn_pairs(np.tile(targets, 40), 7_000, 1)
        assert len(higher) == 7_000
        values = np.tile(targets, 40)
        assert (values[higher] > values[lower]).all()
        # Of a block's 8 pairs 2 have the top over a one, 2 over a zero, 4 a one over a zero.
        shares = np.bincount((2 * values[higher] + values[lower]).astype(int), minlength=6) / 7_000
        np.testing.assert_allclose(shares[[2, 4, 5]], [0.5, 0.25, 0.25], atol=0.03)

    def test_same_seed_same_head(self) -> None:
        vectors, targets = sample()
        heads = [
            fit_quality_head(vectors, targets, loss="pairwise", pairs=200, seed=seed)
            for seed in (3, 3, 4)
        ]
        np.testing.assert_array_equal(heads[0].weights, heads[1].weights)
        assert (heads[0].weights != heads[2].weights).any()


class TestPairwise:
    def test_is_the_minimum_of_the_loss_written_out(self) -> None:
        vectors, targets = sample(30)
        head = fit_quality_head(vectors, targets, loss="pairwise", l2=2.0)
        deviation = vectors.astype(float).std(0)
        scaled = vectors.astype(float) / deviation
        best = head.weights.astype(float) * deviation

        def cost(weights: np.ndarray) -> float:
            logits = scaled @ weights
            gaps = [logits[j] - logits[i] for i in range(30) for j in range(30)
                    if targets[i] > targets[j]]  # fmt: skip
            return float(np.logaddexp(0, gaps).mean() + 2.0 / 60 * (weights @ weights))

        lowest = cost(best)
        rng = np.random.default_rng(0)
        for _ in range(20):
            assert cost(best + rng.normal(scale=0.02, size=6)) > lowest - 1e-9
        slopes = [(cost(best + e) - cost(best - e)) / 2e-5 for e in np.eye(6) * 1e-5]
        np.testing.assert_allclose(slopes, 0, atol=1e-4)

    def test_ranks_by_counts(self) -> None:
        rng = np.random.default_rng(2)
        vectors = rng.normal(size=(60, 4))
        counts = np.floor(np.exp(vectors[:, 0]))
        quality = fit_quality_head(vectors, counts, loss="pairwise", l2=0.01).quality(vectors)
        assert np.corrcoef(quality, vectors[:, 0])[0, 1] > 0.95


class TestFile:
    def test_comes_back_as_it_was(self, tmp_path: Path) -> None:
        vectors, targets = sample()
        head = fit_quality_head(vectors, targets, facts={"fingerprint": "abc"})
        head.save(tmp_path / "head.safetensors")
        back = QualityHead.load(tmp_path / "head.safetensors")
        np.testing.assert_array_equal(back.quality(vectors), head.quality(vectors))
        assert back.facts == head.facts == {"loss": "bce", "l2": 1.0, "fingerprint": "abc"}

    def test_files_that_hold_none(self, tmp_path: Path) -> None:
        from safetensors.numpy import save_file

        with pytest.raises(ModelError, match="not a quality head"):
            QualityHead.load(tmp_path / "missing")
        (tmp_path / "text").write_text("text")
        with pytest.raises(ModelError, match="not a quality head"):
            QualityHead.load(tmp_path / "text")
        save_file({"weights": np.zeros(2)}, tmp_path / "other")
        with pytest.raises(ModelError, match=r"expected 'sluice\.quality_head'"):
            QualityHead.load(tmp_path / "other")


class TestRefusals:
    def test_nothing_to_learn_from(self) -> None:
        vectors, _ = sample()
        with pytest.raises(DataError, match="all 80 documents have the same target"):
            fit_quality_head(vectors, np.ones(80))
        with pytest.raises(DataError, match="have the same target"):
            fit_quality_head(np.zeros((0, 3)), np.zeros(0))

    def test_shapes_and_numbers(self) -> None:
        vectors, targets = sample()
        with pytest.raises(DataError, match=r"targets of shape \(79,\)"):
            fit_quality_head(vectors, targets[1:])
        with pytest.raises(DataError, match="not finite"):
            fit_quality_head(np.where(vectors > 4, np.nan, vectors), targets)
        with pytest.raises(DataError, match="from 0 to 1"):
            fit_quality_head(vectors, targets * 3)
        with pytest.raises(DataError, match=r"expected \[n, 6\]"):
            fit_quality_head(vectors, targets).quality(vectors[:, :5])

    @pytest.mark.parametrize("options", [{"loss": "pairwize"}, {"l2": 0}, {"pairs": 0}])
    def test_settings(self, options: dict[str, object]) -> None:
        vectors, targets = sample()
        with pytest.raises(ConfigError, match=next(iter(options))):
            fit_quality_head(vectors, targets, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "bias", "facts"),
    [
        (np.ones((3, 2)), [0.0], "{}"),
        (np.ones(()), [0.0], "{}"),
        (np.ones(3), [], "{}"),
        (np.full(3, np.nan), [0.0], "{}"),
        (np.ones(3), [0.0], "[1]"),
        (np.ones(3), [0.0], "{"),
    ],
)
def test_damaged_heads_are_refused(
    tmp_path: Path, weights: np.ndarray, bias: list[float], facts: str
) -> None:
    from safetensors.numpy import save

    tensors = {"weights": np.asarray(weights, np.float32), "bias": np.asarray(bias)}
    file = tmp_path / "head.safetensors"
    file.write_bytes(save(tensors, {"format": "sluice.quality_head", "facts": facts}))
    with pytest.raises(ModelError, match="not a quality head"):
        QualityHead.load(file)
