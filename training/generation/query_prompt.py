"""What a language model reads before it writes a query: example pairs and a document, as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.encoders.foundation.errors import ConfigError, ModelError

if TYPE_CHECKING:
    pass


class Shot(NamedTuple):
    """A document with a query for it, shown as an example before the document to write for."""

    document: str
    query: str


class QueryPrompt:
    """A text with ``{text}`` where the document goes, cut to ``document_length`` tokens.

    An example is the same text around its own document, then its query and a line break. With
    ``special`` the tokens that the tokenizer puts around a text stand around the whole.
    """

    def __init__(
        self, tokenizer: Any, prompt: str, document_length: int, *, special: bool, end: int
    ) -> None:
        if "{text}" not in prompt:
            raise ConfigError(f"prompt: {prompt!r}; expected {{text}} where the document goes")
        self._tokenizer = tokenizer
        self._length = document_length
        self._special = special
        self._end = end
        before, _, after = prompt.partition("{text}")
        self._before, self._after = self._plain(before), self._plain(after)
        self._line = self._plain("\n")
        self._around = _special(tokenizer) if special else ([], [])

    def fixed(self, shots: int) -> int:
        """Return the tokens that stand around documents and queries, ``shots`` examples with it."""
        around = sum(map(len, self._around))
        return around + (shots + 1) * len(self._before + self._after) + shots * len(self._line)

    def shown(self, shots: Sequence[Shot], query_length: int) -> list[int]:
        """Return the tokens of examples, their queries cut to ``query_length`` tokens."""
        ids: list[int] = []
        for shot in shots:
            own = self._plain(shot.document)[: self._length]
            ids += [*self._before, *own, *self._after]
            ids += [*self._plain(f" {shot.query}")[:query_length], *self._line]
        return ids

    def rows(self, texts: Sequence[str], shown: Sequence[int] = ()) -> list[list[int]]:
        """Return the tokens read for each document, behind those of the examples ``shown``."""
        inner = self._tokenizer(
            list(texts), add_special_tokens=False, truncation=True, max_length=self._length
        )
        first, last = self._around
        return [
            [*first, *shown, *self._before, *own, *self._after, *last] for own in inner["input_ids"]
        ]

    def target(self, query: str, length: int) -> list[int]:
        """Return the tokens to write for a query: at most ``length``, the last one the end."""
        text = query if self._special else f" {query}"
        return [*self._plain(text)[: length - 1], self._end]

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end what a model writes, as its folder says."""
    settings = getattr(model, "generation_config", None)
    for home in (settings, model.config, tokenizer):
        ends = getattr(home, "eos_token_id", None)
        if ends is not None:
            return [int(token) for token in (ends if isinstance(ends, list) else [ends])]
    raise ModelError(f"{type(model).__name__}: has no end token; a generator needs one")


def _special(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after a text."""
    bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    full = list(tokenizer("a")["input_ids"])
    start = next(n for n in range(len(full)) if full[n : n + len(bare)] == bare)
    return full[:start], full[start + len(bare) :]
