"""The modes of mining: what each reduces to, and what none of them may do (systems.md 3.1-3.6)."""

import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training import JudgedPair, Mining, mine, mine_lists
from sluice.training.negatives.false_negatives import judged
from sluice.training.negatives.settings import MODES
from sluice.training.protocol import Example, Text

RANKED = {"q": [("a", 0.9), ("p", 0.8), ("b", 0.79), ("c", 0.7), ("d", 0.5), ("e", 0.1)]}
POSITIVES = {"q": {"p": 1, "z": 0}}
OFF = {"max_positive_ratio": None}

lists = st.lists(st.integers(-50, 50), min_size=1, max_size=30, unique=True).map(
    lambda scores: [(f"d{s}", s / 10) for s in sorted(scores, reverse=True)]
)
checked = settings(max_examples=60, deadline=None, derandomize=True)


class Table:
    """A judge that has its scores in a table."""

    name = "table"
    needs_texts = False

    def __init__(self, scores: dict[str, float]) -> None:
        self.table = scores
        self.asked: list[JudgedPair] = []

    def scores(self, pairs: Sequence[JudgedPair]) -> list[float]:
        self.asked += pairs
        return [self.table.get(pair.document_id, math.nan) for pair in pairs]


@checked
@given(lists, st.integers(0, 29), st.floats(0.1, 1.0), st.floats(0, 3), st.floats(0, 0.5))
def test_no_negative_above_the_one_formula(
    hits: list[tuple[str, float]], place: int, ratio: float, margin: float, share: float
) -> None:
    document, positive = hits[place % len(hits)]
    scores = dict(hits)

    def of(**chosen: object) -> list[str]:
        mining = Mining(per_query=30, **{**OFF, **chosen})
        found = mine({"q": hits}, {"q": {document: 1}}, mining)
        assert found.report.positive_share == 0
        assert document not in found.negatives["q"]
        return list(found.negatives["q"])

    limit = positive - (margin + share * abs(positive))
    assert all(scores[name] < limit for name in of(adaptive_margin=(margin, share)))
    assert of(adaptive_margin=(margin, 0.0)) == of(margin=margin)
    assert of(adaptive_margin=(0.0, 1 - ratio)) == of(max_positive_ratio=ratio)
    assert of(max_positive_ratio=1.0) == of(margin=0.0) == of(adaptive_margin=(0.0, 0.0))
    if positive != 0:  # a share of nothing is nothing
        assert of(max_positive_ratio=1e9) == of(margin=-1e9) == of()


@checked
@given(lists, st.integers(0, 29), st.integers(0, 12), st.integers(1, 10), st.booleans())
def test_window_bounds_are_respected(
    hits: list[tuple[str, float]], place: int, low: int, width: int, random: bool
) -> None:
    document = hits[place % len(hits)][0]
    others = [name for name, _ in hits if name != document]
    mining = Mining(
        min(3, width), range_min=low, range_max=low + width,
        sampling="random" if random else "top", **OFF,
    )  # fmt: skip
    found = mine({"q": hits}, {"q": {document: 1}}, mining, seed=3).negatives["q"]
    window = others[low : low + width]
    assert set(found) <= set(window)
    assert len(found) == min(len(window), mining.per_query)


def test_a_mode_is_one_word_that_keys_override() -> None:
    assert Mining.in_mode("percentage") == Mining()
    assert Mining.in_mode("naive") == Mining(max_positive_ratio=None)
    window = Mining.in_mode("window", {"range_max": 80, "per_query": 7})
    assert (window.range_min, window.range_max, window.per_query) == (50, 80, 7)
    assert window.sampling == "random"
    for mode in MODES:
        assert Mining.in_mode(mode, {"per_query": 2}).per_query == 2
    adaptive = Mining.in_mode("adaptive", {"adaptive_margin": [0.1, 0]}).adaptive_margin
    assert adaptive == (0.1, 0.0)
    with pytest.raises(ConfigError, match="did you mean 'naive'"):
        Mining.in_mode("naiv")


