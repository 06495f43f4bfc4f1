"""Generative rerankers of pairs and lists, and of one word's logit; built from YAML keys."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.build import declared_hints
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.generative.list_order import LISTWISE, ListOrder, places_won
from sluice.encoders.rerankers.language_model import LanguageModel, Prompt, Template, chances
from sluice.encoders.rerankers.recipes import PASSAGE_B, recipe_of
from sluice.retrieval.pipelines.stage import Texts
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.generative.http_language_model import HttpLanguageModel
from sluice.retrieval.stages.generative.pointwise import (
    Pointwise,
    checked_answers,
    head_texts,
    told_silent,
)

if TYPE_CHECKING:
    from sluice.encoders.rerankers.local_language_model import LocalLanguageModel


class Listwise:
    """A scorer of lists: the places in the order that a model writes.

    Windows of ``window`` candidates go from the back of the list to its front, each ``step``
    places before the last (half a window by default), ``passes`` times over. The best of a window
    move along with them: a model that orders windows rightly brings the best
    ``window - step`` to the top in one pass, and the next as many in each further one.
    ``window=None`` is full ranking: all candidates in one prompt. What the model leaves out stays
    in the order it was in. Windows of all queries are prompted together; cost: about candidates /
    step prompts per query and pass. With ``first_token`` nothing is written: the order is that of
    the probability of each document's letter as the first of the answer.
    (Sun et al., 2023, RankGPT, arXiv 2304.09542; Reddy et al., 2024, FIRST, arXiv 2406.15657.)
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        prompt: str = LISTWISE,
        window: int | None = 20,
        step: int | None = None,
        passes: int = 1,
        first_token: bool = False,
    ) -> None:
        self.model = model
        self.order = ListOrder(
            model, prompt=prompt, window=window, step=step, passes=passes, first_token=first_token
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the model, the prompt and the windows."""
        order = self.order
        settings = [
            order.template.text, order.window, order.step, order.passes,
            *([True] if order.first_token else []),
        ]  # fmt: skip
        return fingerprint_of("listwise", self.model.fingerprint, settings)

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, NDArray[np.float64]]:
        """Return how many candidates each one is placed before, float64 ``[candidates]``."""
        texts = head_texts(heads, documents, type(self).__name__)
        orders, asked, silent = self.order.ordered(queries, texts)
        told_silent(type(self).__name__, silent, asked)
        return {query: places_won(order) for query, order in orders.items()}


Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A language model that is named, and opened when it is needed."""

    make: Callable[..., LanguageModel]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The folder, hub id, or the name an endpoint knows it by."""
        return str(self.options["model"])

    def open(self) -> LanguageModel:
        """Load the model, or return the client of its endpoint."""
        return self.make(**self.options)


def local_model(
    model: str,
    *,
    context_length: Annotated[int | None, "Tokens of a prompt that the model reads."] = None,
    document_length: int | None = None,
    chat: Annotated[
        bool | None, "Whether prompts are put into the model's chat form; left out, if it has one."
    ] = None,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "auto"] = "float32",
    weights: Literal["float32", "int8", "int4"] | None = None,
    batch_tokens: int | None = None,
) -> LanguageModel:
    """Load a causal or encoder-decoder model of transformers; lengths are in tokens."""
    from sluice.encoders.rerankers.local_language_model import LocalLanguageModel

    return LocalLanguageModel.from_pretrained(
        model, context_length=context_length, document_length=document_length, chat=chat,
        device=device, dtype=dtype, weights=weights, batch_tokens=batch_tokens,
    )  # fmt: skip


def with_model(
    part: Callable[..., Part], make: Callable[..., LanguageModel]
) -> Callable[..., Part]:
    """Return ``part``, a factory whose first argument is a ``ModelSpec``, as one of a component.

    Its signature, which is the component's schema, is that of ``make`` and then the part's own
    options, so that each option is written once for all kinds of models and parts.
    """
    of_model = inspect.signature(make).parameters
    own = list(inspect.signature(part).parameters.values())[1:]
    signature = inspect.Signature([*of_model.values(), *own])

    def factory(*args: Any, **options: Any) -> Part:
        given = signature.bind(*args, **options).arguments
        spec = ModelSpec(make, {key: given[key] for key in given if key in of_model})
        return part(spec, **{key: given[key] for key in given if key not in of_model})

    factory.__doc__ = part.__doc__
    factory.__annotations__ = {
        **declared_hints(part),
        **declared_hints(make),
    }
    factory.__signature__ = signature  # type: ignore[attr-defined]
    return factory


class WordLogit:
    """A scorer of pairs: the logit of a word's first token after the prompt, any finite number.

    The other words of the vocabulary have no part in it, unlike in ``Pointwise``; a sigmoid maps it
    to 0 to 1. The model is one of transformers: endpoints return no logits. (Li et al. 2023, Making
    Large Language Models A Better Foundation For Dense Retrieval, arXiv 2312.15503; the prompt is
    that of bge-reranker-v2-gemma.)
    """

    def __init__(
        self,
        model: LocalLanguageModel,
        *,
        prompt: str = PASSAGE_B,
        answers: Sequence[str] = ("Yes",),
    ) -> None:
        if isinstance(answers, str) or len(answers) != 1 or not isinstance(answers[0], str):
            raise ConfigError(f"answers: {answers!r}; style logit takes one word, such as [Yes]")
        self.model = model
        self.word = answers[0]
        self.template = Template(prompt, ["query", "document"])
        self._token = model.first_token(self.word)

    @property
    def fingerprint(self) -> str:
        """A hash of the model, the prompt and the word."""
        return fingerprint_of("logit", self.model.fingerprint, self.template.text, self.word)

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Return the logit of each pair, float64 ``[n]``, in input order."""
        fill = self.template.fill
        prompts = [fill({"query": query, "document": text}) for query, text in pairs]
        return self.model.logits_of(prompts, self._token)

    def known(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Return the same: every pair has a logit."""
        return self.score(pairs)


PAIRWISE = (
    "Which of two documents is more relevant to the query?\n\nQuery: {query}\n\n"
    "Document {first}: {one}\n\nDocument {second}: {other}\n\n"
    "Answer with one letter, {first} or {second}.\nMore relevant:"
)
AT_ONCE = 4_096  # prompts in memory together


class Duel(NamedTuple):
    """Two candidates of a query, by their places, the first of them shown first."""

    query: str
    first: int
    second: int


class Pairwise:
    """A scorer of lists: the sum of the chances with which a document wins its comparisons.

    The first ``depth`` candidates are compared, each with each other in both orders, so that a
    model's liking for the first or the second place cancels: n (n - 1) prompts a query, and totals
    that sum to as many. With ``opponents`` m each is compared with the m candidates after it (and
    before it) in the order given, the last being followed by the first: n m pairs, 2 n m prompts.
    The candidates below the depth keep their order under the others. A comparison without an answer
    is a draw. (Huang and Chen, 2024, InstUPR, arXiv 2403.16435.)
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        prompt: str = PAIRWISE,
        answers: Sequence[str] = ("A", "B"),
        depth: int = 30,
        opponents: int | None = None,
    ) -> None:
        self.model = model
        self.answers = checked_answers(answers)
        if len(self.answers) != 2:
            raise ConfigError(f"answers: {self.answers}; expected two, for the first and second")
        for name, answer in zip(("{first}", "{second}"), self.answers, strict=True):
            prompt = prompt.replace(name, answer)
        self.template = Template(prompt, ["query", "one", "other"])
        self.depth = whole_number(depth, "depth", 1)
        self.opponents = opponents
        if opponents is not None:
            whole_number(opponents, "opponents", 1)

    @property
    def fingerprint(self) -> str:
        """A hash of the model, the prompt, the answers and which pairs are compared."""
        settings = [self.template.text, self.answers, self.depth, self.opponents]
        return fingerprint_of("pairwise", self.model.fingerprint, settings)

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, NDArray[np.float64]]:
        """Return each candidate's total, float64 ``[candidates]`` a query; below the depth, < 0."""
        texts = head_texts(heads, documents, type(self).__name__, self.depth)
        totals: dict[str, NDArray[np.float64]] = {}
        for query, head in heads.items():
            compared = len(texts[query])
            totals[query] = -np.maximum(np.arange(len(head)) - compared + 1.0, 0.0)
        asked = silent = 0
        for duels in self._portions(texts):
            prompts = [self._prompt(queries[duel.query], texts, duel) for duel in duels]
            shares, unanswered = chances(self.model, prompts, self.answers)
            for duel, (one, other) in zip(duels, shares.tolist(), strict=True):
                totals[duel.query][duel.first] += one
                totals[duel.query][duel.second] += other
            asked, silent = asked + len(duels), silent + unanswered
        told_silent(type(self).__name__, silent, asked)
        # Sums of the same chances in another order differ by rounding, which would part ties.
        return {query: np.round(total, 9) for query, total in totals.items()}

    def _portions(self, texts: Mapping[str, Sequence[str]]) -> Iterator[list[Duel]]:
        waiting: list[Duel] = []
        for query, own in texts.items():
            for first, second in pairs_of(len(own), self.opponents):
                waiting += [Duel(query, first, second), Duel(query, second, first)]
            if len(waiting) >= AT_ONCE:
                yield waiting
                waiting = []
        if waiting:
            yield waiting

    def _prompt(self, query: str, texts: Mapping[str, Sequence[str]], duel: Duel) -> Prompt:
        own = texts[duel.query]
        one, other = own[duel.first], own[duel.second]
        return self.template.fill({"query": query, "one": one, "other": other})


