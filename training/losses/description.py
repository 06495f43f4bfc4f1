"""Describes a loss for ``training.json``: its YAML type and its settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sluice.encoders.foundation.build import resolve
from sluice.training.losses import LOSSES
from sluice.training.losses.base import Adapted

_UNSAID = object()
# How losses were named before types were: by the modules that they lay in then.
_OLD_MODULES = "training.losses."
# What a sum wrote down beside its members, from which it follows.
_FOLLOWS = ("negatives", "same_side", "similarity", "encoders")
_SUMS = ("sum", "qbd")


def type_name(loss: Any) -> str:
    """Return a loss's name in YAML: ``info_nce``, or ``my_package.module:Class`` for a user's own.

    A part of this package that has no name there has its class's.
    """
    if isinstance(loss, Adapted):
        loss = loss.loss
    named = loss if hasattr(loss, "__qualname__") else type(loss)  # a function, or a class's object
    name = str(getattr(named, "__qualname__", ""))
    target = f"{named.__module__}:{name}"
    known = {place: kind for kind, place in LOSSES.items()}
    return known.get(target, name if _is_ours(named) else target)


def describe(loss: Any) -> dict[str, Any]:
    """Return a loss's name and settings with those of inner losses, to compare training runs."""
    if isinstance(loss, Adapted):
        loss = loss.loss
    settings = (
        {field.name: getattr(loss, field.name) for field in dataclasses.fields(loss) if field.init}
        if dataclasses.is_dataclass(loss)
        else getattr(loss, "__dict__", {})
    )
    plain = {name: _plain(value) for name, value in settings.items()}
    return {"type": type_name(loss), **{k: v for k, v in plain.items() if v is not _UNSAID}}


def renamed(description: Any, *, complete: bool = True) -> Any:
    """Return a description from a ``training.json`` as ``describe`` would write it today.

    ``complete`` ones have all settings; what a wrapper has under ``loss`` is as the YAML says.
    """
    if isinstance(description, list):
        return [renamed(item, complete=complete) for item in description]
    if not isinstance(description, Mapping):
        return description
    new = {
        key: renamed(value, complete=complete and key != "loss")
        for key, value in description.items()
    }
    module, colon, name = str(new.get("type")).partition(":")
    if not colon or not module.startswith(_OLD_MODULES):
        return _with_defaults(new) if complete else new
    classes = {place.partition(":")[2]: kind for kind, place in LOSSES.items()}
    new["type"] = classes.get(name, name)
    if new["type"] in _SUMS:
        new = {key: value for key, value in new.items() if key not in _FOLLOWS}
    return _with_defaults(new) if complete else new


def _with_defaults(description: dict[str, Any]) -> dict[str, Any]:
    """Return a description with the settings that came after it was written, at their defaults."""
    place = LOSSES.get(str(description.get("type")))
    kind: Any = None if place is None else resolve(place)
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    missing = {
        field.name: _plain(field.default)
        for field in fields
        if field.init and field.name not in description and field.default is not dataclasses.MISSING
    }
    return {**description, **missing}


def _is_ours(named: Any) -> bool:
    package = __name__.rpartition(".")[0]
    return str(named.__module__).startswith(f"{package}.")


def _plain(value: Any) -> Any:
    """Return a setting as JSON; tensors, modules and a user's own loss are left out."""
    if isinstance(value, (int, float, str, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [kept for item in value if (kept := _plain(item)) is not _UNSAID]
    if isinstance(value, dict):
        return {str(k): kept for k, v in value.items() if (kept := _plain(v)) is not _UNSAID}
    if isinstance(value, Adapted):
        return _UNSAID
    return describe(value) if _is_ours(type(value)) else _UNSAID
