"""Texts that stand for queries: CorpusBrain's three tasks, and the first words of documents."""

from __future__ import annotations

import random

from sluice.training.generation.inverse_cloze import (
    Names,
    Passage,
    inner_sentences,
    page_texts,
    paragraphs,
    sentences,
    start,
    windows,
)

LONG = "this sentence has a good many words that say nothing of"
TEXT = " ".join(f"{LONG.capitalize()} number {n}." for n in range(8))
PATH = Passage(
    "pathlib.Path.open", "",
    "Opens the file. As builtins.io.open does it. See io.text.Wrapper too. Nothing else here. "
    "Again builtins.io.open is named. The end.",
)  # fmt: skip
OPEN = Passage(
    "builtins.io.open", "", "Opens. Like pathlib.Path.open, and itself builtins.io.open."
)
WRAPPER = Passage("io.text.Wrapper", "", "Wraps.")


def test_inner_sentences_have_more_than_ten_words() -> None:
    passage = Passage("a", "", f"Too short. {TEXT} Ten words are one too few to be drawn here.")
    assert len(["Ten", "words", "are", "one", "too", "few", "to", "be", "drawn", "here."]) == 10
    drawn = inner_sentences(passage, 99, random.Random(1))
    assert sorted(drawn) == sorted(part for part in sentences(TEXT))
    assert len(inner_sentences(passage, 3, random.Random(1))) == 3


def test_paragraphs_are_the_lead_and_others() -> None:
    passage = Passage("a", "", TEXT)
    parts = sentences(TEXT)
    assert paragraphs(passage, 1, random.Random(1)) == [" ".join(parts[:3])]
    every = paragraphs(passage, 9, random.Random(1))
    assert every[0] == " ".join(parts[:3])
    assert set(every[1:]) == {" ".join(parts[3:6]), " ".join(parts[6:])}
    assert paragraphs(Passage("a", "", ""), 4, random.Random(1)) == []


def test_windows_around_mentions_ask_for_what_is_mentioned() -> None:
    names = Names.from_passages([PATH, OPEN, WRAPPER])
    assert list(windows(PATH, names)) == [
        ("Opens the file. As builtins.io.open does it. See io.text.Wrapper too.", OPEN.id),
        ("As builtins.io.open does it. See io.text.Wrapper too. Nothing else here.", WRAPPER.id),
    ]
    assert [target for _, target in windows(OPEN, names)] == [PATH.id]
    assert list(windows(WRAPPER, names)) == []


def test_texts_of_a_corpus() -> None:
    corpus = [PATH, OPEN, WRAPPER, Passage("a", "Title", TEXT), Passage("empty", "", "")]
    assert start(corpus[3], 3) == "Title This sentence"
    wanted = {"words": 3, "sentences": 2, "paragraphs": 2, "mentions": 1}
    made = list(page_texts(corpus, wanted, seed=5))
    assert made == list(page_texts(corpus, wanted, seed=5))
    assert made != list(page_texts(corpus, wanted, seed=6))
    assert len(set(made)) == len(made)
    assert {each.document_id for each in made} == {each.id for each in corpus[:4]}
    assert [each.kind for each in made if each.document_id == "a"] == [
        "words", "sentences", "sentences", "paragraphs", "paragraphs"
    ]  # fmt: skip
    linked = [each.document_id for each in made if each.kind == "mentions"]
    assert len(linked) == 2
    assert linked[1] == PATH.id
    assert {each.kind for each in page_texts(corpus, {"words": 2}, 1)} == {"words"}
