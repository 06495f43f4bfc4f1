"""A language model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import copy
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.dense.remote.http_json import HttpJson, in_threads
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.encoders.foundation.progress import progress
from sluice.encoders.generative.list_order import spoken
from sluice.encoders.rerankers.language_model import Prompt, fitted

PATH = "/chat/completions"
TOP = 20  # alternatives to a token that are asked for
ANSWER_TOKENS = 16  # of an answer in one word, where it is read from the text
DECISION_TOKENS = 64  # of an answer in JSON
STRUCTURED = (
    '\n\nReply in JSON: {"choice": the answer, "probability": from 0 to 1, how likely it is right}.'
)
BYTES_A_TOKEN = 3  # fewer than most tokenizers need, so that what is cut by it fits
AROUND = 32  # tokens that a server's chat template may put around a message
SHOWN_FROM = 200  # prompts; fewer stay silent
_RARE = 1e-9  # the least probability of an answer that is not among the alternatives
FAILURES = 8  # requests in a row that fail before the rest is not sent


class Attempt(NamedTuple):
    """What came of one prompt: its text, or None and the fault; and the tokens it took."""

    text: str | None
    tokens: int = 0
    fault: str = ""


class HttpLanguageModel:
    """A ``LanguageModel`` that asks ``/chat/completions``, one message a prompt, at temperature 0.

    ``url`` is the base of an OpenAI-compatible endpoint, such as ``https://host/v1``, and
    ``api_key_env`` names the environment variable with its key, ``api_key_file`` a file.
    Probabilities come from the log-probabilities of the first token, where the endpoint returns
    them (``logprobs``); else the answer is read from the text and has probability 1. A
    ``structured`` answer is JSON by a schema: a choice, and how likely it is right. Texts are cut
    so that a prompt takes ``context_length`` tokens at most, counted as one for every three bytes.
    ``concurrency`` requests are under way at a time. ``body`` is added to each request, or takes
    from it what it gives as null. An endpoint that fails is ``ModelError``, see ``HttpJson``; an
    useless answer is left to the caller.
    """

    def __init__(
        self,
        url: Annotated[str, "The base of an OpenAI-compatible endpoint, such as https://host/v1."],
        model: Annotated[str, "The name that the server knows the model by."],
        *,
        api_key_env: str | None = None,
        api_key_file: str | None = None,
        logprobs: Annotated[bool, "Whether the endpoint returns probabilities of tokens."] = True,
        structured: Annotated[
            bool, "Whether it answers in JSON, a choice with its probability."
        ] = False,
        context_length: Annotated[int, "Tokens of a prompt that the model reads."] = 4096,
        document_length: int | None = None,
        concurrency: int = 4,
        timeout_s: float = 60.0,
        retries: int = 4,
        backoff_s: float = 1.0,
        body: Annotated[dict[str, Any] | None, "Further keys of each request."] = None,
    ) -> None:
        address = url.rstrip("/")
        self.endpoint = HttpJson(
            address if address.endswith(PATH) else address + PATH,
            api_key_env=api_key_env,
            api_key_file=api_key_file,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
        )
        if not model.strip():
            raise ConfigError("model: empty; expected the name the endpoint knows it by")
        self.model = model
        self.logprobs, self.structured = logprobs, structured
        self.context_length = whole_number(context_length, "context_length", 128)
        self.document_length = document_length
        if document_length is not None:
            whole_number(document_length, "document_length", 1)
        self.concurrency = whole_number(concurrency, "concurrency", 1, 64)
        self.body = dict(body or {})

    @property
    def fingerprint(self) -> str:
        """A hash of address, model name and settings; the server's weights cannot be hashed."""
        own = [STRUCTURED] if self.structured else []
        settings = [self.logprobs, self.context_length, self.document_length, self.body, *own]
        return fingerprint_of("http", self.endpoint.url, self.model, settings)

    def answers(self, prompts: Sequence[Prompt], choices: Sequence[str]) -> NDArray[np.floating]:
        """Return log-probabilities ``[prompts, choices]``; NaN where no choice was named."""
        tokens, shares_in = ANSWER_TOKENS, first_token_shares
        options: dict[str, Any] = {}
        if self.structured:
            tokens, shares_in = DECISION_TOKENS, decided_shares
            options = {"response_format": decision_format(choices)}
            prompts = [Prompt((*p.frame[:-1], p.frame[-1] + STRUCTURED), p.slots) for p in prompts]
        elif self.logprobs:
            options = {"logprobs": True, "top_logprobs": TOP}
        shares_of = np.full((len(prompts), len(choices)), np.nan)
        options["max_tokens"] = tokens
        for row, choice in enumerate(self._asked(prompts, tokens, options)):
            shares = shares_in(choice, choices)
            if shares is not None:
                shares_of[row] = shares
            elif (place := named_choice(_text_of(choice), choices)) is not None:
                shares_of[row] = -np.inf
                shares_of[row, place] = 0.0
        return shares_of

    def completions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[str]:
        """Return what the model writes to each prompt."""
        chosen = self._asked(prompts, max_new_tokens, {"max_tokens": max_new_tokens})
        return [_text_of(choice) for choice in chosen]

    def attempts(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        *,
        seconds: float | None = None,
        ends: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Iterator[tuple[int, Attempt]]:
        """Yield the place of each prompt with what came of it, as soon as it is there.

        A prompt without an answer keeps no other from being answered, but after ``FAILURES`` in a
        row no more are sent. With ``seconds`` a request takes no longer and is not repeated, nor
        after ``ends``, a time of ``perf_counter``. Tokens are those that the endpoint says, else
        one for every three bytes. ``options`` are added to each request.
        """
        ask = self._request({"max_tokens": max_new_tokens, **(options or {})}, max_new_tokens)
        stop, failed = threading.Event(), 0

        def attempt(prompt: Prompt) -> Attempt:
            if stop.is_set():
                return Attempt(None, fault="not sent, as the requests before it failed")
            left = [] if ends is None else [ends - time.perf_counter()]
            limit = min([*left, *([] if seconds is None else [seconds])], default=None)
            endpoint = self.endpoint
            if limit is not None:
                if limit <= 0:
                    return Attempt(None, fault="no time was left to ask")
                endpoint = copy.copy(endpoint)
                endpoint.timeout_s, endpoint.retries = min(endpoint.timeout_s, limit), 0
            body = ask(prompt)
            try:
                text, tokens = endpoint.post(body, _text_and_tokens, stop)
            except ModelError as error:
                return Attempt(None, fault=str(error))
            content = body["messages"][0]["content"]
            guess = sum(_Bytes().lengths([content, text]))
            return Attempt(text, guess if tokens is None else tokens)

        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="sluice-http") as pool:
            places = {pool.submit(attempt, prompt): place for place, prompt in enumerate(prompts)}
            try:
                for future in as_completed(places):
                    outcome = future.result()
                    failed = failed + 1 if outcome.text is None else 0
                    if failed >= FAILURES:
                        stop.set()
                    yield places[future], outcome
            finally:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _request(
        self, options: Mapping[str, Any], new_tokens: int
    ) -> Callable[[Prompt], dict[str, Any]]:
        """Return what makes a prompt's request."""
        room = self.context_length - new_tokens - AROUND
        if room < 1:
            raise ConfigError(
                f"context_length: {self.context_length} with an answer of {new_tokens} tokens; "
                "raise it, or take a smaller window"
            )

        def body(prompt: Prompt) -> dict[str, Any]:
            request = {
                "model": self.model,
                "messages": [{"role": "user", "content": self._text(prompt, room)}],
                "temperature": 0,
                **options,
                **self.body,
            }
            return {key: value for key, value in request.items() if value is not None}

        return body

    def _asked(
        self, prompts: Sequence[Prompt], new_tokens: int, options: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the first choice of each answer, in the order of the prompts."""
        request = self._request(options, new_tokens)

        def ask(prompt: Prompt, stop: threading.Event) -> dict[str, Any]:
            body = request(prompt)
            try:
                chosen: dict[str, Any] = self.endpoint.post(body, _first_choice, stop)
            except ModelError as error:
                refused = "logprobs" in body and "logprobs" in str(error)
                raise ModelError(f"{error}; set logprobs: false") if refused else error from None
            return chosen

        with progress("ask", len(prompts), "prompts", show=len(prompts) >= SHOWN_FROM) as advance:
            answers = []
            for answer in in_threads(ask, [(prompt,) for prompt in prompts], self.concurrency):
                answers.append(answer)
                advance(1)
            return answers

    def _text(self, prompt: Prompt, room: int) -> str:
        measure = _Bytes()
        if self.document_length is not None:
            prompt = prompt.having(measure.cut(prompt.slots, self.document_length))
        return fitted(prompt, room, measure).text


def first_token_shares(choice: Mapping[str, Any], choices: Sequence[str]) -> list[float] | None:
    """Return log-probabilities of ``choices`` from those of an answer's first word.

    Spellings that differ in case and spacing are added up. A choice that is not among the
    alternatives gets the probability they leave, at most that of the least of them. None without
    log-probabilities, and if none of the choices is among them.
    """
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    for place in content if isinstance(content, list) else []:
        if not isinstance(place, dict) or not str(place.get("token", "")).strip():
            continue  # a line break before the answer
        others = place.get("top_logprobs")
        listed = [
            each
            for each in (others if others and isinstance(others, list) else [place])
            if _is_listed(each)
        ]
        chances = [math.exp(min(0.0, each["logprob"])) for each in listed]
        words = [_folded(each["token"]) for each in listed]
        by_choice = [
            sum(p for p, word in zip(chances, words, strict=True) if word == _folded(name))
            for name in choices
        ]
        if not any(by_choice):
            return None
        rest = max(_RARE, min(1.0 - sum(chances), min(chances)))
        return [math.log(chance or rest) for chance in by_choice]
    return None


def decision_format(choices: Sequence[str]) -> dict[str, Any]:
    """Return the ``response_format`` by which an endpoint writes a choice with its probability."""
    properties = {
        "choice": {"type": "string", "enum": list(choices)},
        "probability": {"type": "number", "minimum": 0, "maximum": 1},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties),
              "additionalProperties": False}  # fmt: skip
    named = {"name": "decision", "strict": True, "schema": schema}
    return {"type": "json_schema", "json_schema": named}


def decided_shares(choice: Mapping[str, Any], choices: Sequence[str]) -> list[float] | None:
    """Return log-probabilities of ``choices`` from an answer in JSON; None for any other.

    The others share what the probability of the choice leaves.
    """
    said = spoken(_text_of(choice))
    try:
        decision = json.loads(said[said.index("{") : said.rindex("}") + 1])
        names = [_folded(name) for name in choices]
        place = names.index(_folded(str(decision["choice"])))
        chance = finite_number(decision["probability"], "probability", 0, 1)
    except (ValueError, KeyError, TypeError, RecursionError, ConfigError):
        return None
    rest = (1 - chance) / max(1, len(choices) - 1)
    return [math.log(max(chance if n == place else rest, _RARE)) for n in range(len(choices))]


def named_choice(text: str, choices: Sequence[str]) -> int | None:
    """Return which choice a text names first, as a complete word; None if it names none.

    Case does not count, but for letters: a lone ``a`` is an article where there is an ``A`` or a
    ``B`` besides.
    """
    said = spoken(text)
    letters = all(len(choice) == 1 for choice in choices)
    for flags in (0, re.IGNORECASE) if letters else (re.IGNORECASE,):
        matches = []
        for place, choice in enumerate(choices):
            match = re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", said, flags)
            if match:
                matches.append((match.start(), -len(choice), place))
        if matches:
            return min(matches)[2]
    return None


def _folded(word: str) -> str:
    return word.strip().casefold()


def _is_listed(each: Any) -> bool:
    if not isinstance(each, dict) or not isinstance(each.get("token"), str):
        return False
    chance = each.get("logprob")
    try:
        return isinstance(chance, (int, float)) and math.isfinite(chance)
    except OverflowError:  # a whole number that no float holds
        return False


def _first_choice(answer: Any) -> dict[str, Any]:
    """Return the first choice of an answer; ``ValueError`` for what has none."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    chosen = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(chosen, dict) or not isinstance(chosen.get("message"), dict):
        raise ValueError("an answer without choices; expected an OpenAI-compatible endpoint")
    return chosen


def _text_and_tokens(answer: Any) -> tuple[str, int | None]:
    """Return what was written, and the tokens of prompt and answer if the endpoint says."""
    text = _text_of(_first_choice(answer))
    usage = answer.get("usage")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    counted = isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0
    return text, tokens if counted else None


def _text_of(choice: Mapping[str, Any]) -> str:
    content = choice["message"].get("content")
    return content if isinstance(content, str) else ""


class _Bytes:
    """Lengths of texts by their bytes: a ``Measure`` without a tokenizer."""

    def whole(self, prompt: Prompt) -> int:
        return self.lengths([prompt.text])[0]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [-(-len(text.encode()) // BYTES_A_TOKEN) for text in texts]

    def cut(self, texts: Sequence[str], length: int) -> list[str]:
        most = length * BYTES_A_TOKEN
        return [text.encode()[:most].decode("utf-8", "ignore") for text in texts]
