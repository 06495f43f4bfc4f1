"""Encodes documents in several processes; what each needs to open the encoder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import Vectors, hooks_of
from sluice.encoders.foundation.build import type_name
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.processes import (
    GRACE,
    available_threads,
    end,
    end_phrase,
    error_from,
    start,
)
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.tokens import TokenCounts, report_tokens
from sluice.encoders.table import ENCODERS, FUNCTION, traits_of
from sluice.encoders.vectors.forms import put_together
from sluice.encoders.vectors.worker import serve


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


TOKENIZERS = "TOKENIZERS_PARALLELISM"  # as here: tokens take little memory, and more cores help


class Worker(NamedTuple):
    """An encoding process and the connection to it."""

    process: subprocess.Popen[bytes]
    channel: Connection


class EncodingPool:
    """Encodes documents in ``workers`` processes, on ``devices`` in turn (None: the encoder's own).

    Each process opens the encoder from a saved folder and gets its share of the threads. Texts are
    dealt out in turn, so which process encodes a text depends on the order of texts alone, and two
    runs return the same bits. A process that dies is a ``ModelError``.
    """

    def __init__(self, encoder: Any, workers: int, devices: Sequence[str] = ()) -> None:
        self._encoder = encoder
        self._fingerprint = str(encoder.fingerprint)
        self._devices: Sequence[str | None] = list(devices) or [None]
        self._count = max(workers, len(devices))
        self._open = contextlib.ExitStack()
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="sluice-")))
        try:
            self._encoder.save_pretrained(folder / "encoder")
            for number in range(self._count):
                device = self._devices[number % len(self._devices)]
                self._workers.append(self._start(folder / "encoder", device))
            for worker in self._workers:
                check_reopened(
                    class_name(self._encoder), self._receive(worker), self._fingerprint,
                    where="workers", instead="workers: 1",
                )  # fmt: skip
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.channel.close()
        end([worker.process for worker in self._workers], GRACE)
        self._workers = []
        self._open.close()

    def encode_documents(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text, in input order."""
        busy: dict[Connection, tuple[Worker, int]] = {}
        parts: dict[int, Vectors] = {}
        counts: dict[int, Any] = {}
        with progress("encode document texts", len(texts), "texts") as advance:
            for number, worker in enumerate(self._workers):
                part = list(texts[number :: self._count])
                if part or not number:
                    _send(worker, part)
                    busy[worker.channel] = (worker, number)
            while busy:
                for channel in wait(list(busy)):
                    worker, number = busy[cast(Connection, channel)]
                    answer = self._receive(worker)
                    if isinstance(answer, int):
                        advance(answer)
                    else:
                        parts[number], counts[number] = answer
                        del busy[cast(Connection, channel)]
        order = [np.arange(number, len(texts), self._count) for number in sorted(parts)]
        report_tokens(_in_order(counts, order, len(texts)))
        return put_together([parts[number] for number in sorted(parts)], order)

    def _start(self, folder: Path, device: str | None) -> Worker:
        own, options = transfer_form(self._encoder, where="workers", instead="workers: 1")
        if os.name == "nt":
            raise ConfigError(
                "workers: Windows cannot hand a process its end of a pipe; use workers: 1, which "
                "uses all threads"
            )
        if device is not None:
            options["device"] = device
        here, there = Pipe()
        process = start(
            serve.__module__, threads=max(1, available_threads() // self._count), channel=there,
            settings={TOKENIZERS: os.environ.get(TOKENIZERS, "true")}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        worker = Worker(process, here)
        _send(worker, (str(folder), own, options))
        return worker

    def _receive(self, worker: Worker) -> Any:
        try:
            kind, answer = worker.channel.recv()
        except (EOFError, OSError):
            raise _death(worker.process) from None
        if kind == "error":
            name, message = answer
            foreign = ModelError(f"workers: a process failed with {name}: {message}")
            raise error_from(name, message) or foreign
        return answer


def _in_order(
    counts: dict[int, Any], order: Sequence[NDArray[np.int64]], texts: int
) -> TokenCounts | None:
    """Return the token counts of all texts, in their order; None if a process reported none."""
    joined = TokenCounts(np.zeros(texts, np.int32), np.zeros(texts, np.int32))
    for number, places in zip(sorted(counts), order, strict=True):
        if counts[number] is None:
            return None
        joined.full[places], joined.read[places] = counts[number]
    return joined


def _send(worker: Worker, message: Any) -> None:
    try:
        worker.channel.send(message)
    except OSError:
        raise _death(worker.process) from None


def _death(process: subprocess.Popen[bytes]) -> ModelError:
    try:
        code = process.wait(GRACE)
    except subprocess.TimeoutExpired:
        code = 0
    cause = "; what it printed is above" if code >= 0 else ""
    if code == -9:
        cause = "; most often the machine ran out of memory"
    return ModelError(
        f"workers: an encoding process {end_phrase(code)}{cause}; use fewer workers, or a smaller "
        "batch_tokens. Encoded texts are kept: the same command continues from there"
    )
