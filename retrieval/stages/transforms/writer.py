"""Asks a language model for texts: cached, within a budget of tokens and a deadline."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

from sluice.encoders.foundation.disk.files import OwnLock
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import finite_number, plural, whole_number
from sluice.encoders.generative.list_order import spoken
from sluice.encoders.rerankers.language_model import LanguageModel, Prompt
from sluice.retrieval.pipelines.search import seconds_left
from sluice.retrieval.pipelines.tracing import tally
from sluice.retrieval.stages.generative.http_language_model import (
    BYTES_A_TOKEN,
    Attempt,
    HttpLanguageModel,
)
from sluice.retrieval.stages.sqlite_cache import AnswerCache, encodable

log = logging.getLogger("sluice")

MOST_TOKENS = 100_000  # of an answer
BATCH = 16  # prompts of a model loaded here between two looks at the clock
LONGEST_TOKEN = 32  # characters: what a server writes beyond is cut
UNFINISHED = "<think>"  # begins reasoning that no answer followed
EMPTY, FAILED, LATE, SPENT = "without text", "failed", "out of time", "out of budget"


@runtime_checkable
class AsksModel(Protocol):
    """A reranker that asks a language model: of type ``generative`` or ``http``."""

    @property
    def model(self) -> LanguageModel:
        """The language model."""
        ...


@runtime_checkable
class Writes(Protocol):
    """The part of a ``LanguageModel`` that writes."""

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever an answer could."""
        ...

    def completions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[str]:
        """Return the model's answer to each prompt, which may be empty."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """A language model that knows its tokens."""

    tokenizer: Any

    def prompt_tokens(self, prompts: Sequence[Prompt], new_tokens: int = 1) -> list[Any]:
        """Return the tokens of prompts, as it reads them."""
        ...


@runtime_checkable
class Draws(Protocol):
    """A language model loaded here that can draw its tokens."""

    def drawn(
        self, prompts: Sequence[Prompt], max_new_tokens: int, temperature: float, seed: int
    ) -> list[str]:
        """Return an answer to each prompt whose tokens are drawn, the same for the same seed."""
        ...


class Draw(NamedTuple):
    """One of several answers to the same prompts, whose tokens are drawn at a temperature."""

    temperature: float
    number: int  # the seed

    @property
    def body(self) -> dict[str, Any]:
        """What asks an endpoint for it."""
        return {"temperature": self.temperature, "seed": self.number}


# The options of every stage that a language model writes for.
TokenLimit = Annotated[int, "Tokens of what the model writes, at most; 128 if left out."]
CacheFile = Annotated[
    str | None,
    "The file of answers (SQLite), so that none is paid for twice; left out, in memory.",
]
TokenBudget = Annotated[
    int | None,
    "The most tokens of all prompts and answers of the stage; 0: only what is cached.",
]
Deadline = Annotated[
    float | None, "Milliseconds of an answer, after which the query is searched as it is."
]


class Limits(NamedTuple):
    """What writing may cost.

    ``tokens`` is the most of an answer, ``cache`` the file of answers, ``budget`` the most tokens
    of all prompts and answers together, ``deadline_ms`` the time of one answer.
    """

    tokens: int = 128
    cache: Annotated[str | None, "FILE", "The file of answers (SQLite)."] = None
    budget: Annotated[int | None, "Most tokens of all prompts and answers."] = None
    deadline_ms: float | None = None

    @property
    def saved(self) -> dict[str, Any]:
        """The options that a saved pipeline holds: not the file, which is this machine's."""
        return {"tokens": self.tokens, "budget": self.budget, "deadline_ms": self.deadline_ms}


