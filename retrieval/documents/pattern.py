"""Matches texts with regular expressions in time linear in the texts, whatever the pattern.

The engine is RE2, as pyarrow has it: automata without backtracking (Cox, 2007), and so without
references to groups and without looking ahead or behind.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.documents.columns import Mask

LARGEST = 500  # states: characters, with what a count repeats counted so often
SECONDS = 5.0  # of the processor that matching one collection may take
LINES = "(?m)"  # ^ and $ match at the ends of lines
BLOCK = 1 << 16  # characters matched between two looks at the clock
TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]|\{(\d*),?(\d*)\}|.", re.S)


def check_pattern(pattern: str, where: str) -> None:
    """Raise ``ConfigError`` for a pattern that is wrong, or so large that it would be slow."""
    states = _states(pattern)
    fault = f"{states:,} states, counting what {{9}} repeats; expected 1 to {LARGEST}"
    if pattern and states <= LARGEST:
        try:
            _matches(pattern, [""])
            return
        except ValueError as error:  # Arrow's
            said = str(error).removeprefix("Invalid regular expression: ").replace(LINES, "")
            fault = f"{said}; expected the syntax of RE2, which has no (?=...) and no \\1"
    raise ConfigError(f"{where}: {pattern!r:.80}: {fault}")


def _states(pattern: str) -> int:
    """Return how many states a pattern has: what {n,m} repeats counts m times, or n."""
    groups, last = [0], 0
    for token in TOKEN.finditer(pattern):
        if token[0] == "(":
            groups.append(0)
        elif token[0] == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif token[1] is not None:
            times = max(int(token[1][:4] or 1), int(token[2][:4] or 1))
            groups[-1] += last * (times - 1)
            last *= times
        else:
            last = 1
            groups[-1] += 1
    return sum(groups)


def matched(texts: Iterable[str], pattern: str) -> Mask:
    """Return which of the texts a pattern matches; ``ConfigError`` after ``SECONDS`` of that."""
    spent, parts, block, size = 0.0, [np.zeros(0, np.bool_)], list[str](), 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= BLOCK:
            start = time.thread_time()
            parts.append(_matches(pattern, block))
            spent += time.thread_time() - start
            block, size = [], 0
        if spent > SECONDS:
            raise ConfigError(
                f"where.text.matches: {pattern!r:.80}: takes more than {SECONDS:g} seconds over "
                "these documents; expected a simpler pattern"
            )
    return np.concatenate([*parts, _matches(pattern, block)])


def _matches(pattern: str, texts: list[str]) -> Mask:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.match_substring_regex(pa.array(texts, pa.large_string()), pattern=LINES + pattern)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
