"""Texts that count as the same, and those that do not."""

import pytest

from sluice.encoders.foundation.bounded_input import same_text_key


@pytest.mark.parametrize(
    "other",
    [
        "what is  a Fluß?",
        "WHAT IS A FLUSS?",
        " what\tis a\u00a0flu\u00df?\r\n",
        "ｗｈａｔ is a ﬂuss？",
    ],
)
def test_case_white_space_and_unicode_form_make_no_other_text(other: str) -> None:
    assert same_text_key(other) == same_text_key("What is a Fluß?") == "what is a fluss?"


@pytest.mark.parametrize("other", ["What is a Fluß", "What is an Fluß?", "Whatis a Fluß?", ""])
def test_another_word_or_mark_makes_another_text(other: str) -> None:
    assert same_text_key(other) != same_text_key("What is a Fluß?")


def test_a_blank_text_has_an_empty_key() -> None:
    assert same_text_key(" \n\u3000") == ""
