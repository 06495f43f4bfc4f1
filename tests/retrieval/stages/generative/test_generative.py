"""Generative rerankers over made-up language models: pointwise, pairwise, listwise, the parser."""

import logging
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_language_models import FakeModel, Numbered, comparator, oracle, worth
from hypothesis import given, settings, strategies as st
from tiny_models import save_tokenizer

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.generative.list_order import read_order, windows
from sluice.retrieval import Rerank, Run
from sluice.retrieval.pipelines.table import SCORERS
from sluice.retrieval.pipelines.tracing import tracing
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.generative.pointwise import Pointwise
from sluice.retrieval.stages.generative.rerankers import Listwise, Pairwise, pairs_of

ALWAYS_FIRST = FakeModel(lambda prompt: (1.0, 0.0))
NAN = (math.nan, math.nan)


def head(count: int) -> Ranking:
    return Ranking([str(number) for number in range(count)], np.arange(count, 0, -1.0))


def order(scores: np.ndarray) -> list[int]:
    return np.argsort(-scores, kind="stable").tolist()


def shuffled(count: int, seed: int) -> list[int]:
    worths = list(range(count))
    random.Random(seed).shuffle(worths)
    return worths


@pytest.mark.parametrize("grade", range(1, 6))
def test_the_soft_score_of_a_sure_grade_is_the_grade(grade: int) -> None:
    model = FakeModel(lambda prompt: np.eye(5)[grade - 1])
    assert Pointwise.graded(model).score([("q", "d"), ("q", "e")]).tolist() == [grade, grade]


def test_soft_scores_are_expected_grades() -> None:
    model = FakeModel(lambda prompt: {"a": (0.5, 0.25, 0.25), "b": (0, 0.5, 0.5)}[prompt.slots[0]])
    scorer = Pointwise.graded(model, grades=3)
    assert scorer.score([("q", "a"), ("q", "b")]).tolist() == pytest.approx([1.75, 2.5])
    assert "from 1 to 3" in model.asked[0].text
    unscaled = FakeModel(lambda prompt: (30.0, 10.0))  # weights, not probabilities
    assert Pointwise.yes_no(unscaled).score([("q", "d")]).tolist() == pytest.approx([0.75])


def test_yes_no_ranks_by_the_probability_of_yes() -> None:
    model = FakeModel(lambda prompt: (1 / (1 + worth(prompt.slots[0])), 1.0))
    run = Rerank(Pointwise.yes_no(model), depth=3, documents=Numbered([3, 1, 2, 0])).run(
        {"q": "what"}, Run({"q": head(4)})
    )
    assert list(run["q"].doc_ids) == ["1", "2", "0", "3"]
    assert Pointwise.yes_no(model).score([]).shape == (0,)


def test_no_answer_is_the_middle_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model = FakeModel(lambda prompt: NAN if prompt.slots[0] == "silent" else (0.0, 1.0))
    with caplog.at_level(logging.WARNING, "sluice"):
        scores = Pointwise.yes_no(model).score([("q", "silent"), ("q", "d")])
    assert scores.tolist() == [0.5, 0.0]
    assert "1 of 2 prompts" in caplog.text
    grades = Pointwise.graded(FakeModel(lambda prompt: [math.nan] * 5))
    assert grades.score([("q", "d")]).tolist() == pytest.approx([3.0])
    nothing_likely = Pointwise.yes_no(FakeModel(lambda prompt: (0.0, 0.0)))
    assert nothing_likely.score([("q", "d")]).tolist() == [0.5]


def test_what_failed_is_noted_for_explanations() -> None:
    stage = Rerank(Pairwise(FakeModel(lambda prompt: NAN)), depth=3, documents=Numbered([1, 2, 3]))
    with tracing() as spans:
        run = stage.run({"q": "what"}, Run({"q": head(3)}))
    assert list(run["q"].doc_ids) == ["0", "1", "2"]
    assert spans[0].facts["unanswered"] == spans[0].facts["prompts"] == 6


def test_a_model_of_another_shape_is_refused() -> None:
    class Odd(FakeModel):
        def answers(self, prompts: object, choices: object) -> np.ndarray:
            return np.zeros((1, 3))

    with pytest.raises(ModelError, match=r"shape \(1, 3\) for 2 prompts"):
        Pointwise.yes_no(Odd()).score([("q", "d"), ("q", "e")])