class Writer:
    """Writes a text for each prompt, "" where there is none, and says why there is none.

    ``source`` is a ``LanguageModel``, or a reranker that asks one. An answer is cached as soon as
    it is there, empty ones too, in a file or else in memory, and never asked for again.
    ``tokens_spent`` counts the tokens of prompts and answers, as the endpoint says or the model's
    tokenizer, else one for every three bytes. By that last estimate no prompt is sent that could
    exceed the ``budget``, which lasts as long as the object.

    ``deadline_ms`` is the time of one request to an endpoint, which is not repeated then. A model
    that is loaded here cannot be stopped while it writes: it begins no more answers once it has
    taken as long for all the prompts of a call as they have together. The ``time_limit`` of a
    search ends both too. Where an endpoint fails for all of several queries, that is
    ``ModelError``: an evaluation without any answer would measure something else.
    """

    def __init__(self, source: Any, limits: Limits, name: str) -> None:
        self.source, self.limits = source, limits
        self.name = name
        _ = self.model  # refused now, not at the first search
        self.length = whole_number(limits.tokens, f"{name}: tokens", 1, MOST_TOKENS)
        if limits.cache is not None and not limits.cache:
            raise ConfigError(f"{name}: cache is empty; expected a path, as 'runs/answers.sqlite'")
        self.cache = AnswerCache(limits.cache)
        self.budget = limits.budget
        if limits.budget is not None:
            self.budget = whole_number(limits.budget, f"{name}: budget", 0)
        self.seconds: float | None = None
        if limits.deadline_ms is not None:
            self.seconds = finite_number(limits.deadline_ms, f"{name}: deadline_ms", 1) / 1000
        self.tokens_spent = 0
        self._reserved = 0
        self._lock = OwnLock()

    @property
    def model(self) -> Writes:
        """The language model; ``ConfigError`` if the source has none."""
        model = self.source
        if not isinstance(model, Writes) and isinstance(model, AsksModel):
            model = model.model
        if not isinstance(model, Writes):
            raise ConfigError(
                f"{self.name}: {type(self.source).__name__} writes no text; expected the name of a "
                "reranker of type generative or http, whose language model then writes"
            )
        return model

    def write(
        self, prompts: Sequence[Prompt], each: int = 1, draw: Draw | None = None
    ) -> list[str]:
        """Return what the model writes to each prompt, without its reasoning; "" for nothing.

        ``each`` query has so many prompts. With ``draw`` the answers are drawn, else the likeliest.
        ``ConfigError`` for a model that draws none, or whose ``body`` says how.
        """
        model = self.model
        if draw and not isinstance(model, HttpLanguageModel | Draws):
            raise ConfigError(
                f"{self.name}: {type(model).__name__} writes one answer to a prompt and draws no "
                "others; leave samples out, or give several prompts"
            )
        if draw and isinstance(model, HttpLanguageModel):
            _refuse_fixed(model, draw, self.name)
        texts = [prompt.text for prompt in prompts]
        source = model.fingerprint
        if draw:
            source = f"{source}:{draw.temperature!r}:{draw.number}"
        answers = self.cache.get(source, texts, self.length)
        known = len(answers)
        missing = {text: p for text, p in zip(texts, prompts, strict=True) if text not in answers}
        faults: Counter[str] = Counter()
        before, reason = self.tokens_spent, ""
        for prompt, attempt in self._attempts(model, list(missing.values()), faults, draw):
            if attempt.text is None:
                faults[FAILED] += 1
                reason = reason or attempt.fault
            else:
                answers[prompt.text] = encodable(attempt.text)
                self.cache.put(source, prompt.text, self.length, attempt.text)
        left = seconds_left()
        in_time = left is None or left > 0  # of a search, which ends with what it has
        if in_time and len(missing) > each and faults[FAILED] == len(missing) and not known:
            raise ModelError(f"{self.name}: nothing was written: {reason}")
        written = [_cleaned(answers.get(text, ""), self.length) for text in texts]
        empty = (text in answers and not own for own, text in zip(written, texts, strict=True))
        faults[EMPTY] = sum(empty)
        spent = self.tokens_spent - before
        tally({"asked": len(missing), "from the cache": known, "tokens": spent})
        self._tell(faults, len(texts), reason)
        return written

    def _tell(self, faults: Counter[str], prompts: int, reason: str) -> None:
        shown = [f"{count:,} {fault}" for fault, count in faults.items() if count]
        if shown:
            tally({"unanswered": faults.total()})
            log.warning(
                "%s: without an answer: %s of %s; what they are for stays as it is: %s%s",
                self.name,
                f"{faults.total():,}",
                plural(prompts, "prompt"),
                ", ".join(shown),
                f" ({reason})" if reason else "",
            )

    def _attempts(
        self, model: Writes, prompts: list[Prompt], faults: Counter[str], draw: Draw | None
    ) -> Iterator[tuple[Prompt, Attempt]]:
        """Yield each prompt that budget and time allow, with its answer; count the others."""
        left = seconds_left()
        ends = None if left is None else time.perf_counter() + left
        if self.seconds is not None and not isinstance(model, HttpLanguageModel):
            own = time.perf_counter() + self.seconds * len(prompts)
            ends = own if ends is None else min(ends, own)
        while prompts:
            some = self._affordable(model, prompts, ends)
            if not some:
                faults[SPENT] += len(prompts)
                return
            asked = prompts[: len(some)]
            prompts = prompts[len(some) :]
            done = 0
            try:
                for place, attempt in self._asked(model, asked, ends, draw):
                    done += 1
                    with self._lock:
                        self.tokens_spent += attempt.tokens
                    yield asked[place], attempt
            finally:
                with self._lock:
                    self._reserved -= sum(some)
            faults[LATE] += len(asked) - done

    def _affordable(
        self, model: Writes, prompts: Sequence[Prompt], ends: float | None
    ) -> list[int]:
        """Reserve the tokens of the first prompts that the budget allows; return their numbers."""
        batch = len(prompts)
        if not isinstance(model, HttpLanguageModel):
            batch = BATCH if ends is None else 1
        reserved: list[int] = []
        with self._lock:
            for prompt in prompts[:batch]:
                most = estimated(prompt.text) + self.length
                total = self.tokens_spent + self._reserved + most
                if self.budget is not None and total > self.budget:
                    break
                reserved.append(most)
                self._reserved += most
        return reserved

    def _asked(
        self, model: Writes, prompts: Sequence[Prompt], ends: float | None, draw: Draw | None
    ) -> Iterator[tuple[int, Attempt]]:
        """Yield the place of each prompt that was asked in time, with the outcome."""
        if ends is not None and time.perf_counter() >= ends:
            return
        if isinstance(model, HttpLanguageModel):
            more = draw.body if draw else {}
            yield from model.attempts(
                prompts, self.length, seconds=self.seconds, ends=ends, options=more
            )
            return
        if draw and isinstance(model, Draws):
            written = model.drawn(prompts, self.length, draw.temperature, draw.number)
        else:
            written = model.completions(prompts, self.length)
        if len(written) != len(prompts):
            raise ModelError(
                f"{self.name}: {type(model).__name__} wrote {len(written)} answers to "
                f"{len(prompts)} prompts"
            )
        for place, (prompt, text) in enumerate(zip(prompts, written, strict=True)):
            yield place, Attempt(text, _tokens(model, prompt, text, self.length))


def _refuse_fixed(model: HttpLanguageModel, draw: Draw, name: str) -> None:
    """Raise ``ConfigError`` if the body of every request decides what a draw is to decide."""
    for key in draw.body:
        if model.body.get(key) is not None:
            raise ConfigError(
                f"{name}: samples are drawn with a {key} each, and the endpoint's body has {key}: "
                f"{model.body[key]!r} for all requests; leave it out of body, or leave samples out"
            )


def estimated(text: str) -> int:
    """Return about how many tokens a text has: one for every three bytes."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_A_TOKEN)


def _tokens(model: Writes, prompt: Prompt, text: str, length: int) -> int:
    if isinstance(model, CountsTokens):
        own = model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return len(model.prompt_tokens([prompt], length)[0]) + len(own)
    return estimated(prompt.text) + estimated(text)


def _cleaned(answer: str, length: int) -> str:
    """Return an answer on one line, without reasoning and without more than was asked for."""
    said = " ".join(spoken(answer[: LONGEST_TOKEN * length]).split())
    return "" if said.startswith(UNFINISHED) else said