@pytest.mark.parametrize(
    ("positives", "limit"), [("lowest", 0.5), ("mean", 0.65), ("highest", 0.8)]
)
def test_several_positives_set_one_limit(positives: str, limit: float) -> None:
    known = {"q": {"p": 1, "d": 1}}
    mining = Mining(9, 1.0, positives=positives)
    found = mine(RANKED, known, mining)
    expected = [name for name, s in RANKED["q"] if s < limit and name not in known["q"]]
    assert list(found.negatives["q"]) == expected
    assert found.rows[0].positive_score == pytest.approx(limit, abs=1e-10)
    judge = Table(dict(RANKED["q"]))
    settings_ = {"positives": positives, "per_query": 9, "judge_margin": 0.0, "judge_depth": 9}
    judged_ = mine(RANKED, known, Mining.in_mode("judge", settings_), judge=judge)
    assert list(judged_.negatives["q"]) == expected


def test_cyclic_sampling_steps_through_the_list() -> None:
    hits = [(f"{place}", -float(place)) for place in range(12)]
    mining = Mining(6, sampling="cyclic", step=5, **OFF)
    found = mine({"q": hits}, {"q": {"x": 1}}, mining).negatives["q"]
    assert found == ("0", "1", "5", "6", "10", "11")  # 0 5 10, then 1 6 11; best first


def test_gamma_puts_likely_false_negatives_back() -> None:
    """3.4: s (1 - J)^gamma; with gamma 0 nothing changes, whatever the judge says."""
    rng = np.random.default_rng(4)
    hits = sorted(
        ((f"{n}", float(s)) for n, s in enumerate(rng.normal(size=20))), key=lambda hit: -hit[1]
    )
    judge = Table({name: float(p) for (name, _), p in zip(hits, rng.uniform(size=20), strict=True)})
    known = {"q": {"x": 1}}

    def mined(judge_: Table | None = judge, **changes: float) -> tuple[str, ...]:
        mining = Mining(**{"per_query": 6, "judge_depth": 20, **OFF, **changes})
        return mine({"q": hits}, known, mining, judge=judge_).negatives["q"]

    assert mined(judge_gamma=0.0) == mined(None) == tuple(name for name, _ in hits[:6])
    for gamma in (0.5, 3.0):
        weights = {n: s * (1 - judge.table[n]) ** (gamma if s >= 0 else -gamma) for n, s in hits}
        best = sorted(weights, key=lambda name: -weights[name])[:6]
        assert set(mined(judge_gamma=gamma)) == set(best)
    assert set(best) != set(mined(None))
    with pytest.raises(DataError, match=r"gives 1\.5, expected probabilities"):
        mined(Table({name: 1.5 for name, _ in hits}), judge_gamma=1.0)
    with pytest.raises(ConfigError, match="judge_gamma: needs a judge"):
        mined(None, judge_gamma=1.0)
    two = {"a": {"q": hits}, "b": {"q": hits}}
    with pytest.raises(ConfigError, match=r"here are 2 \(a, b\), whose scores do not compare"):
        mine_lists(two, known, Mining(judge_gamma=1.0), judge=judge)


def test_a_judge_drops_all_that_it_puts_above_the_positive() -> None:
    """UniME-V2: J >= J(q, positive) - beta is a false negative; the rest cyclic by J."""
    rng = np.random.default_rng(2)
    ranked, positives, truth = {}, {}, {}
    for query in range(30):
        names = [f"{query}-{place}" for place in range(40)]
        ranked[f"{query}"] = [(name, 1 - place / 40) for place, name in enumerate(names)]
        positives[f"{query}"] = {names[7]: 1}
        truth |= dict(zip(names, rng.uniform(0, 0.5, 40).tolist(), strict=True))
        truth[names[7]] = 0.6
        truth |= dict.fromkeys(names[:5], 0.9)  # planted above
        truth[names[9]] = 0.591  # within beta
    judge = Table(truth)
    found = mine(ranked, positives, Mining.in_mode("judge", {"per_query": 8}), judge=judge)
    for query, negatives in found.negatives.items():
        places = {int(name.split("-")[1]) for name in negatives}
        assert not places & {0, 1, 2, 3, 4, 7, 9}
        assert len(negatives) == 8
        kept = sorted(truth[name] for name in dict(ranked[query]) if truth[name] < 0.59)[::-1]
        chosen = [*kept[0::5], *kept[1::5]][:8]
        assert sorted(truth[name] for name in negatives) == sorted(chosen)
    assert found.report.dropped["judge"] == 30 * 6
    row = next(row for row in found.rows if row.reason == "judge")
    assert row.judge == truth[row.document]
    assert {row.judge for row in found.rows if row.reason == "positive"} == {0.6}