@pytest.mark.parametrize("count", [1, 2, 7])
def test_always_the_first_is_a_tie_of_all(count: int) -> None:
    found = Pairwise(ALWAYS_FIRST).score_lists(
        {"q": "what"}, {"q": head(count)}, Numbered(range(count))
    )["q"]
    assert found.tolist() == [count - 1.0] * count
    assert order(found) == list(range(count))


def test_a_biased_model_is_a_tie_of_all_too() -> None:
    """Sums of the same chances in another order must not differ by rounding."""
    biased = Pairwise(FakeModel(lambda prompt: (0.7310585786300049, 0.2689414213699951)))
    found = biased.score_lists({"q": "what"}, {"q": head(30)}, Numbered(range(30)))["q"]
    assert len(set(found.tolist())) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_consistent_comparator_sorts(seed: int) -> None:
    worths = shuffled(12, seed)
    model = FakeModel(comparator)
    found = Pairwise(model).score_lists({"q": "what"}, {"q": head(12)}, Numbered(worths))["q"]
    assert [worths[place] for place in order(found)] == list(range(11, -1, -1))
    assert len(model.asked) == 12 * 11


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(0, 1000))
def test_totals_sum_to_the_number_of_comparisons(count: int, seed: int) -> None:
    draw = random.Random(seed)
    model = FakeModel(lambda prompt: (draw.random(), draw.random()))
    lists = {"a": head(count), "b": head(2), "none": head(0)}
    found = Pairwise(model).score_lists(
        dict.fromkeys(lists, "q"), lists, Numbered(range(count + 2))
    )
    assert {query: len(scores) for query, scores in found.items()} == {
        "a": count,
        "b": 2,
        "none": 0,
    }
    assert found["a"].sum() == pytest.approx(count * (count - 1))
    assert found["b"].sum() == pytest.approx(2)


def test_only_the_depth_is_compared_and_the_others_follow() -> None:
    model = FakeModel(comparator)
    worths = [0, 1, 2, 9, 8, 7]
    found = Pairwise(model, depth=3).score_lists({"q": "x"}, {"q": head(6)}, Numbered(worths))["q"]
    assert order(found) == [2, 1, 0, 3, 4, 5]
    assert found[3:].max() < found[:3].min()
    assert len(model.asked) == 6


def test_fewer_opponents() -> None:
    assert pairs_of(4) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert pairs_of(5, 1) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
    assert pairs_of(5, 2) == pairs_of(5)
    assert pairs_of(1, 3) == []
    met = [place for pair in pairs_of(9, 3) for place in pair]
    assert {met.count(place) for place in range(9)} == {6}
    assert len({frozenset(pair) for pair in pairs_of(9, 3)}) == 27
    model = FakeModel(comparator)
    found = Pairwise(model, opponents=2).score_lists(
        {"q": "x"}, {"q": head(9)}, Numbered(range(9))
    )["q"]
    assert len(model.asked) == 36
    assert found.sum() == 36


def test_windows_cover_the_list_from_the_back() -> None:
    assert windows(100, 20, 10) == [slice(at, at + 20) for at in range(80, -1, -10)]
    assert windows(25, 20, 10) == [slice(5, 25), slice(0, 20)]
    assert windows(20, 20, 10) == windows(20, 50, 10) == [slice(0, 20)]
    assert windows(3, 20, 10) == [slice(0, 3)]


def listwise(worths: list[int], **options: int | None) -> tuple[list[int], FakeModel]:
    model = FakeModel(writes=oracle)
    scorer = Listwise(model, **options)  # type: ignore[arg-type]
    found = scorer.score_lists({"q": "what"}, {"q": head(len(worths))}, Numbered(worths))["q"]
    return [worths[place] for place in order(found)], model


@pytest.mark.parametrize("seed", range(3))
def test_one_pass_of_windows_brings_the_best_ten_to_the_top(seed: int) -> None:
    found, model = listwise(shuffled(100, seed), window=20, step=10)
    assert found[:10] == list(range(99, 89, -1))
    assert len(model.asked) == 9


@pytest.mark.parametrize(("step", "passes"), [(10, 9), (5, 7)])
def test_repeated_passes_reach_the_full_order(step: int, passes: int) -> None:
    assert passes <= math.ceil(100 / (20 - step))
    for worths in [list(range(100)), *(shuffled(100, seed) for seed in range(3))]:
        found, _ = listwise(worths, window=20, step=step, passes=passes)
        assert found == list(range(99, -1, -1))
    worst = list(range(100))
    assert listwise(worst, window=20, step=step, passes=passes - 1)[0] != worst[::-1]


