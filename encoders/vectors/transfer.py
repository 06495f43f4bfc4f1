"""What another process needs to open an encoder: a saved folder, its class, its options."""

from __future__ import annotations

from typing import Any, NamedTuple

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import type_name
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.table import ENCODERS, FUNCTION, traits_of


class TransferForm(NamedTuple):
    """``own`` is ``module:Class`` of a class that is not built in, else ""; options by name."""

    own: str
    options: dict[str, Any]


def transfer_form(
    encoder: Any, *, where: str, instead: str, own_devices: bool = False
) -> TransferForm:
    """Return what goes with an encoder's saved folder; ``ConfigError`` if it cannot be sent.

    ``where`` is the key of the YAML file that asks for other processes, ``instead`` what to write
    to do without them. With ``own_devices`` they open it on a device that they find, else on one
    like this process's.
    """
    kind = type(encoder)
    own = "" if type_name(encoder, ENCODERS) in ENCODERS else class_name(encoder)
    if kind.__module__ == "__main__" or "<" in kind.__qualname__:
        raise ConfigError(
            f"{where}: other processes cannot import {class_name(encoder)}; move the class to the "
            f"top of a module of its own, or use {instead}"
        )
    hooks = hooks_of(encoder)
    refuse_kept(hooks.kind, hooks.backend, where=where, instead=instead)
    if hooks.kind == FUNCTION:
        raise ConfigError(
            f"{where}: a function is not saved, so other processes cannot open this encoder; use "
            f"{instead}, or a class with save_pretrained and from_pretrained"
        )
    options = {  # of an encoder, not in its saved folder
        "device": "" if own_devices else hooks.device, "dtype": hooks.dtype,
        "batch_tokens": hooks.batch_tokens,
    }  # fmt: skip
    plain = {
        name: value if isinstance(value, (int, str)) else str(value).removeprefix("torch.")
        for name, value in options.items()
        if value not in (None, "")
    }
    return TransferForm(own, plain)


def check_reopened(name: str, fingerprint: str, before: str, *, where: str, instead: str) -> None:
    """Raise ``ModelError`` unless what another process has opened has the fingerprint of before."""
    if fingerprint != before:
        raise ModelError(
            f"{where}: {name} saved and reopened has the fingerprint {fingerprint[:12]} instead of "
            f"{before[:12]}; its save_pretrained leaves something out: use {instead}"
        )


def refuse_kept(kind: str | None, backend: str | None, *, where: str, instead: str) -> None:
    """Raise ``ConfigError`` for a type, or the ``backend`` of one, that stays in its process."""
    if backend is not None:
        raise ConfigError(
            f"{where}: an exported graph (backend) runs in one process, which uses all threads; "
            f"use {instead}, or backend: torch"
        )
    traits = traits_of(kind or "")
    if traits is not None and traits.stays:
        raise ConfigError(
            f"{where}: an encoder behind HTTP makes its requests in one process; use {instead} "
            "(concurrency is how many requests it makes at a time)"
        )


def class_name(encoder: Any) -> str:
    """Return ``module:Class`` of an encoder."""
    return f"{type(encoder).__module__}:{type(encoder).__qualname__}"
