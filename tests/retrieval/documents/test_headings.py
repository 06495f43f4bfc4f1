"""Headings of Markdown: what is one, what only looks like one, and where sections begin."""

from sluice.retrieval.documents.text import headings, section_starts

PAGE = """Intro line

# One #
text
```python
# no heading
```
## Two
### Three
more

Four
====
- item
---
| a |
---

Five
----
end
#not one
"""


def test_headings_and_sections() -> None:
    found = list(headings(PAGE))
    assert [(each.level, each.title) for each in found] == [
        (1, "One"), (2, "Two"), (3, "Three"), (1, "Four"), (2, "Five"),
    ]  # fmt: skip
    assert [PAGE[each.start : each.end].splitlines()[0] for each in found] == [
        "# One #", "## Two", "### Three", "Four", "Five",
    ]  # fmt: skip
    starts = section_starts(PAGE)
    sections = [PAGE[a:b] for a, b in zip(starts, [*starts[1:], len(PAGE)], strict=True)]
    assert "".join(sections) == PAGE
    # A heading right below another begins no section of its own.
    firsts = [section.splitlines()[0] for section in sections]
    assert firsts == ["Intro line", "# One #", "## Two", "Four", "Five"]


def test_a_text_that_begins_with_a_heading_or_has_none() -> None:
    assert section_starts("# One\r\ntext\r\n# Two\r\n") == [0, 13]
    assert section_starts("plain\ntext") == [0]
    assert section_starts("") == [0]
