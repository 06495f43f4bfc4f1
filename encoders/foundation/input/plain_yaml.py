"""Reads YAML within bounds: its depth, its size with every alias written out, its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from sluice.encoders.foundation.errors import ConfigError

DEEPEST = 100  # sections inside sections; libyaml's composer ends the process at some 20,000
LARGEST = 4 << 20  # characters and values, each alias counted as what it stands for
LONGEST_NUMBER = 400  # characters; a number of parts (1:30:00) takes quadratic time

# libyaml's, where it is installed: ten times as fast, and a command waits for it.
SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class PlainLoader(SAFE):  # type: ignore[misc]
    """Makes plain values only, and no number longer than ``LONGEST_NUMBER``."""


def _number(loader: Any, node: Any) -> Any:
    if len(node.value) > LONGEST_NUMBER:
        raise ConfigError(
            f"line {node.start_mark.line + 1}: a number of {len(node.value):,} characters; put it "
            "in quotes, or write a shorter one"
        )
    kind = node.tag.rpartition(":")[2]
    return getattr(SAFE, f"construct_yaml_{kind}")(loader, node)


for _kind in ("int", "float"):
    PlainLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)


class _Extent(NamedTuple):
    """How deep a value is, and how many characters and values it has."""

    depth: int = 0
    size: int = 1


def load_yaml(text: str, loader: Any = PlainLoader) -> Any:
    """Return the value of a YAML text; ``ConfigError`` with the line for one out of bounds.

    What is not YAML stays a ``YAMLError``, an impossible date a ``ValueError``.
    """
    _refuse_bombs(text)
    return yaml.load(text, Loader=loader)  # a SafeLoader


def _refuse_bombs(text: str) -> None:
    """Raise ``ConfigError`` for sections nested too deeply, too large, or that hold themselves.

    Reads the events alone, which needs no stack, and follows the aliases.
    """
    extents: dict[str, _Extent | None] = {}  # by anchor; None: the section is not closed yet
    open_sections: list[tuple[str | None, _Extent]] = [(None, _Extent())]  # of what is inside
    events: Iterator[Any] = yaml.parse(text, Loader=SAFE)
    for event in events:
        line, extent = event.start_mark.line + 1, _Extent()
        if isinstance(event, yaml.CollectionStartEvent):
            open_sections.append((event.anchor, _Extent()))
            if event.anchor is not None:
                extents[event.anchor] = None
            extent = _Extent(0, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, inside = open_sections.pop()
            extent = _Extent(inside.depth + 1, inside.size)
            if anchor is not None:
                extents[anchor] = extent
        elif isinstance(event, yaml.ScalarEvent):
            extent = _Extent(0, 1 + len(event.value))
            if event.anchor is not None:
                extents[event.anchor] = extent
        elif isinstance(event, yaml.AliasEvent):
            known = extents.get(str(event.anchor), extent)
            if known is None:
                raise ConfigError(
                    f"line {line}: *{event.anchor} is inside the section "
                    f"&{event.anchor}, which would hold itself; write the value out"
                )
            extent = known
        anchor, inside = open_sections[-1]
        size = inside.size + extent.size
        open_sections[-1] = (anchor, _Extent(max(inside.depth, extent.depth), size))
        if len(open_sections) + extent.depth > DEEPEST:
            raise ConfigError(f"not valid YAML, line {line}: nested too deeply; write it flatter")
        if size > LARGEST:
            raise ConfigError(
                f"line {line}: too large; with every alias (*name) written out it has more than "
                f"{LARGEST >> 20} million characters and values"
            )