def test_what_nobody_judges_is_no_negative() -> None:
    mining = Mining.in_mode("judge", {"judge_depth": 3, "per_query": 2, "sampling": "top"})
    found = mine(RANKED, POSITIVES, mining, judge=Table({"p": 1.0, "a": 0.1, "b": 2.0}))
    reasons = {row.document: row.reason for row in found.rows}
    assert reasons == dict(a="kept", p="positive", b="judge", c="unjudged", d="unjudged",
                           e="unjudged")  # fmt: skip
    without = mine(RANKED, POSITIVES, mining, judge=Table({"a": 0.1}))
    assert without.report.queries_without_judged_positive == 1
    assert without.negatives["q"] == ("a", "b")  # no limit without the positive's score
    two = {"q": {"p": 1, "e": 1}}
    low = mine(RANKED, two, mining, judge=Table({"p": 1.0, "e": 0.2, "a": 0.3, "b": 0.1}))
    assert low.negatives["q"] == ("b",)  # the lowest of the positives' scores


def test_a_judge_gets_texts_and_paraphrases_are_not_judged() -> None:
    class Longest(Table):
        needs_texts = True

        def scores(self, pairs: Sequence[JudgedPair]) -> list[float]:
            self.asked += pairs
            return [float(len(pair.document)) for pair in pairs]

    texts = {"p": "Four", "a": "four ", "b": "a longer text", "c": "no", "d": "x"}
    judge = Longest({})
    mining = Mining.in_mode("judge", {"per_query": 2})
    found = mine(RANKED, POSITIVES, mining, judge=judge, queries={"q": "ask"}, texts=texts)
    assert found.negatives["q"] == ("c", "d")
    assert [pair.document_id for pair in judge.asked] == ["p", "b", "c", "d"]
    assert judge.asked[0] == ("q", "ask", "p", "Four")
    with pytest.raises(ConfigError, match="reads texts"):
        mine(RANKED, POSITIVES, mining, judge=judge)
    with pytest.raises(ConfigError, match="needs a judge"):
        mine(RANKED, POSITIVES, mining)


def test_a_judge_is_checked() -> None:
    pair = JudgedPair("q", "", "d", "")
    assert np.isnan(judged(Table({}), [pair]))[0]
    with pytest.raises(DataError, match="'d'; expected finite numbers"):
        judged(Table({"d": math.inf}), [pair])
    wrong = SimpleNamespace(name="w", needs_texts=False, scores=lambda pairs: [1.0, 2.0])
    with pytest.raises(DataError, match=r"shape \(2,\) for 1 pairs"):
        judged(wrong, [pair])


def test_a_pair_whose_positive_is_shuffled_away_is_filtered() -> None:
    """KaLM's ranking-consistency filter."""
    rng = np.random.default_rng(4)
    names = [f"d{place}" for place in range(200)]
    ranked = {"good": [(name, -float(place)) for place, name in enumerate(names)]}
    ranked["bad"] = ranked["good"]
    low = str(rng.permutation(names[50:])[0])
    positives = {"good": {"d3": 1, low: 1}, "bad": {low: 1}, "unanswered": {"d3": 1}}
    found = mine(ranked, positives, Mining(2, consistency=50, **OFF))
    assert found.inconsistent == {q: {d} for q, d in
                                  (("good", low), ("bad", low), ("unanswered", "d3"))}  # fmt: skip
    assert found.report.inconsistent_pairs == 3
    examples = [
        Example(Text(query, query), (Text(doc, doc),))
        for query, grades in positives.items()
        for doc in grades
    ]
    kept = [(each.query.id, each.documents[0].id) for each in found.consistent(examples)]
    assert kept == [("good", "d3")]
    assert low not in found.negatives["good"]
    three = (Text("d3", ""), Text(low, ""), Text("d9", ""))
    several = Example(Text("good", ""), three, (1.0, 1.0, 0.0), scores=(3.0, 2.0, 1.0))
    (narrowed,) = found.consistent([several])
    assert [doc.id for doc in narrowed.documents] == ["d3", "d9"]
    assert (narrowed.labels, narrowed.scores) == ((1.0, 0.0), (3.0, 1.0))
    assert mine(ranked, positives, Mining(2, **OFF)).inconsistent == {}


