"""Joins the YAML keys of a language model with those of the component that prompts it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from sluice.encoders.foundation.build import declared_hints
from sluice.encoders.rerankers.language_model import LanguageModel

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
