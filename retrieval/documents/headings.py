"""Finds the headings of a text in Markdown (and of what HTML pages are turned into)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
# A line that an underline of hyphens does not make a heading: a list, a quotation, a table, code.
NO_TITLE = re.compile(r"\s*([-*+>|]|\d+[.)]\s)|\t| {4}|\s*$")


class Heading(NamedTuple):
    """A heading: its characters ``start`` to ``end``, its level from 1 and its title."""

    start: int
    end: int
    level: int
    title: str


def headings(text: str) -> Iterator[Heading]:
    """Yield the headings: lines that begin with ``#``, and lines underlined by ``===`` or ``---``.

    Inside fenced code there are none. An underlined title has one line, after a blank one.
    """
    fence = ""
    place = 0
    before, title = "", ("", 0)  # the line before the last, and the last with its place
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        opened = FENCE.match(bare)
        if fence:
            if opened and opened[1].startswith(fence) and not bare.strip(" `~"):
                fence = ""
        elif opened:
            fence = opened[1]
        elif found := ATX.match(bare):
            yield Heading(place, place + len(line), len(found[1]), (found[2] or "").strip())
            bare = ""
        elif (
            (found := UNDERLINE.match(bare))
            and not before.strip()
            and not NO_TITLE.match(title[0])
            and not FENCE.match(title[0])
        ):
            level = 1 if "=" in found[1] else 2
            yield Heading(title[1], place + len(line), level, title[0].strip())
            bare = ""
        before, title = title[0], (bare, place)
        place += len(line)


def section_starts(text: str) -> list[int]:
    """Return where the sections of a text begin: at 0, and at each heading that has text below it.

    A heading right below another one belongs to the same section.
    """
    starts = [0]
    end = 0  # of the last heading
    for heading in headings(text):
        if text[end : heading.start].strip() and heading.start > 0:
            starts.append(heading.start)
        end = heading.end
    return starts