@pytest.mark.parametrize("passes", range(1, 5))
def test_each_pass_settles_the_next_places(passes: int) -> None:
    found, _ = listwise(list(range(60)), window=10, step=4, passes=passes)
    assert found[: 6 * passes] == list(range(59, 59 - 6 * passes, -1))


def test_full_ranking_is_one_prompt() -> None:
    worths = shuffled(50, 4)
    found, model = listwise(worths, window=None)
    assert found == list(range(49, -1, -1))
    assert len(model.asked) == 1


def test_windows_of_all_queries_are_asked_together() -> None:
    model = FakeModel(writes=oracle)
    lists = {"a": head(40), "b": head(25), "c": head(1), "d": head(0)}
    found = Listwise(model).score_lists(dict.fromkeys(lists, "q"), lists, Numbered(range(40)))
    assert model.calls == 3
    assert len(model.asked) == 3 + 2
    assert [len(scores) for scores in found.values()] == [40, 25, 1, 0]


@pytest.mark.parametrize(("count", "window"), [(26, None), (40, 20), (1, None)])
def test_the_first_letters_chances_order_what_is_shown(count: int, window: int | None) -> None:
    """(Reddy et al. 2024, FIRST.) One probability a letter; silence keeps the order."""
    worths = shuffled(count, 3)
    model = FakeModel(lambda prompt: [2.0 ** worth(text) for text in prompt.slots[1:-1]])
    scorer = Listwise(model, window=window, first_token=True)
    found = scorer.score_lists({"q": "what"}, {"q": head(count)}, Numbered(worths))["q"]
    assert [worths[place] for place in order(found)][:10] == sorted(worths)[::-1][:10]
    assert all("[A] " in prompt.text and "[1]" not in prompt.text for prompt in model.asked)
    silent = Listwise(FakeModel(lambda prompt: [math.nan] * 3), first_token=True)
    kept = silent.score_lists({"q": "what"}, {"q": head(3)}, Numbered([1, 2, 3]))["q"]
    assert order(kept) == [0, 1, 2]


def test_there_are_letters_for_26() -> None:
    scorer = Listwise(FakeModel(lambda prompt: [1.0]), window=None, first_token=True)
    with pytest.raises(ConfigError, match="27 documents in one prompt, and there are 26 letters"):
        scorer.score_lists({"q": "what"}, {"q": head(27)}, Numbered(range(27)))


@pytest.mark.parametrize("answer", ["", "I cannot say.", "[0] > [77]", "[" * 50, "[१]"])
def test_an_answer_that_ranks_nothing_keeps_the_order(answer: str) -> None:
    found = Listwise(FakeModel(writes=lambda prompt: answer)).score_lists(
        {"q": "x"}, {"q": head(30)}, Numbered(range(30))
    )["q"]
    assert order(found) == list(range(30))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[3] > [1]", [2, 0, 1, 3]),
        ("[2] > [2] > [9] > [4]", [1, 3, 0, 2]),
        ("Of the 4 passages: [ 4 ] > [03].", [3, 2, 0, 1]),
        ("3, 1, 2", [2, 0, 1, 3]),
        ("[4, 2]", [3, 1, 0, 2]),
        ("<think>[1] > [2]?</think>[2] > [1]", [1, 0, 2, 3]),
        ("9" * 6000 + " [2]", [1, 0, 2, 3]),
        ("0" * 6000 + "2", [1, 0, 2, 3]),
        ("", [0, 1, 2, 3]),
    ],
)
def test_reading_an_order(text: str, expected: list[int]) -> None:
    assert read_order(text, 4)[0] == expected


ODD = st.one_of(
    st.text(max_size=80),
    st.text("[]0123456789 >,-\n", max_size=80),
    st.lists(st.integers(-3, 40)).map(lambda ids: " > ".join(f"[{number}]" for number in ids)),
)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(ODD, st.integers(0, 25))
def test_the_parser_always_returns_a_permutation(text: str, count: int) -> None:
    found, named = read_order(text, count)
    assert sorted(found) == list(range(count))
    assert 0 <= named <= count
    assert found[named:] == sorted(found[named:])


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.permutations(range(9)))
def test_a_written_permutation_is_read_back(wanted: list[int]) -> None:
    assert read_order(" > ".join(f"[{place + 1}]" for place in wanted), 9) == (wanted, 9)


