"""Encodes some texts of a corpus into one file of vectors: here, or in another process."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from sluice.encoders.encoder import Vectors
from sluice.encoders.foundation.disk.files import read_json, write_text
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.progress import Advance, counted_by
from sluice.encoders.foundation.tokens import TokenCounts, counting_tokens
from sluice.encoders.vectors.cache import VectorCache
from sluice.encoders.vectors.forms import EXACT, Hashes, checked_vectors, mean_cosine, text_hashes
from sluice.encoders.vectors.pool import TransferForm, check_reopened, class_name, transfer_form
from sluice.retrieval.execution.executor import Executor, Facts
from sluice.retrieval.retrievers.corpus.encoding import Encoding

INSTEAD = "executor: local"


def add_vectors(
    encoder: Any,
    encode: Callable[[Sequence[Any]], Vectors],
    cache: VectorCache,
    hashes: Hashes,
    inputs: Sequence[Any],
    advance: Advance,
    *,
    compare: bool = False,
) -> tuple[Facts, TokenCounts | None]:
    """Encode texts into one file of the cache; return facts, and how many tokens they have.

    ``ModelError`` where the encoder's fingerprint is not that of the cache. With ``compare`` the
    facts have the mean ``cosine`` of what is stored, where that is rounded, to what was computed.
    """
    start = time.perf_counter()
    with counted_by(advance), counting_tokens() as parts:
        vectors = checked_vectors(encode(inputs), len(inputs), type(encoder).__name__)
    found, before = str(encoder.fingerprint), cache.identity["fingerprint"]
    if found != before:
        raise ModelError(
            f"{type(encoder).__name__}: changed while it encoded the corpus (fingerprint "
            f"{found[:12]}, at the start {before[:12]}); do not train an encoder that is encoding: "
            "build again"
        )
    counts = TokenCounts.joined(parts, len(inputs))
    cache.put(hashes, vectors, None if counts is None else counts.full)
    facts: Facts = {"seconds": time.perf_counter() - start}
    if compare and cache.store != EXACT:
        facts["cosine"] = mean_cosine(vectors, cache.gather(cache.locate(hashes)))
    return facts, counts


def encode_task(
    *,
    encoder: str,
    own: str,
    options: Mapping[str, Any],
    root: str,
    identity: Mapping[str, str],
    inputs: str,
    compare: bool,
) -> Facts:
    """Encode the texts of the file ``inputs`` with a saved encoder into the cache ``root``."""
    opened = _open_encoder(encoder, own, json.dumps(options))
    check_reopened(
        class_name(opened), str(opened.fingerprint), identity["fingerprint"],
        where="executor", instead=INSTEAD,
    )  # fmt: skip
    texts = read_json(Path(inputs))
    with VectorCache(Path(root), identity).adding() as cache:
        facts, _ = add_vectors(
            opened, opened.encode_documents, cache, text_hashes(texts), texts,
            lambda amount=1: None, compare=compare,
        )  # fmt: skip
    return facts


@lru_cache(maxsize=1)
def _open_encoder(folder: str, own: str, options: str) -> Any:
    from sluice.encoders.vectors.worker import reopened

    return reopened(folder, own, json.loads(options))


class SentEncoder:
    """An encoder that other processes open: saved below ``work`` when it is first needed.

    With ``own_devices`` they open it on a device that they find, else on one like this process's.
    """

    def __init__(self, encoder: Any, work: Path, *, own_devices: bool = False) -> None:
        self._encoder = encoder
        self._form: TransferForm = transfer_form(
            encoder, where="executor", instead=INSTEAD, own_devices=own_devices
        )
        fingerprint = str(encoder.fingerprint)
        self._folder = (work / f"encoder-{fingerprint[:16]}").absolute()
        self._inputs = (work / "inputs").absolute()
        self._saved = False

    def save(self) -> None:
        """Save the encoder, unless this object has done so."""
        if not self._saved:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._encoder.save_pretrained(self._folder)
            self._saved = True

    def write(self, name: str, inputs: Sequence[Any]) -> None:
        """Write the texts of a task."""
        self.save()
        self._inputs.mkdir(parents=True, exist_ok=True)
        write_text(self._file(name), json.dumps(list(inputs)))

    def remove(self, name: str) -> None:
        """Remove the texts of a task that is done."""
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self._inputs / f"{name}.json"

    def arguments(self, name: str, cache: VectorCache, *, compare: bool) -> dict[str, Any]:
        """Return the arguments of ``encode_task``."""
        return {
            "encoder": str(self._folder), "own": self._form.own, "options": self._form.options,
            "root": str(cache.root.absolute()), "identity": cache.identity,
            "inputs": str(self._file(name)), "compare": compare,
        }  # fmt: skip


def check_one_way_to_share(encoding: Encoding, executor: Executor, where: str = "") -> None:
    """Raise ``ConfigError`` for processes within processes."""
    if executor.remote and (encoding.workers > 1 or encoding.devices):
        raise ConfigError(
            f"{where}encoding.workers: the executor shares texts out already; leave workers and "
            f"devices out, or use {INSTEAD}"
        )
