"""Finds a model's files: a local folder, the Hugging Face hub or its cache, or a package."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import socket
import threading
from pathlib import Path
from urllib.parse import urlparse

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.generations import settle
from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest
from sluice.encoders.foundation.published.table import find_published, known_names

log = logging.getLogger("sluice")

SHORT_NAMES = "sentence-transformers"  # whose models users name without it

# Weights as safetensors, and the small files around them; never pickles or code.
FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "artifact.metadata"]


@functools.cache
def model_folder(name: str) -> Path:
    """Return the local folder of a model: a path, a hub id (downloaded or cached), or a package.

    The order is: local path, the hub's cache, the checkpoints of ``sluice model get``, the hub
    itself (if it answers within three seconds), the installed package of that model; a name without
    an organisation is also tried as ``sentence-transformers/NAME``. ``owner/name@REVISION`` is the
    model at a commit, tag or branch of the hub. The choice is logged. Raises ``ModelError`` that
    lists what was tried.
    """
    if not name.strip():
        raise ModelError("model: empty; expected a saved model's folder or a hub id")
    try:
        path = expanded(name)
    except ConfigError as error:  # ~somebody who has no home
        raise ModelError(f"model: {error}") from None
    if not path.is_dir():
        settle(path)  # a replacement was killed, or is in progress
    if path.is_dir():
        return path
    if is_path(name):
        raise ModelError(f"{name}: no such model folder; expected a saved model or a hub id")
    if name.endswith("@"):
        raise ModelError(f"{name}: no revision after the @; expected a commit, a tag or a branch")
    ids = _ids(name)
    for find in (_cached, _fetched, *([] if is_published(name) else [_downloaded]), _packaged):
        for model in ids:
            folder = find(model)
            if folder:
                if model != name:
                    log.info("%s: read as %s", name, model)
                return folder
    row = find_published(name) or find_published(ids[-1])
    if row and row.name == name:
        raise ModelError(
            f"{name}: not on this machine; sluice model get {name} brings it "
            f"({row.bytes / 1e6:,.0f} MB, {row.licence})"
        )
    also = "" if "/" in name else f" (nor does {ids[-1]} exist)"
    near = "" if row else suggest(name, known_names()) or suggest(ids[-1], known_names())
    or_, tail = ("", f", or run sluice model get {row.name}") if row else (" or", "")
    raise ModelError(
        f"{name}: model not found; it is not a local folder, not in the hub's cache, and the hub "
        f"could not be reached or has no such model{also}; give a folder,{or_} connect to the "
        f"network{tail}{near}"
    )


def local_folder(name: str) -> Path | None:
    """Return the folder of a model that is on this machine; None if it would have to be fetched."""
    try:
        path = expanded(name)
    except ConfigError:  # ~somebody who has no home
        return None
    if path.is_dir() or is_path(name):
        return path if path.is_dir() else None
    finds = (_cached, _fetched, _in_package)
    folders = (find(model) for find in finds for model in _ids(name))
    return next((folder for folder in folders if folder is not None), None)


def is_published(name: str) -> bool:
    """Return whether ``sluice model get`` brings a model of this name, which no hub has."""
    row = find_published(name)
    return row is not None and row.name == name


def _ids(name: str) -> list[str]:
    return [name] if "/" in name else [name, f"{SHORT_NAMES}/{name}"]


def is_path(name: str) -> bool:
    """Return whether a model's name can only be a path, because no hub id looks like it."""
    model, _, revision = name.partition("@")  # a branch's name may have any number of slashes
    outside = name.startswith((".", "/", "~")) or ".." in revision.split("/")
    return outside or model.count("/") > 1


def _cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    model, revision = _pinned(name)
    try:
        folder = Path(
            snapshot_download(model, revision=revision, local_files_only=True, allow_patterns=FILES)
        )
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    # static embeddings have modules.json alone
    known = any((folder / name).exists() for name in ("config.json", "modules.json"))
    return folder if known else None


def _fetched(name: str) -> Path | None:
    """Return the folder that ``sluice model get`` made; of a hub's id, that of the same model."""
    row = find_published(name)
    if row is None:
        return None
    settle(row.folder)
    return row.folder if row.folder.is_dir() else None


def _downloaded(name: str) -> Path | None:
    """Return the folder of a model that is fetched from the hub now, None if it has none.

    What is in the cache already is not fetched again, and a broken download continues where it
    broke. ``ModelError`` if the connection breaks.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    if not hub_reachable():
        return None
    model, revision = _pinned(name)
    try:
        folder = Path(
            snapshot_download(model, revision=revision, allow_patterns=FILES, etag_timeout=5)
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        log.warning("%s: not found on the hub (%s)", name, type(error).__name__)
        return None
    except Exception as error:  # of the library that the hub's client connects by
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"{name}: the connection to the hub broke ({line}); the same command continues from "
            "there"
        ) from error
    log.info("%s: taken from the hub, at revision %s", name, folder.name)
    return folder


def _pinned(name: str) -> tuple[str, str | None]:
    """Return a model's id, and the revision after an ``@``."""
    model, _, revision = name.partition("@")
    return model, revision or None


def _packaged(name: str) -> Path | None:
    path = _in_package(name)
    if path is not None:
        log.info("%s: taken from the installed package in %s", name, path.parent)
    return path


def _in_package(name: str) -> Path | None:
    row = find_published(name)
    package, _, folder = row.installed.partition("/") if row else ("", "", "")
    spec = importlib.util.find_spec(package) if package else None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / folder
    return path if (path / "config.json").exists() else None


@functools.cache
def hub_reachable(seconds: float = 3.0) -> bool:
    """Return whether the hub's host accepts a connection within ``seconds``."""
    from huggingface_hub import constants

    if os.environ.get("HF_HUB_OFFLINE") or constants.HF_HUB_OFFLINE:
        return False
    address = urlparse(constants.ENDPOINT)
    port = address.port or (443 if address.scheme == "https" else 80)
    answer: list[bool] = []

    def knock() -> None:
        try:
            socket.create_connection((address.hostname or "", port), timeout=seconds).close()
            answer.append(True)
        except OSError:
            answer.append(False)

    # Name resolution has no timeout of its own, hence the thread.
    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answer and answer[0])