@settings(derandomize=True, deadline=None, max_examples=20)
@given(st.lists(ODD, min_size=1, max_size=9), st.integers(1, 45))
def test_whatever_is_written_the_scores_are_a_permutation(answers: list[str], count: int) -> None:
    turns = iter(answers * 100)
    found = Listwise(FakeModel(writes=lambda prompt: next(turns)), passes=2).score_lists(
        {"q": "x"}, {"q": head(count)}, Numbered(range(count))
    )["q"]
    assert sorted(found.tolist()) == list(range(count))


def test_fingerprints_follow_what_decides_a_score() -> None:
    model = FakeModel()
    made = [
        Pointwise.yes_no(model),
        Pointwise.yes_no(model, answers=["true", "false"]),
        Pointwise.yes_no(model, prompt="{query} {document}"),
        Pointwise.graded(model),
        Pointwise.graded(model, grades=3),
        Pairwise(model),
        Pairwise(model, depth=10),
        Listwise(model),
        Listwise(model, passes=2),
        Listwise(model, window=None),
        Listwise(model, first_token=True),
    ]
    assert len({scorer.fingerprint for scorer in made}) == len(made)
    assert Pairwise(model).fingerprint == Pairwise(model).fingerprint
    other = FakeModel()
    other.fingerprint = "another"
    assert Pairwise(other).fingerprint != Pairwise(model).fingerprint


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, Pointwise),
        ({"style": "graded", "grades": 3}, Pointwise),
        ({"style": "pairwise", "depth": 3, "answers": ["gold", "river"]}, Pairwise),
        ({"style": "listwise", "window": 4, "passes": 2}, Listwise),
        ({"style": "listwise", "window": 0}, Listwise),
    ],
)
def test_every_style_over_a_model_of_transformers(
    options: dict[str, Any], kind: type, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tiny_causal(tmp_path_factory.getbasetemp() / "causal")
    spec = {"type": "generative", "model": str(folder), "prompt": PROMPTS[kind], **options}
    scorer = build(spec, SCORERS, where="rerankers.llm")
    assert isinstance(scorer, kind)
    given, queries = Run({"q": head(6), "none": Ranking([], [])}), {"q": "gold", "none": ""}
    run = Rerank(scorer, depth=5, documents=Numbered(range(6))).run(queries, given)
    assert sorted(run["q"].doc_ids) == list("012345")
    assert run["q"].doc_ids[5] == "5"
    assert len(run["none"]) == 0
    assert len(scorer.fingerprint) > 10


PROMPTS = {
    Pointwise: "{document} {query}",
    Pairwise: "{one} {other} {query}",
    Listwise: "{documents} {query}",
}


def tiny_causal(folder: Path) -> Path:
    import torch
    import transformers

    if not folder.exists():
        size = save_tokenizer(folder)
        torch.manual_seed(5)
        config = transformers.GPT2Config(
            vocab_size=size, n_positions=200, n_embd=8, n_layer=1, n_head=1, eos_token_id=3,
            bos_token_id=2, pad_token_id=0,
        )  # fmt: skip
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_texts_are_needed() -> None:
    for scorer in (Pairwise(FakeModel()), Listwise(FakeModel())):
        with pytest.raises(ConfigError, match="needs the documents' texts"):
            Rerank(scorer).run({"q": "what"}, Run({"q": head(3)}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda m: Pointwise.yes_no(m, prompt="{query} {documnt}"),
            r"no \{document\}.*documnt",
        ),
        (lambda m: Pointwise.yes_no(m, answers=["yes"]), "answers"),
        (lambda m: Pointwise.yes_no(m, answers=["yes", "yes "]), "two or more different"),
        (lambda m: Pointwise.yes_no(m, answers=["a", "b", "c"]), "expected two"),
        (lambda m: Pointwise.graded(m, grades=1), "grades"),
        (lambda m: Pointwise.graded(m, answers=["low", "high"]), "2 for 5 grades"),
        (lambda m: Pointwise(m, worths=[1.0]), "worths"),
        (lambda m: Pairwise(m, answers=["A", "B", "C"]), "expected two"),
        (lambda m: Pairwise(m, depth=0), "depth"),
        (lambda m: Pairwise(m, opponents=0), "opponents"),
        (lambda m: Pairwise(m, prompt="{query} {one}"), r"no \{other\}"),
        (lambda m: Listwise(m, window=10, step=10), "step: 10.*less than the window"),
        (lambda m: Listwise(m, window=1), "window"),
        (lambda m: Listwise(m, passes=0), "passes"),
        (lambda m: Listwise(m, prompt="{documents}"), r"no \{query\}"),
    ],
)
def test_bad_settings_are_named(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(FakeModel())  # type: ignore[operator]
