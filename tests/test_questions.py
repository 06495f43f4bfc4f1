"""Forty questions of a newcomer: each answer stands on the page and under the heading named."""

import re

import pytest
import yaml
from places import ROOT

QUESTIONS = yaml.safe_load((ROOT / "tests" / "questions.yaml").read_text(encoding="utf-8"))


def section(text: str, heading: str) -> str:
    """Return what stands under a heading, down to the next of its level or a higher one."""
    levels: list[tuple[int, str, int]] = []
    plain = re.sub(r"^```.*?^```$", lambda code: re.sub(r"^#", " ", code[0], flags=re.M), text,
                   flags=re.S | re.M)  # fmt: skip
    for match in re.finditer(r"^(#+) (.+)$", plain, re.M):
        levels.append((len(match[1]), match[2], match.start()))
    (place,) = (number for number, (_, name, _) in enumerate(levels) if name == heading)
    level, _, begin = levels[place]
    ends = [start for each, _, start in levels[place + 1 :] if each <= level]
    return text[begin : ends[0] if ends else len(text)]


def test_there_are_forty() -> None:
    assert len(QUESTIONS) == 40
    assert len({each["ask"] for each in QUESTIONS}) == 40


@pytest.mark.parametrize("each", QUESTIONS, ids=lambda each: str(each["ask"]))
def test_the_answer_stands_there(each: dict[str, str]) -> None:
    text = (ROOT / "docs" / each["page"]).read_text(encoding="utf-8")
    assert each["answer"] in section(text, each["heading"])


def test_a_section_ends_with_the_next_of_its_level() -> None:
    text = "# A\n\nx\n\n## B\n\ny\n\n```sh\n## no\n```\n\n### C\n\nz\n\n## D\n\nw\n"
    assert section(text, "B") == "## B\n\ny\n\n```sh\n## no\n```\n\n### C\n\nz\n\n"
    assert section(text, "A") == text
    assert section(text, "D") == "## D\n\nw\n"
