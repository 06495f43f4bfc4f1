"""Variants of a retriever over the same vectors: fewer dimensions, smaller codes, pruned postings.

They are declared in the tables of encoders and indexes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

from pydantic import Field, model_validator

from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest
from sluice.encoders.model_files.layout import read_object, transformer_folder
from sluice.encoders.model_files.locate import local_folder
from sluice.encoders.table import traits_of
from sluice.indexing.table import KNOWN, default_spec
from sluice.retrieval.config.component_types import Section

Spec = Mapping[str, Any]  # {type: name, ...arguments}
Parts = dict[str, Any]  # of a retriever's section, in place of its own
Form = dict[Literal["encoder", "index"], dict[str, Any]]  # keys in place of theirs

METRIC = "metric"  # of an index, which its variants keep


def _declared(encoder: Spec, index: Spec | None) -> Iterator[tuple[str, Parts]]:
    """Yield the declared variants of a retriever that are not what it is, with their names."""
    traits = traits_of(encoder)
    if traits is None:
        return
    width = encoder.get("dim") or _width(encoder)
    for name, own in traits.variants.items():
        if own.get("dim", 0) < width:
            yield name, _changed(encoder, index, {"encoder": {**own}})
    for kind, each in KNOWN.items():
        for name, own in each.variants.items() if each.holds[:1] == (traits.form,) else ():
            parts = _changed(encoder, index, {"index": {"type": kind, **own}})
            if parts["index"] != (index or default_spec(traits.form)):
                yield name, parts


def _changed(encoder: Spec, index: Spec | None, form: Form) -> Parts:
    """Return parts with a form's keys; an index of another type keeps its metric alone."""
    parts: Parts = {"encoder": {**encoder, **form.get("encoder", {})}}
    if own := form.get("index"):
        traits = traits_of(encoder)
        now = index or default_spec("" if traits is None else traits.form) or {}
        if own.get("type", now.get("type")) != now.get("type"):
            now = {key: value for key, value in now.items() if key == METRIC}
            parts["search"] = {}
        parts["index"] = {**now, **own}
    return parts


def _width(encoder: Spec) -> float:
    """Return the dimensions of a model on this machine, as far as its folder says."""
    folder = local_folder(str(encoder.get("model")))
    with suppress(ModelError):
        config = {} if folder is None else read_object(transformer_folder(folder) / "config.json")
        return float(config.get("hidden_size", math.inf))
    return math.inf


class VariantsSection(Section):
    """Other forms of one retriever, over the same vectors: each is evaluated beside it."""

    retriever: str = Field(description="The retriever that others are variants of, by its name.")
    forms: list[str] | dict[str, Form] | None = Field(
        default=None,
        description="Names of declared variants (dim-128, int8, binary-rescored, pruned-30, ...), "
        "or variants of your own by name; left out, all that are declared for the encoder and for "
        "the indexes of its vectors.",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_retriever(cls, value: Any) -> Any:
        """Read ``variants: dense`` as all those of that retriever."""
        return {"retriever": value} if isinstance(value, str) else value

    def parts(self, encoder: Spec, index: Spec | None) -> dict[str, Parts]:
        """Return by name what each variant has in place of the parts of the retriever.

        ``ConfigError`` for a name that no declared one has, and where none is declared.
        """
        if isinstance(self.forms, dict):
            return {name: _changed(encoder, index, form) for name, form in self.forms.items()}
        found = dict(_declared(encoder, index))
        unknown = [name for name in self.forms or () if name not in found]
        if unknown or not found:
            raise ConfigError(
                f"forms: {unknown[0] if unknown else None!r}; declared for this retriever: "
                f"{', '.join(found) or 'none'}{suggest(unknown[0], found) if unknown else ''}; or "
                "write {NAME: {encoder: {...}, index: {...}}}"
            )
        return {name: found[name] for name in self.forms or found}
