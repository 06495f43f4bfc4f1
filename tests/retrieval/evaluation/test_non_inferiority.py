"""The gate's decision against scipy, by its definition, and by its rates on simulated changes."""

import numpy as np
import pytest
import scipy.stats

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.evaluation.comparison import SignificanceTest
from sluice.retrieval.evaluation.non_inferiority import FEW, UNSEEN, Decision, decide, skewed
from sluice.retrieval.evaluation.significance import power, smallest_difference

T_TEST, FISHER = SignificanceTest(), SignificanceTest("fisher")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(45)


def decided(losses: np.ndarray, budget: float, testing: SignificanceTest = T_TEST) -> Decision:
    base = np.full(len(losses), 0.5)
    return decide({"m": base}, {"m": base - losses}, {"m": budget}, testing)["m"]


def test_p_values_and_bounds_are_scipys(rng: np.random.Generator) -> None:
    losses = rng.normal(0.01, 0.2, 80)
    losses = 0.02 - losses if scipy.stats.skew(losses) > 0 else losses
    found = decided(losses, 0.05)
    within = scipy.stats.ttest_1samp(losses, 0.05, alternative="less")
    assert found.p_within == pytest.approx(within.pvalue)
    assert found.high == pytest.approx(within.confidence_interval(0.95).high)
    lost = scipy.stats.ttest_1samp(losses, 0.0, alternative="greater")
    assert found.p_loss == pytest.approx(lost.pvalue)
    assert found.low == pytest.approx(lost.confidence_interval(0.95).low)


@pytest.mark.parametrize("shape", [0.3, 2.0])
def test_skewed_losses_as_johnson_has_them(shape: float, rng: np.random.Generator) -> None:
    losses = rng.gamma(shape, 0.1, 90) - 0.08 * shape
    n, mean, spread = 90, losses.mean(), losses.std(ddof=1)
    for budget in mean + np.array([0.005, 0.01, 0.3]):
        # Johnson's statistic as printed, of the values budget - loss
        third = -scipy.stats.skew(losses, bias=False) * spread**3
        moved = (budget - mean) + third / (6 * spread**2 * n)
        moved += third * (budget - mean) ** 2 / (3 * spread**4)
        p, bound = skewed(losses, budget, 0.05)
        if budget - mean < -1.5 * spread**4 / third:  # below the statistic's top
            assert p == pytest.approx(scipy.stats.t.sf(moved / (spread / n**0.5), n - 1))
        found = decided(losses, budget)
        assert found.p_within >= scipy.stats.ttest_1samp(losses, budget, alternative="less").pvalue
        assert (found.p_within < 0.05) == (found.high < budget)
        assert found.high == pytest.approx(bound)
    assert skewed(-losses, 0.0, 0.05) == (0.0, -1.0)
    assert skewed(np.append(np.zeros(60), 1.0), 0.5, 0.05)[1] == 1.0


def test_random_signs_are_scipys(rng: np.random.Generator) -> None:
    losses = rng.normal(0.03, 0.1, 60)
    found = decided(losses, 0.05, FISHER)
    for p, values in ((found.p_within, 0.05 - losses), (found.p_loss, losses)):
        expected = scipy.stats.permutation_test(
            (values,), np.mean, permutation_type="samples", alternative="greater",
            n_resamples=20_000, rng=np.random.default_rng(1),
        ).pvalue  # fmt: skip
        assert p == pytest.approx(expected, abs=0.012)


def test_the_three_verdicts() -> None:
    small, wide = np.tile([0.01, -0.01], 100), np.tile([0.4, -0.4], 100)
    assert decided(small, 0.01).verdict == "not worse"
    assert decided(small + 0.05, 0.01).verdict == "worse"
    assert decided(wide, 0.01).verdict == "cannot tell"
    # A loss that is shown, and not shown to stay within the budget, is worse; within it, it passes.
    assert decided(small + 0.005, 0.0051).verdict == "worse"
    assert decided(small + 0.005, 0.05).verdict == "not worse"


def test_few_changed_queries_are_not_trusted() -> None:
    losses = np.zeros(60)
    losses[0] = 0.001
    found = decided(losses, 0.01)
    more = scipy.stats.ttest_1samp(np.append(losses, UNSEEN), 0.01, alternative="less")
    assert (found.p_within, found.verdict) == (pytest.approx(more.pvalue), "cannot tell")
    assert found.changed == 1 < FEW
    base = {"m": losses}
    assert decide(base, base, {"m": 0.01}, T_TEST, same=True)["m"].verdict == "not worse"
    assert decide(base, base, {"m": 0.01}, T_TEST)["m"].verdict == "cannot tell"
    assert decided(np.zeros(1000), 0.01).verdict == "not worse"


def test_to_fail_is_corrected_and_to_pass_is_not(rng: np.random.Generator) -> None:
    losses = rng.normal(0.0, 0.1, 200)
    shifted = losses - losses.mean() + 0.013  # p of a loss is about .034
    base = {name: np.zeros(200) for name in "ab"}
    found = decide(base, {"a": -shifted, "b": shifted - 0.013}, {"a": 0.01, "b": 0.02}, T_TEST)
    assert found["a"].p_loss < 0.05 < found["a"].p_corrected == 2 * found["a"].p_loss
    assert found["a"].verdict == "cannot tell"
    assert found["b"].p_within < 0.05
    assert found["b"].verdict == "not worse"
    assert decided(shifted, 0.01).verdict == "worse"


def test_what_could_be_seen(rng: np.random.Generator) -> None:
    spread, count = 0.2, 120
    least = smallest_difference(count, spread, alpha=0.1)
    assert power(count, least, spread, alpha=0.1) == pytest.approx(0.8, abs=1e-6)
    found = decided(rng.normal(0, spread, count), 0.01)
    assert found.smallest is not None
    assert found.needed is not None
    own = found.smallest / least  # the sample's spread, relative
    assert found.needed == pytest.approx(
        ((1.644854 + 0.841621) * spread * own / 0.01) ** 2, rel=0.01
    )
    samples = rng.normal(least, spread, (600, count))
    seen = np.mean([decided(row, least).p_loss < 0.05 for row in samples])
    assert seen == pytest.approx(0.8, abs=0.05)


def test_rates_of_wrong_verdicts(rng: np.random.Generator) -> None:
    """A small version of scripts/prove_gate.py: differences with many ties, turned at random."""
    sizes = np.where(rng.random(400) < 0.4, rng.beta(1, 3, 400), 0.0)
    wrong = {"alarm": 0, "pass": 0}
    trials = 400
    for _ in range(trials):
        drawn = sizes[rng.integers(0, 400, 100)]
        equal = np.where(rng.random(100) < 0.5, drawn, -drawn)
        wrong["alarm"] += decided(equal, 0.01).verdict == "worse"
        edge = np.where(rng.random(100) < 0.5 * (1 + 0.01 / sizes.mean()), drawn, -drawn)
        wrong["pass"] += decided(edge, 0.01).verdict == "not worse"
    assert wrong["alarm"] / trials < 0.05 + 2.6 * (0.05 * 0.95 / trials) ** 0.5
    assert wrong["pass"] / trials < 0.05


def test_other_tests_are_refused() -> None:
    for testing in (SignificanceTest("bootstrap"), SignificanceTest(alpha=0.6)):
        with pytest.raises(ConfigError, match="a gate has t-test and fisher"):
            decided(np.zeros(3), 0.01, testing)
