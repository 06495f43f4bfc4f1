"""Rewrites the files and folders that an expression reads."""

from __future__ import annotations

from collections.abc import Callable

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.expression import place_in, text_options
from sluice.retrieval.pipelines.table import READ, READ_BY_ALL, WRITTEN


def with_files(text: str, find: Callable[[str], str]) -> str:
    """Return an expression with what ``find`` returns for each file or folder that it reads.

    What is no expression stays as it is: its fault is found when it is parsed.
    """
    text = text.strip()
    try:
        calls = list(text_options(text, where="pipeline"))
    except ConfigError:
        return text
    changes = []
    for call, options in calls:
        written = {o for name, o, other in WRITTEN if name == call and (other or o) in options}
        read = {*READ_BY_ALL, *(option for name, option in READ if name == call)} - written
        for option in read & options.keys():
            name = str(options[option].value)
            if (found := find(name)) != name:
                changes.append((place_in(text, options[option]), found))
    for place, found in sorted(changes, key=lambda change: change[0].start, reverse=True):
        text = f"{text[: place.start]}{found!r}{text[place.stop :]}"
    return text
