"""Language models that rerank: their protocol, prompt templates, and texts cut to fit these."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest

Filling: TypeAlias = str | int | Sequence[str]  # a text, a number, a numbered list of texts


class Prompt(NamedTuple):
    """The input of a language model: ``frame[0] slots[0] frame[1] ... frame[n]``.

    The slots are queries and documents, the only parts that are ever cut.
    """

    frame: tuple[str, ...]
    slots: tuple[str, ...]

    @property
    def text(self) -> str:
        """The complete text."""
        parts = [self.frame[0]]
        for slot, words in zip(self.slots, self.frame[1:], strict=True):
            parts += [slot, words]
        return "".join(parts)

    def having(self, slots: Sequence[str]) -> Prompt:
        """Return the prompt with other texts in its slots."""
        return Prompt(self.frame, tuple(slots))


class Template:
    """A prompt with names in braces, such as ``{query}`` and ``{document}``, for texts.

    Each name in ``needed`` occurs at least once, those in ``known`` may; other braces are text.
    Raises ``ConfigError`` for a template without a name it needs. Names in the texts filled in are
    ignored.
    """

    def __init__(self, text: str, needed: Sequence[str], known: Sequence[str] = ()) -> None:
        names = [*needed, *known]
        if not isinstance(text, str):
            raise ConfigError(f"prompt: {text!r}; expected text with {_braced(needed)}")
        self.text = text
        self._parts = re.split(r"\{(" + "|".join(map(re.escape, names)) + r")\}", text)
        used = self._parts[1::2]
        for name in needed:
            if name not in used:
                others = [other for other in re.findall(r"\{(\w+)\}", text) if other not in names]
                near = next((other for other in others if suggest(other, [name])), None)
                hint = f"; {{{near}}} is unknown" if near else ""
                raise ConfigError(
                    f"prompt: has no {{{name}}}; expected text with {_braced(needed)}{hint}"
                )

    def fill(self, values: Mapping[str, Filling], labels: Sequence[str] | None = None) -> Prompt:
        """Return the prompt with the values of its names.

        A list of texts is written one per line, each after its label in brackets, or its number
        from 1.
        """
        frame, slots = [self._parts[0]], list[str]()
        for name, words in zip(self._parts[1::2], self._parts[2::2], strict=True):
            value = values[name]
            if isinstance(value, int):
                frame[-1] += str(value)
            elif isinstance(value, str):
                slots.append(_encodable(value))
                frame.append("")
            else:
                for place, text in enumerate(value):
                    label = place + 1 if labels is None else labels[place]
                    frame[-1] += f"\n[{label}] " if place else f"[{label}] "
                    slots.append(_encodable(text))
                    frame.append("")
            frame[-1] += words
        return Prompt(tuple(frame), tuple(slots))


def _encodable(text: str) -> str:
    """Return a text with the replacement character for lone surrogates, which JSON may hold."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _braced(names: Sequence[str]) -> str:
    return " and ".join(f"{{{name}}}" for name in names)


class Measure(Protocol):
    """Measures texts and prompts in tokens."""

    def whole(self, prompt: Prompt) -> int:
        """Return the number of tokens of a prompt, with those added around it."""
        ...

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        ...

    def cut(self, texts: Sequence[str], length: int) -> list[str]:
        """Return the beginnings of texts, ``length`` tokens of each at most."""
        ...


def common_length(lengths: Sequence[int], room: int) -> int:
    """Return the largest length such that texts cut to it take at most ``room`` together.

    Shorter texts stay complete, and leave more room for the others.
    """
    left = max(0, room)
    ordered = sorted(lengths)
    for place, length in enumerate(ordered):
        share = left // (len(ordered) - place)
        if length > share:
            return share
        left -= length
    return ordered[-1] if ordered else 0


def fitted(prompt: Prompt, room: int, measure: Measure) -> Prompt:
    """Return the prompt with its texts cut, as little as needed, so that it takes ``room`` tokens.

    ``ConfigError`` if its fixed words alone take more.
    """
    over = measure.whole(prompt) - room
    if over <= 0:
        return prompt
    lengths = measure.lengths(prompt.slots)
    space = sum(lengths) - over
    while True:
        length = common_length(lengths, space)
        shorter = prompt.having(measure.cut(prompt.slots, length))
        over = measure.whole(shorter) - room
        if over <= 0:
            return shorter
        if length == 0:
            raise ConfigError(
                f"prompt: {room + over:,} tokens without any query or document, but there is room "
                f"for {max(room, 0):,} only; shorten it, or raise context_length"
            )
        # Words may join at a cut, which may then need one more token than counted.
        space = min(space, sum(min(own, length) for own in lengths)) - over


class LanguageModel(Protocol):
    """A model that continues a prompt: loaded here, behind an endpoint, or a test's."""

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever an answer could."""
        ...

    def answers(self, prompts: Sequence[Prompt], choices: Sequence[str]) -> NDArray[np.floating]:
        """Return log-probabilities ``[prompts, choices]`` of the choices as the first word.

        Each row is normalised over the choices, or NaN if the model chose none of them.
        """
        ...

    def completions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[str]:
        """Return the model's answer to each prompt, which may be empty."""
        ...


def chances(
    model: LanguageModel, prompts: Sequence[Prompt], choices: Sequence[str]
) -> tuple[NDArray[np.float64], int]:
    """Return probabilities ``[prompts, choices]``, and how many prompts had no answer.

    Without an answer, all choices are equally likely. Raises ``ModelError`` for a model that
    returns another shape.
    """
    shares = known_chances(model, prompts, choices)
    silent = np.isnan(shares)  # complete rows
    return np.where(silent, 1.0 / len(choices), shares), int(silent[:, 0].sum())


def known_chances(
    model: LanguageModel, prompts: Sequence[Prompt], choices: Sequence[str]
) -> NDArray[np.float64]:
    """Return probabilities ``[prompts, choices]``, a row of NaN for a prompt without an answer."""
    if not prompts:
        return np.zeros((0, len(choices)))
    logs = np.asarray(model.answers(prompts, choices), np.float64)
    if logs.shape != (len(prompts), len(choices)):
        raise ModelError(
            f"{type(model).__name__}: answers of shape {logs.shape} for {len(prompts)} prompts "
            f"and {len(choices)} choices"
        )
    silent = ~np.isfinite(logs.max(axis=1, keepdims=True))  # NaN in a row is its maximum too
    logs = np.where(silent, 0.0, logs)
    shares: NDArray[np.float64] = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return np.where(silent, np.nan, shares)