def pairs_of(count: int, opponents: int | None = None) -> list[tuple[int, int]]:
    """Return the pairs of places that are compared, all of them by default.

    With ``opponents`` m each place is paired with the m that follow it, around the end.
    """
    if opponents is None or 2 * opponents >= count - 1:
        return [(one, other) for one in range(count) for other in range(one + 1, count)]
    return [(one, (one + gap) % count) for one in range(count) for gap in range(1, opponents + 1)]


log = logging.getLogger("sluice")

Style: TypeAlias = Literal["yes_no", "graded", "logit", "pairwise", "listwise"]
Reranker: TypeAlias = Pointwise | WordLogit | Pairwise | Listwise

# The keys of each style. Those not given keep the defaults of its class.
STYLE_KEYS: dict[str, tuple[str, ...]] = {
    "yes_no": ("prompt", "answers"),
    "graded": ("prompt", "answers", "grades"),
    "logit": ("prompt", "answers"),
    "pairwise": ("prompt", "answers", "depth", "opponents"),
    "listwise": ("prompt", "window", "step", "passes", "first_token"),
}
FULL = 0  # as a window: all candidates in one prompt


def _reranker(
    model: ModelSpec,
    *,
    style: Annotated[
        Style, "How candidates are judged: yes_no, graded, logit, pairwise or listwise."
    ] = "yes_no",
    prompt: Annotated[
        str | None, "The prompt, with {query} and {document} or the style's own places."
    ] = None,
    answers: Annotated[list[str] | None, "The answers whose probabilities count."] = None,
    grades: Annotated[int | None, "Grades of the style graded, from 0."] = None,
    depth: Annotated[int | None, "Candidates that the style pairwise compares."] = None,
    opponents: Annotated[
        int | None, "Candidates that each is compared with, in the style pairwise."
    ] = None,
    window: Annotated[int | None, "Candidates in one prompt of the style listwise; 0: all."] = None,
    step: Annotated[
        int | None, "Places that the window of the style listwise moves each time."
    ] = None,
    passes: Annotated[int | None, "How often the style listwise goes through the list."] = None,
    first_token: Annotated[
        bool | None, "Whether the style listwise reads the first letter's probabilities (FIRST)."
    ] = None,
) -> Reranker:
    """Return the reranker of a style over a language model.

    ``yes_no`` and ``graded`` score pairs (``Pointwise``), ``logit`` too (``WordLogit``),
    ``pairwise`` and ``listwise`` lists; each takes its own keys, see those classes. ``window: 0``
    is full ranking. Without ``prompt`` and ``answers``, published rerankers (monoT5,
    Qwen3-Reranker, bge-reranker-v2-gemma) get the prompts of their training.
    """
    given = {"prompt": prompt, "answers": answers, "grades": grades, "depth": depth,
             "opponents": opponents, "window": window, "step": step, "passes": passes,
             "first_token": first_token}  # fmt: skip
    options = _options(style, given)
    needs = {"style: logit": style == "logit", "first_token: true": bool(first_token)}
    if any(needs.values()) and model.make is not local_model:
        asked = next(name for name, is_asked in needs.items() if is_asked)
        raise ConfigError(
            f"{asked}; an endpoint returns no logits; take type: generative, or leave it out"
        )
    if style in ("yes_no", "logit") and not options:
        style, model, options = _as_trained(style, model)
    return _styled(style, model.open(), options)


