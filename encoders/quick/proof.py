"""Opens an encoder's numpy form if it was shown, on this machine, to agree with the encoder itself.

The first command opens the encoder itself in float32, compares both on a few texts and notes the
outcome in ``$SLUICE_CACHE/quick``. The note holds for the files as they are: names, sizes, times of
writing. An arithmetic type that was chosen for speed (``auto``, ``bfloat16``) is for many texts:
one query is encoded sooner, and more exactly, in float32.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.disk.files import fingerprint_of, read_json, write_json
from sluice.encoders.foundation.errors import SluiceError
from sluice.encoders.foundation.input.bounded import expanded
from sluice.encoders.quick.encoders import QuickCross, QuickDense, QuickSplade

log = logging.getLogger("sluice")

VERSION = 1
KINDS = ("dense", "splade", "cross_encoder")
TYPES = ("float32", "auto", "bfloat16", "float16")
OPTIONS = {"device": ("auto", "cpu"), "dtype": TYPES}  # of the encoder, where one is given
FREE = ("batch_tokens", "max_length")
TOLERANCE = 1e-5  # of the encoder's values, relative to the longest or largest
PROBES = (
    "what is a sluice",
    "Protein-protein binding in cells, measured at 37 degrees (n = 12)?",
    "x",
    "die Größe des Flusses und das Wasser; " * 12,
)


def opened_quickly(
    kind: str, folder: Path, options: Mapping[str, Any], open_itself: Callable[..., Any]
) -> Any:
    """Return an encoder of a folder: the numpy form where that was shown to agree, else itself.

    ``kind`` is that of the folder. ``open_itself`` loads the encoder with ``options``, of which a
    device of its own, a back end and the like rule the numpy form out.
    """
    if kind not in KINDS or not _are_usual(options):
        return open_itself(**options)
    key, note = _key(kind, folder, options), _note_of(folder)
    noted: Any = None
    if note.exists():
        with suppress(SluiceError):
            noted = read_json(note)
    if isinstance(noted, dict) and noted.get("key") == key:
        if not noted.get("agrees"):
            return open_itself(**options)
        with suppress(SluiceError, OSError, ValueError, KeyError):
            return _quick(kind, folder, options, str(noted.get("fingerprint")))
    encoder = open_itself(**{**options, "dtype": "float32"})
    agrees = _agrees(kind, folder, options, encoder)
    with suppress(OSError, SluiceError):
        fingerprint = str(encoder.fingerprint)
        write_json(note, {"key": key, "agrees": agrees, "fingerprint": fingerprint})
    usual = agrees or options.get("dtype") in (None, "float32")
    return encoder if usual else open_itself(**options)


def _are_usual(options: Mapping[str, Any]) -> bool:
    return all(
        name in FREE or value in OPTIONS.get(name, ())
        for name, value in options.items()
        if value is not None
    )


def _quick(kind: str, folder: Path, options: Mapping[str, Any], fingerprint: str) -> Any:
    if kind == "dense":
        return QuickDense(folder, fingerprint)
    if kind == "splade":
        return QuickSplade(folder, fingerprint)
    return QuickCross(folder, fingerprint, options.get("max_length"))


def _agrees(kind: str, folder: Path, options: Mapping[str, Any], encoder: Any) -> bool:
    """Return whether the numpy form of a folder exists and gives the encoder's values."""
    try:
        quick = _quick(kind, folder, options, "")
        if kind == "dense":
            ours, theirs = (each.encode_queries(PROBES) for each in (quick, encoder))
        elif kind == "splade":
            ours, theirs = (each.encode_queries(PROBES).toarray() for each in (quick, encoder))
        else:
            pairs = [(PROBES[0], text) for text in PROBES]
            ours, theirs = (np.asarray(each.score(pairs)) for each in (quick, encoder))
    except (SluiceError, OSError, ValueError, LookupError, ImportError) as error:
        log.debug("%s: no quick pass (%s)", folder, error)
        return False
    scale = max(float(np.abs(theirs).max(initial=0)), 1e-3)
    return bool(np.abs(ours - theirs).max(initial=0) <= TOLERANCE * scale)


def _key(kind: str, folder: Path, options: Mapping[str, Any]) -> str:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    facts = [
        [file.relative_to(folder).as_posix(), file.stat().st_size, file.stat().st_mtime_ns]
        for file in files
    ]
    return fingerprint_of(VERSION, kind, facts, options.get("max_length"))


def _note_of(folder: Path) -> Path:
    place = os.environ.get("SLUICE_CACHE") or "~/.cache/sluice"
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]
    return expanded(place) / "quick" / f"{name}.json"
