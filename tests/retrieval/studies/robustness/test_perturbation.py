import json
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.studies.robustness.perturbation import (
    DOCUMENT_PERTURBATIONS,
    QUERY_PERTURBATIONS,
    Around,
    StuffingFilter,
    first_sentence,
    perturbed_document,
    perturbed_query,
    term_share,
)

QUERY = "Who found gold in the western river?"
DOCUMENT = Document("d", "A title", "one two three four five", {"year": 1})
AROUND = Around("gold river", "Bees dance.")
TYPOS = [name for name in QUERY_PERTURBATIONS if name.startswith("typo")]


def test_each_typo_is_what_it_says_and_leaves_the_first_letter() -> None:
    beside = {"g": "fhtybv", "o": "ipkl", "l": "kop", "d": "sferxc"}
    neighbour, swap, drop, double = (
        {perturbed_query("gold", name, seed) for seed in range(60)} for name in TYPOS
    )
    assert swap == {"glod", "godl"}
    assert drop == {"gld", "god", "gol"}
    assert double == {"goold", "golld", "goldd"}
    assert neighbour <= {
        "gold"[:place] + key + "gold"[place + 1 :]
        for place, letter in enumerate("gold") if place
        for key in beside[letter]
    }  # fmt: skip
    assert len(neighbour) > 6


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.text(st.sampled_from("abc dé 1ß日本語'-\n"), max_size=40), st.integers(0, 50))
def test_typos_change_letters_of_long_words_alone(text: str, seed: int) -> None:
    for name, growth in zip(TYPOS, (0, 0, -1, 1), strict=True):
        changed = perturbed_query(text, name, seed)
        assert changed == perturbed_query(text, name, seed)
        words = "".join(c if c.isalpha() else " " for c in text).split()
        long = [word for word in words if len(word) >= 4]
        count = max(1, round(0.25 * len(long))) if long else 0
        assert len(changed) == len(text) + growth * count
        if name == "typo-swap":
            assert Counter(changed) == Counter(text)
        if not long:
            assert changed == text


def test_casing_and_truncation() -> None:
    assert perturbed_query(QUERY, "upper") == QUERY.upper()
    assert perturbed_query(QUERY, "lower") == QUERY.lower()
    assert perturbed_query("gold in a river", "title") == "Gold In A River"
    assert perturbed_query(QUERY, "truncated") == "Who found gold in"
    assert perturbed_query("gold", "truncated") == "gold"
    assert perturbed_query("", "truncated") == perturbed_query("", "typo-drop") == ""


def test_documents() -> None:
    texts = {
        name: perturbed_document(DOCUMENT, name, AROUND).full_text
        for name in DOCUMENT_PERTURBATIONS
    }
    assert texts == {
        "stuffed": "A title " + "gold river " * 5 + "one two three four five",
        "sentence-first": "A title Bees dance. one two three four five",
        "sentence-last": "A title one two three four five Bees dance.",
        "truncated": "A title one two",
        "upper": "A TITLE ONE TWO THREE FOUR FIVE",
    }
    empty = perturbed_document(Document("e", "", ""), "truncated", AROUND)
    assert (empty.id, empty.full_text) == ("e", "")
    assert perturbed_document(DOCUMENT, "upper", AROUND).metadata == {"year": 1}


def test_another_process_makes_the_same() -> None:
    code = (
        "import json; from sluice.retrieval.studies.robustness.perturbation import *; "
        f"print(json.dumps([perturbed_query({QUERY!r}, n, 3) for n in QUERY_PERTURBATIONS]))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = [perturbed_query(QUERY, name, 3) for name in QUERY_PERTURBATIONS]
    assert json.loads(told.stdout) == here
    assert here[0] != perturbed_query(QUERY, "typo-neighbour", 4)


def test_first_sentence() -> None:
    assert first_sentence(" Bees dance. They sing! ") == "Bees dance."
    assert first_sentence("no full stop 3.5 here") == "no full stop 3.5 here"
    assert first_sentence("") == ""


def test_the_filter_flags_its_share_of_clean_pairs_and_what_is_stuffed() -> None:
    assert term_share("the gold rivers", "Gold of the river, and stone") == pytest.approx(2 / 3)
    assert term_share("gold", "") == 0.0
    clean = [("gold river", " ".join(["gold"] * n + ["stone"] * (100 - n))) for n in range(1, 51)]
    fitted = StuffingFilter.fitted(clean, false_positives=0.1)
    assert fitted.threshold == 0.45
    assert sum(fitted.flags(*pair) for pair in clean) == 5
    assert StuffingFilter.fitted(clean, false_positives=0.0).threshold == 0.5
    stuffed = perturbed_document(DOCUMENT, "stuffed", AROUND)
    assert fitted.flags(AROUND.query, stuffed.full_text)
    assert not fitted.flags(AROUND.query, DOCUMENT.full_text)


def test_unknown_names_are_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'typo-swap'"):
        perturbed_query("gold", "typo-swop")
    with pytest.raises(ConfigError, match="unknown 'typo-swap'; known: stuffed"):
        perturbed_document(DOCUMENT, "typo-swap", AROUND)
    with pytest.raises(ConfigError, match="0 clean pairs"):
        StuffingFilter.fitted([])