def _as_trained(style: Style, model: ModelSpec) -> tuple[Style, ModelSpec, dict[str, Any]]:
    """Return a published reranker's own prompt and answers, with its prompt as all that is read.

    One that was trained to answer otherwise than ``style: logit`` is left as it is.
    """
    recipe = recipe_of(model.name) if model.make is local_model else None
    if recipe is None or model.options.get("chat"):
        return style, model, {}
    if style == "logit" and len(recipe.answers) != 1:
        return style, model, {}
    log.info("%s: asked as %s was trained: %r", model.name, recipe.name, recipe.prompt)
    plain = ModelSpec(model.make, {**model.options, "chat": False})
    trained: Style = "yes_no" if len(recipe.answers) == 2 else "logit"
    return trained, plain, {"prompt": recipe.prompt, "answers": list(recipe.answers)}


generative = with_model(_reranker, local_model)
generative_http = with_model(_reranker, HttpLanguageModel)


def _options(style: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that were given; ``ConfigError`` for one of another style."""
    options = {key: value for key, value in given.items() if value is not None}
    for key in options:
        if key not in STYLE_KEYS[style]:
            right = [name for name, keys in STYLE_KEYS.items() if key in keys]
            raise ConfigError(
                f"{key}: style {style} takes {', '.join(STYLE_KEYS[style])}; {key} is for "
                f"{' and '.join(right)}"
            )
    return options


def _styled(style: Style, model: LanguageModel, options: dict[str, Any]) -> Reranker:
    if style == "logit":
        return WordLogit(cast("LocalLanguageModel", model), **options)
    if style == "yes_no":
        return Pointwise.yes_no(model, **options)
    if style == "graded":
        return Pointwise.graded(model, **options)
    if style == "pairwise":
        return Pairwise(model, **options)
    if options.get("window") == FULL:
        options = {**options, "window": None}
    return Listwise(model, **options)
