"""Generative rerankers by their YAML keys: a model loaded here or behind HTTP, and a style."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from encoders.errors import ConfigError
from retrieval.listwise import Listwise
from retrieval.pairwise import Pairwise
from retrieval.pointwise import Pointwise

if TYPE_CHECKING:
    from encoders.language_model import LanguageModel

Style: TypeAlias = Literal["yes_no", "graded", "pairwise", "listwise"]
Reranker: TypeAlias = Pointwise | Pairwise | Listwise

# The keys of each style. Those not given keep the defaults of its class.
STYLE_KEYS: dict[str, tuple[str, ...]] = {
    "yes_no": ("prompt", "answers"),
    "graded": ("prompt", "answers", "grades"),
    "pairwise": ("prompt", "answers", "depth", "opponents"),
    "listwise": ("prompt", "window", "step", "passes"),
}
FULL = 0  # as a window: all candidates in one prompt


def generative(
    model: str,
    *,
    style: Style = "yes_no",
    prompt: str | None = None,
    answers: list[str] | None = None,
    grades: int | None = None,
    depth: int | None = None,
    opponents: int | None = None,
    window: int | None = None,
    step: int | None = None,
    passes: int | None = None,
    context_length: int | None = None,
    document_length: int | None = None,
    chat: bool | None = None,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "auto"] = "float32",
    batch_tokens: int | None = None,
) -> Reranker:
    """Return the reranker of a style over a causal or encoder-decoder model of transformers.

    ``yes_no`` and ``graded`` score pairs (``Pointwise``), ``pairwise`` and ``listwise`` lists; each
    takes its own keys, see those classes. ``window: 0`` is full ranking. Lengths are in tokens.
    """
    given = {"prompt": prompt, "answers": answers, "grades": grades, "depth": depth,
             "opponents": opponents, "window": window, "step": step, "passes": passes}  # fmt: skip
    options = _options(style, given)
    from encoders.local_language_model import LocalLanguageModel

    loaded = LocalLanguageModel.from_pretrained(
        model,
        context_length=context_length,
        document_length=document_length,
        chat=chat,
        device=device,
        dtype=dtype,
        batch_tokens=batch_tokens,
    )
    return _styled(style, loaded, options)


def generative_http(
    url: str,
    model: str,
    *,
    style: Style = "yes_no",
    prompt: str | None = None,
    answers: list[str] | None = None,
    grades: int | None = None,
    depth: int | None = None,
    opponents: int | None = None,
    window: int | None = None,
    step: int | None = None,
    passes: int | None = None,
    context_length: int = 4096,
    document_length: int | None = None,
    api_key_env: str | None = None,
    logprobs: bool = True,
    concurrency: int = 4,
    timeout_s: float = 60.0,
    retries: int = 4,
    backoff_s: float = 1.0,
    body: dict[str, Any] | None = None,
) -> Reranker:
    """Return the reranker of a style over an OpenAI-compatible endpoint.

    ``url`` is the endpoint's base, such as ``https://host/v1``, and ``api_key_env`` names the
    environment variable with its key. The keys of styles are those of ``generative``.
    """
    given = {"prompt": prompt, "answers": answers, "grades": grades, "depth": depth,
             "opponents": opponents, "window": window, "step": step, "passes": passes}  # fmt: skip
    options = _options(style, given)
    from retrieval.http_language_model import HttpLanguageModel

    asked = HttpLanguageModel(
        url,
        model,
        api_key_env=api_key_env,
        logprobs=logprobs,
        context_length=context_length,
        document_length=document_length,
        concurrency=concurrency,
        timeout_s=timeout_s,
        retries=retries,
        backoff_s=backoff_s,
        body=body,
    )
    return _styled(style, asked, options)


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
    if style == "yes_no":
        return Pointwise.yes_no(model, **options)
    if style == "graded":
        return Pointwise.graded(model, **options)
    if style == "pairwise":
        return Pairwise(model, **options)
    if options.get("window") == FULL:
        options = {**options, "window": None}
    return Listwise(model, **options)
