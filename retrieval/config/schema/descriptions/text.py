"""One line about an argument: from the words of this room, or from its component's docstring."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from sluice.retrieval.config.schema.descriptions.encoders import ENCODERS
from sluice.retrieval.config.schema.descriptions.indexes import INDEXES
from sluice.retrieval.config.schema.descriptions.pipelines import PIPELINES
from sluice.retrieval.config.schema.descriptions.training import TRAINING

# Where a docstring has no sentence that an editor could show alone: by ``type.argument`` first,
# then by the argument alone, which means the same wherever it occurs.
WORDS: Mapping[str, str] = {**ENCODERS, **INDEXES, **TRAINING, **PIPELINES}
LONGEST = 320  # characters of a description


def described(kind: str, argument: str, docs: Sequence[str]) -> str:
    """Return one line about an argument of the component ``kind``; empty if nothing is known.

    ``docs`` are the docstrings of its class and of its factory. A sentence that begins with the
    argument says best what it is.
    """
    own = list(_sentences(docs, argument))
    about = [sentence for sentence in own if sentence.startswith(f"`{argument}")]
    known = WORDS.get(f"{kind}.{argument}", "")
    text = known or WORDS.get(argument, "") or next(iter(about), "") or next(iter(own), "")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _sentences(docs: Sequence[str], argument: str) -> Iterator[str]:
    """Yield the sentences of docstrings that name an argument, code marked as in Markdown."""
    for doc in docs:
        for paragraph in doc.split("\n\n"):
            text = " ".join(paragraph.split()).replace("``", "`")
            for sentence in re.split(r"(?<=[.;]) (?=[A-Z`(])", text):
                if re.search(rf"`{argument}[`:]", sentence):
                    yield sentence.rstrip(";") + ("." if sentence[-1] not in ".;" else "")