def test_several_lists_are_joined_rank_by_rank() -> None:
    bm25 = {"q": [("a", 9.0), ("p", 8.0), ("b", 5.0)]}
    dense = {"q": [("c", 0.9), ("b", 0.8), ("p", 0.75), ("d", 0.1)]}
    found = mine_lists({"bm25": bm25, "dense": dense}, POSITIVES, Mining(3, 1.0))
    assert found.negatives["q"] == ("d",)  # b fits bm25's limit, not dense's
    reasons = {(row.source, row.document): row.reason for row in found.rows}
    assert reasons["bm25", "b"] == reasons["dense", "b"] == "ratio"
    assert found.report.candidates == 5
    naive = mine_lists({"bm25": bm25, "dense": dense}, POSITIVES, Mining(4, **OFF))
    assert naive.negatives["q"] == ("a", "c", "b", "d")
    assert naive.report.found_by == {"bm25": 2, "dense": 3}
    assert "found by: bm25 2, dense 3" in str(naive.report)
    given = {"bm25": {"q": {"p": 1.0}}, "dense": {}}
    alone = {"bm25": {"q": [("a", 9.0)]}, "dense": {"q": [("a", 0.4), ("p", 0.9)][::-1]}}
    limited = mine_lists(alone, POSITIVES, Mining(1, 1.0), positive_scores=given)
    assert limited.negatives["q"] == ()  # bm25 gives its positive 1.0


@checked
@given(lists, st.integers(0, 29), st.sampled_from(sorted(set(MODES) - {"judge"})))
def test_one_list_twice_is_the_list(hits: list[tuple[str, float]], place: int, mode: str) -> None:
    positives = {"q": {hits[place % len(hits)][0]: 1}}
    mining = Mining.in_mode(mode, {"consistency": 5})
    once = mine({"q": hits}, positives, mining)
    twice = mine_lists({"one": {"q": hits}, "two": {"q": hits}}, positives, mining)
    assert once.negatives == twice.negatives
    assert once.inconsistent == twice.inconsistent
    assert once.report.ratios == twice.report.ratios


def test_documents_without_text_are_dropped() -> None:
    texts = {"p": "yes", "a": " \n", "b": "one", "c": "two", "d": "three", "e": "four"}
    for sampling in ("top", "random", "cyclic"):
        mining = Mining(5, sampling=sampling, **OFF)
        found = mine(RANKED, POSITIVES, mining, texts=lambda ids: {i: texts[i] for i in ids})
        assert found.negatives["q"] == ("b", "c", "d", "e")
        assert found.report.dropped["empty_text"] == 1


def test_shortage_is_said_with_the_remedy() -> None:
    report = mine(RANKED, POSITIVES, Mining(9)).report
    assert report.shortage == (
        "1 of 1 queries have fewer than 9 negatives (6 of 9 are missing); 2 candidates were "
        "dropped: too near the positive's score (max_positive_ratio): raise max_positive_ratio, "
        "set it by the mean or highest of several positives (positives), "
        "search deeper (depth), or ask for fewer (per_query)"
    )
    naive = mine(RANKED, POSITIVES, Mining(9, **OFF)).report.shortage
    assert naive.endswith("are missing); search deeper (depth), or ask for fewer (per_query)")
    assert mine(RANKED, POSITIVES, Mining(3)).report.shortage == ""


