"""Builds generative rerankers from YAML keys: a local or an HTTP model, and a style."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.rerankers.recipes import recipe_of
from sluice.retrieval.stages.generative.http_language_model import HttpLanguageModel
from sluice.retrieval.stages.generative.listwise import Listwise
from sluice.retrieval.stages.generative.options import ModelSpec, local_model, with_model
from sluice.retrieval.stages.generative.pairwise import Pairwise
from sluice.retrieval.stages.generative.pointwise import Pointwise
from sluice.retrieval.stages.generative.word_logit import WordLogit

if TYPE_CHECKING:
    from sluice.encoders.rerankers.language_model import LanguageModel
    from sluice.encoders.rerankers.local_language_model import LocalLanguageModel

log = logging.getLogger("sluice")

Style: TypeAlias = Literal["yes_no", "graded", "logit", "pairwise", "listwise"]
Reranker: TypeAlias = Pointwise | WordLogit | Pairwise | Listwise

# The keys of each style. Those not given keep the defaults of its class.
STYLE_KEYS: dict[str, tuple[str, ...]] = {
    "yes_no": ("prompt", "answers"),
    "graded": ("prompt", "answers", "grades"),
    "logit": ("prompt", "answers"),
    "pairwise": ("prompt", "answers", "depth", "opponents"),
    "listwise": ("prompt", "window", "step", "passes"),
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
) -> Reranker:
    """Return the reranker of a style over a language model.

    ``yes_no`` and ``graded`` score pairs (``Pointwise``), ``logit`` too (``WordLogit``),
    ``pairwise`` and ``listwise`` lists; each takes its own keys, see those classes. ``window: 0``
    is full ranking. Without ``prompt`` and ``answers``, published rerankers (monoT5,
    Qwen3-Reranker, bge-reranker-v2-gemma) get the prompts of their training.
    """
    given = {"prompt": prompt, "answers": answers, "grades": grades, "depth": depth,
             "opponents": opponents, "window": window, "step": step, "passes": passes}  # fmt: skip
    options = _options(style, given)
    if style == "logit" and model.make is not local_model:
        raise ConfigError(
            "style: logit; an endpoint returns no logits; take style: yes_no, or type: generative"
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
