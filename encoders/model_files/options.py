"""The options that encoders of networks share: declared once, and taken by ``from_pretrained``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, get_type_hints

Dtype: TypeAlias = Literal["float32", "bfloat16", "int8", "auto"]
Engine: TypeAlias = Literal["torch", "onnx", "openvino"]
Opener = TypeVar("Opener", bound=Callable[..., Any])


class Computing(TypedDict, total=False):
    """Where a network computes, in which arithmetic, and how much at a time."""

    device: str
    dtype: Dtype
    batch_tokens: int | None


def computing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of an encoder's options that say how its network computes."""
    return {name: options[name] for name in Computing.__annotations__}


class Sides(TypedDict, total=False):
    """The prompt and the length of each side; None: the folder's."""

    query_prompt: str | None
    document_prompt: str | None
    query_length: int | None
    document_length: int | None


class TextOptions(Sides, Computing, total=False):
    """What every encoder of a network over texts takes."""


class GraphOptions(Computing, total=False):
    """What a network takes that a back end can run in place of torch."""

    backend: Engine | None
    backend_file: str | None


class TextGraphOptions(Sides, GraphOptions, total=False):
    """What an encoder of texts takes whose network a back end can run."""


USUAL: Final[Mapping[str, Any]] = {"device": "auto", "dtype": "float32"}  # others: None


def takes_options(shared: type[Any]) -> Callable[[Opener], Opener]:
    """Declare the keys of a ``TypedDict`` as parameters of what takes them as ``**options``.

    It gets all of them, with the defaults of those that are left out.
    """

    def declared(make: Opener) -> Opener:
        hints = get_type_hints(shared, include_extras=True)
        usual = {name: USUAL.get(name) for name in hints}
        signature = inspect.signature(make)
        every = {n: p for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        for name, hint in hints.items():
            every[name] = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=usual[name], annotation=hint
            )

        @functools.wraps(make)
        def call(*args: Any, **named: Any) -> Any:
            for name in named.keys() - every.keys():
                raise TypeError(
                    f"{make.__qualname__}() got an unexpected keyword argument {name!r}"
                )
            return make(*args, **{**usual, **named})

        call.__dict__["__signature__"] = signature.replace(parameters=list(every.values()))
        own = inspect.get_annotations(make)
        call.__annotations__ = {**{n: own[n] for n in own if n in every or n == "return"}, **hints}
        return call  # type: ignore[return-value]

    return declared