def test_histograms_count_every_negative() -> None:
    ranked = {
        f"{q}": [(f"{q}-{i}", 1 - i / 100 + 0.005 * (i > 0)) for i in range(60)] for q in range(5)
    }
    positives = {f"{q}": {f"{q}-0": 1} for q in range(5)}
    report = mine(ranked, positives, Mining(20)).report
    assert sum(report.ranks.counts) == sum(report.ratios.counts) == report.kept == 100
    assert report.per_query.counts[-1] == 5
    assert report.as_dict()["ranks"]["counts"] == report.ranks.counts
    assert str(report.ratios) == "0.70-0.80: 25, 0.80-0.90: 50, 0.90-1.00: 25"
    assert (report.ranks.median(), report.ratios.median()) == ("12-14", "0.80-0.90")
    assert "typical: rank 13-15, at 0.80-0.90 of the positive's score" in str(report)
    assert len(str(report).splitlines()) <= 8


@pytest.mark.parametrize(
    "arguments",
    [
        {"adaptive_margin": (0.1,)},
        {"adaptive_margin": (0.1, math.nan)},
        {"judge_margin": math.inf},
        {"judge_margin": 0.0, "judge_depth": 3, "per_query": 4},
        {"judge_gamma": 1.0, "judge_depth": 3, "per_query": 4},
        {"judge_gamma": 1.0, "sampling": "random"},
    ],
)
def test_bad_settings(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"negatives\."):
        Mining(**arguments)


@pytest.mark.filterwarnings("ignore")
def test_same_as_sentence_transformers_on_scifact(collections: Path) -> None:
    """``mine_hard_negatives(relative_margin=.05)`` over SciFact's train split, a fixed encoder."""
    util = pytest.importorskip("sentence_transformers.util")
    datasets = pytest.importorskip("datasets")
    from sluice.retrieval import load_dataset

    data = load_dataset(str(collections / "scifact"), split="train")
    texts = {document.id: document.full_text for document in data.corpus}
    corpus = list(dict.fromkeys(texts.values()))
    pairs = [
        (data.queries[q], texts[d])
        for q, grades in data.qrels.items()
        for d in grades
        if d in texts
    ][:300]
    queries = list(dict.fromkeys(query for query, _ in pairs))
    vectors = np.zeros((len(corpus) + len(queries), 256), np.float32)
    for row, text in enumerate([*corpus, *queries]):
        np.add.at(vectors[row], [zlib.crc32(word.encode()) % 256 for word in text.split()], 1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    place = {text: row for row, text in enumerate([*corpus, *queries])}

    def encode(batch: list[str], **_: object) -> np.ndarray:
        return vectors[[place[text] for text in batch]]

    model = SimpleNamespace(
        device=torch.device("cpu"),
        encode_document=encode,
        encode_query=encode,
        similarity=lambda a, b: torch.as_tensor(a) @ torch.as_tensor(b).T,
        similarity_pairwise=lambda a, b: (torch.as_tensor(a) * torch.as_tensor(b)).sum(-1),
    )
    columns = {"query": [q for q, _ in pairs], "answer": [text for _, text in pairs]}
    found = util.mine_hard_negatives(
        datasets.Dataset.from_dict(columns), model, corpus=corpus, relative_margin=0.05,
        num_negatives=4, range_max=100, output_format="n-tuple", verbose=False,
    )  # fmt: skip
    theirs = {row["query"]: {row[f"negative_{i}"] for i in range(1, 5)} for row in found}
    positives: dict[str, dict[str, int]] = {}
    for query, text in pairs:
        positives.setdefault(query, {})[text] = 1
    deepest = 100 + max(map(len, positives.values()))
    scores = vectors[[place[query] for query in queries]] @ vectors[: len(corpus)].T
    ranked, known = {}, {}
    for query, row in zip(queries, scores, strict=True):
        best = np.argsort(-row, kind="stable")[:deepest]
        ranked[query] = [(corpus[column], float(row[column])) for column in best]
        known[query] = {text: float(row[place[text]]) for text in positives[query]}
    ours = mine(ranked, positives, Mining(4), positive_scores=known)
    assert ours.report.positive_share == 0
    full = {query: set(names) for query, names in ours.negatives.items() if len(names) == 4}
    assert len(full) > 50
    # Products of a matrix and of pairs differ in the last bit: a tie with the limit may fall apart.
    same = sum(full.get(query) == names for query, names in theirs.items())
    assert abs(len(full) - len(theirs)) <= 2
    assert same >= len(theirs) - 4
