"""Click models: the truth of simulated users is recovered, figures equal plain counting."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from click_logs import EXAMINATION, SATISFACTION, Truth, write_log

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.training_data.clicks.examples import graded, read_propensities
from sluice.retrieval.training_data.clicks.models import Estimate, estimate


@pytest.fixture(scope="module")
def truth() -> Truth:
    return Truth()


@pytest.fixture(scope="module")
def logs(truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("logs")
    return {
        model: write_log(folder / f"{model}.jsonl", truth.rows(model))
        for model in ("pbm", "cascade", "dbn")
    }


@pytest.fixture(scope="module")
def estimates(logs: dict[str, Path]) -> dict[str, Estimate]:
    return {model: estimate([path], model) for model, path in logs.items()}  # type: ignore[arg-type]


def errors(estimated: Estimate, truth: Truth, factor: float = 1.0) -> np.ndarray:
    expected = [factor * truth.relevance[pair] for pair in estimated.counts.pairs]
    return np.abs(estimated.relevance() - np.array(expected))


@pytest.mark.parametrize(
    ("model", "factor"), [("pbm", 1.0), ("cascade", 1.0), ("dbn", SATISFACTION)]
)
def test_the_relevance_of_simulated_users_is_recovered(
    model: str, factor: float, estimates: dict[str, Estimate], truth: Truth
) -> None:
    estimated = estimates[model]
    assert errors(estimated, truth, factor).mean() < 0.03
    clicks = estimated.clicked / estimated.shown
    expected = [factor * truth.relevance[pair] for pair in estimated.counts.pairs]
    assert np.abs(clicks - expected).mean() > 0.07  # what the position costs


def test_position_bias_is_recovered(estimates: dict[str, Estimate]) -> None:
    estimated = estimates["pbm"]
    np.testing.assert_allclose(estimated.examination, EXAMINATION, atol=0.03)
    assert estimated.positions.tolist() == [1, 2, 3, 4]


def test_expectation_maximisation_ends_where_the_likelihood_does_not_rise(
    estimates: dict[str, Estimate],
) -> None:
    estimated = estimates["pbm"]
    cells = estimated.counts.cells

    def likelihood(examination: np.ndarray, relevance: np.ndarray) -> float:
        total = 0.0
        for (pair, position), (shown, clicks) in cells.items():
            chance = examination[position - 1] * relevance[pair]
            total += clicks * math.log(chance) + (shown - clicks) * math.log1p(-chance)
        return total

    # Given where users look, the most likely relevance of one pair is found on a grid.
    best = np.array(
        [
            max(
                np.arange(0.001, 1.0, 0.001),
                key=lambda value, number=pair: sum(  # type: ignore[misc]
                    clicks * math.log(value * estimated.examination[position - 1])
                    + (shown - clicks) * math.log1p(-value * estimated.examination[position - 1])
                    for (each, position), (shown, clicks) in cells.items()
                    if each == number
                ),
            )
            for pair in range(len(estimated.counts.pairs))
        ]
    )
    top = likelihood(estimated.examination, best)
    assert top > likelihood(np.array(EXAMINATION), best)
    for place in range(1, 4):
        for factor in (0.98, 1.02):
            moved = estimated.examination.copy()
            moved[place] *= factor
            assert likelihood(moved, best) < top


def test_cascade_equals_counting_up_to_the_first_click(
    estimates: dict[str, Estimate], truth: Truth
) -> None:
    estimated = estimates["cascade"]
    looked: dict[tuple[str, str], int] = defaultdict(int)
    clicked: dict[tuple[str, str], int] = defaultdict(int)
    gone = ""
    for row in truth.rows("cascade"):
        if gone == row["session"]:
            continue
        looked[row["query_id"], row["doc_id"]] += 1
        clicked[row["query_id"], row["doc_id"]] += row["clicked"]
        gone = row["session"] if row["clicked"] else gone
    pairs = list(estimated.counts.pairs)
    np.testing.assert_array_equal(estimated.examined, [looked[pair] for pair in pairs])
    np.testing.assert_array_equal(estimated.credited, [clicked[pair] for pair in pairs])


def test_dbn_of_clicks_at_the_end_of_the_page_only_equals_counting(tmp_path: Path) -> None:
    """Nothing stands below the last click, so that what users did there needs no guess."""
    pages = [[0, 1], [1, 1], [1, 1], [0, 0]]
    rows = [
        {"session": str(number), "query_id": "q", "doc_id": name, "position": place + 1,
         "clicked": page[place]}
        for number, page in enumerate(pages) for place, name in enumerate(("a", "b"))
    ]  # fmt: skip
    estimated = estimate([write_log(tmp_path / "log.jsonl", rows)], "dbn")
    # a: attracts 2 of 4, satisfies 0 of 2; b: attracts 3 of 4, satisfies 3 of 3.
    np.testing.assert_allclose(estimated.relevance(), [0.0, 0.75])
    np.testing.assert_allclose(estimated.examination, [1.0, 1.0])


def test_dbn_settles_where_its_two_probabilities_explain_each_other(
    estimates: dict[str, Estimate], truth: Truth
) -> None:
    """The equations of the fixed point, page by page in plain words."""
    estimated = estimates["dbn"]
    pairs = estimated.counts.pairs
    attraction = estimated.clicked / estimated.examined
    satisfaction = estimated.credited / estimated.clicked
    looked, credited = np.zeros(len(pairs)), np.zeros(len(pairs))
    pages: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in truth.rows("dbn"):
        pages[row["session"]].append((pairs[row["query_id"], row["doc_id"]], row["clicked"]))
    for page in pages.values():
        last = max((place for place, (_, clicked) in enumerate(page) if clicked), default=None)
        going = 1.0
        for place, (pair, _) in enumerate(page):
            looked[pair] += going
            if place == last:
                silent = math.prod(1 - attraction[below] for below, _ in page[place + 1 :])
                left = satisfaction[pair]
                going = (1 - left) * silent / (left + (1 - left) * silent)
                credited[pair] += 1 - going
    np.testing.assert_allclose(looked, estimated.examined, rtol=1e-4)
    np.testing.assert_allclose(credited, estimated.credited, rtol=1e-4)


ROWS = [
    {"query_id": "q0", "doc_id": "d00", "position": 1, "clicks": 30, "impressions": 40},
    {"query_id": "q0", "doc_id": "d00", "position": 2, "clicks": 6, "impressions": 20},
    {"query_id": "q0", "doc_id": "d01", "position": 2, "clicks": 1, "impressions": 50},
    {"query_id": "q0", "doc_id": "d02", "position": 3, "clicks": 0, "impressions": 10},
]


@pytest.mark.parametrize("name", ["log.jsonl", "log.tsv"])
def test_given_propensities_weigh_clicks_by_their_inverse(name: str, tmp_path: Path) -> None:
    path = write_log(tmp_path / name, ROWS)
    estimated = estimate([path], propensities=[1.0, 0.5, 0.01], clip=0.1)
    np.testing.assert_allclose(estimated.weights, [30 + 6 / 0.5, 1 / 0.5, 0.0])
    np.testing.assert_allclose(estimated.examined, [40 + 20 * 0.5, 50 * 0.5, 10 * 0.1])
    mean = 37 / 76
    np.testing.assert_allclose(
        estimated.relevance(2.0),
        [(36 + 2 * mean) / (50 + 2), (1 + 2 * mean) / (25 + 2), 2 * mean / (1 + 2)],
    )
    assert estimate([path], "counts").weights.tolist() == [36.0, 1.0, 0.0]


def test_several_logs_are_one(
    logs: dict[str, Path], estimates: dict[str, Estimate], tmp_path: Path
) -> None:
    lines = logs["pbm"].read_text().splitlines(keepends=True)
    for number, part in enumerate((lines[:1000], lines[1000:])):
        (tmp_path / f"{number}.jsonl").write_text("".join(part))
    one = estimates["pbm"]
    two = estimate([tmp_path / "0.jsonl", tmp_path / "1.jsonl"])
    assert one.as_dict() == two.as_dict()


def test_grades_have_gains_like_relevance() -> None:
    # The best of a group has the top grade, and half its relevance the gain 7.5 of 15, which is
    # nearest to grade 3 (gain 7); 1/15 of it is grade 1 exactly.
    relevance = np.array([0.6, 0.3, 0.04, 0.0, 0.1])
    assert graded(relevance, ["q", "q", "q", "q", "other"], 4).tolist() == [4, 3, 1, 0, 4]


def test_positions_that_nothing_connects_are_refused(tmp_path: Path) -> None:
    rows = [row for row in ROWS if (row["doc_id"], row["position"]) != ("d00", 2)]
    path = write_log(tmp_path / "log.jsonl", rows)
    with pytest.raises(DataError, match=r"positions 1 and 2 show no clicked document .* in common"):
        estimate([path])
    assert estimate([path], "counts").clicks.tolist() == [30, 1, 0]
    with pytest.raises(DataError, match=r"2 for positions 1 to 2, and the log has position 3"):
        estimate([path], propensities=[1.0, 0.5])
    with pytest.raises(DataError, match=r"2 for positions 1 to 3, and the log has position 2"):
        estimate([path], propensities={1: 1.0, 3: 0.5})


def test_a_log_whose_pages_skip_a_position(tmp_path: Path) -> None:
    """Its propensities are written and read again: what was never shown has none."""
    places = {1: 1, 2: 2, 3: 5}
    rows = [{**row, "position": places[row["position"]]} for row in ROWS]
    path = write_log(tmp_path / "log.jsonl", rows)
    found = estimate([path], "counts")
    (tmp_path / "out.json").write_text(json.dumps(found.as_dict()))
    again = read_propensities(tmp_path / "out.json")
    assert again == {1: 1.0, 2: 1.0, 5: 1.0}
    weighed = estimate([path], propensities=again)
    np.testing.assert_array_equal(weighed.relevance(), found.relevance())
    with pytest.raises(ConfigError, match=r"model: 'ubm', expected counts, pbm"):
        estimate([path], "ubm")  # type: ignore[arg-type]


def test_one_page_of_one_document(tmp_path: Path) -> None:
    row = {"session": "1", "query_id": "q", "doc_id": "d", "position": 1, "clicked": 1}
    path = write_log(tmp_path / "log.jsonl", [row])
    for model in ("counts", "pbm", "cascade", "dbn"):
        estimated = estimate([path], model)  # type: ignore[arg-type]
        assert estimated.relevance().tolist() == [pytest.approx(1.0)]
        assert estimated.examination.tolist() == [pytest.approx(1.0)]
