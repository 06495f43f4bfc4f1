"""What a tuner tries: expressions with choices in them, or the usual cascades of some parts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, suggest

_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")

CUT = 100  # candidates that a first stage hands to rerankers
WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DEPTHS = (5, 10, 20, 50, 100)
SHARES = (0.0, 0.25, 0.5, 0.75)
EXITS = (0.25, 0.5, 0.75)  # shares of the dev queries that leave before the last reranker


def expanded(templates: Sequence[str], choices: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return every expression that the templates make with the choices, once each, in order.

    ``{name}`` stands for each of ``choices[name]`` in turn, written as it is. Raises
    ``ConfigError`` for a name without choices and for choices that no template names.
    """
    named = {name for template in templates for name in _PLACE.findall(template)}
    for name in sorted(named - set(choices)):
        raise ConfigError(
            f"tune.pipelines: {{{name}}} has no values; expected tune.choices.{name}"
            f"{suggest(name, choices)}"
        )
    for name in choices:
        if name not in named:
            raise ConfigError(f"tune.choices.{name}: no pipeline has {{{name}}} in it")
        if not choices[name]:
            raise ConfigError(f"tune.choices.{name}: an empty list; name at least one value")
    found: dict[str, None] = {}
    for template in templates:
        names = list(dict.fromkeys(_PLACE.findall(template)))
        for values in itertools.product(*(choices[name] for name in names)):
            text = template
            for name, value in zip(names, values, strict=True):
                text = text.replace(f"{{{name}}}", str(value))
            found[text] = None
    return list(found)


def first_stages(retrievers: Sequence[str]) -> list[str]:
    """Return each retriever alone, and each two of them fused: by rank, by weighted scores."""
    found = list(retrievers)
    for one, other in itertools.combinations(retrievers, 2):
        found.append(f"({one} | {other})")
        for weight in WEIGHTS:
            weights = f"[{weight}, {round(1 - weight, 4)}]"
            found.append(f"weighted({one}, {other}, weights={weights})")
    if len(retrievers) > 2:
        found.append(f"({' | '.join(retrievers)})")
    return found


def cascades(first: str, rerankers: Sequence[str]) -> list[str]:
    """Return the cascades of one first stage: each reranker, and each one before a later one.

    Rerankers are named from the cheapest to the dearest; the depth of a second one is smaller
    than that of the first.
    """
    found = []
    for reranker in rerankers:
        found += [f"{first} % {CUT} >> {last}" for last in _last(reranker, DEPTHS)]
    for light, heavy in itertools.combinations(rerankers, 2):
        for depth in DEPTHS[2:]:
            lower = [each for each in DEPTHS if each < depth]
            middle = f"{first} % {CUT} >> {light}(depth={depth})"
            found += [f"{middle} >> {last}" for last in _last(heavy, lower)]
    return found


def _last(reranker: str, depths: Sequence[int]) -> Iterator[str]:
    for depth, share in itertools.product(depths, SHARES):
        mixed = f", interpolate={share}" if share else ""
        yield f"{reranker}(depth={depth}{mixed})"


def with_exit(before: str, last: str, threshold: float) -> str:
    """Return ``before >> last`` where the reranker is skipped for queries that are sure before."""
    return f"{before} >> {last.removesuffix(')')}, exit={threshold!r})"
