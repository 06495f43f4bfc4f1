"""Opens a saved encoder, whatever its type."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.published.table import find_published
from sluice.encoders.model_files.layout import (
    SIDECAR,
    check_modules,
    is_static_folder,
    read_modules,
    read_object,
    read_sidecar,
    token_layout,
    transformer_folder,
)
from sluice.encoders.model_files.locate import local_folder, model_folder
from sluice.encoders.model_files.router import is_router, is_static, read_routes
from sluice.encoders.table import (
    ENCODERS,
    GIVEN,
    KNOWN,
    LEXICAL,
    OPENED,
    RERANKERS,
    ROUTED,
    ROUTED_TERMS,
    USUAL,
    USUAL_RANKER,
)

REMOTE = "http"  # the type whose folders name a server
# Settings of requests: saved with an encoder behind HTTP, and no part of what it returns.
ASKING = (
    "batch_size", "concurrency", "requests_per_minute", "timeout_s", "retries", "backoff_s",
    "price",
)  # fmt: skip
# In the names of architectures. GPT-2's ends otherwise than later ones; XLM's and FlauBERT's
# ``...WithLMHeadModel`` guess masked words.
GENERATES = re.compile(r"ForCausalLM|ForConditionalGeneration|(?<!With)LMHeadModel")
LANGUAGE_MODEL = "language_model"  # the kind of a folder that is neither encoder nor scorer


def kind_of(folder: Path) -> str:
    """Return the type name of a saved model: as Sluice noted it, else guessed from the files.

    ``language_model`` for one that generates text and whose folder names no pooling.
    """
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).exists() else None
    if isinstance(manifest, dict) and manifest.get("format") == "sluice.bm25":
        return LEXICAL
    if (folder / SIDECAR).exists():
        kind = read_sidecar(folder).get("type")
        if not isinstance(kind, str):
            raise ModelError(f"{folder / SIDECAR}: type is {kind!r}, expected an encoder's name")
        return kind
    if is_router(folder):
        return ROUTED_TERMS if is_static(read_routes(folder)["query"]) else ROUTED
    if is_static_folder(folder):
        return "static"
    if token_layout(folder):
        return "tokens"
    modules = read_modules(folder)
    check_modules(folder, [kind for kind, _ in modules])
    config = transformer_folder(folder) / "config.json"
    if not config.exists():
        raise ModelError(f"{folder}: not a model folder: no config.json and no Sluice manifest")
    for kind, each in KNOWN.items():  # sentence-transformers' modules; ours come with our note
        if each.theirs and any(module == each.module for module, _ in modules):
            return kind
    names = str(read_object(config).get("architectures"))
    if not modules and GENERATES.search(names):
        return LANGUAGE_MODEL
    return USUAL_RANKER if "SequenceClassification" in names else USUAL


def named_model(name: str, *, scores: bool = False) -> dict[str, str]:
    """Return the component of a model that is named alone: ``{type: dense, model: NAME}``.

    A folder on this machine says its type, and so does the table of published checkpoints. Any
    other model is dense, or a cross-encoder where one that ``scores`` is asked for.
    """
    folder, usual, known = local_folder(name), USUAL, ENCODERS
    if scores:
        usual, known = USUAL_RANKER, RERANKERS
    row = find_published(name)
    kind = kind_of(folder) if folder is not None else row.type if row else usual
    return {"type": kind if kind in known else usual, "model": name}


def open_encoder(name: str | Path, *, allow: Collection[str] = (), **options: Any) -> Any:
    """Load a saved encoder or cross-encoder of any built-in type, by folder or hub id.

    One behind HTTP opens if ``allow`` names its server, and takes ``asking`` alone.
    """
    folder = model_folder(str(name))
    maker, kind = opener_of(folder)
    if kind == REMOTE:
        if others := sorted(options.keys() - {"asking"}):
            raise ConfigError(f"{others[0]}: an encoder behind HTTP takes no such option")
        options["allow"] = allow
    return resolve(maker)(folder, **options)


def opener_of(folder: Path) -> tuple[str, str]:
    """Return what opens a saved model and the model's type; nothing is loaded.

    Raises ``ModelError`` for a folder that says no use, and one of a type that is not built in.
    """
    kind = kind_of(folder)
    if kind == LANGUAGE_MODEL:
        raise ModelError(
            f"{folder}: a language model without modules.json, which does not say what it encodes "
            "by; name its use: {type: dense, model: ..., pooling: last} for an encoder, {type: "
            "generative, model: ...} for a reranker with a prompt"
        )
    table = {**ENCODERS, **GIVEN, **RERANKERS, **OPENED}
    if kind not in table:
        raise ModelError(f"{folder}: saved by an encoder of type {kind!r}, which is not built in")
    return table[kind], kind
