"""Reads both spellings of sentence-transformers' folder layout, as one ``Layout``."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sluice.encoders.foundation.disk.files import check_version, read_model_json, write_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.router import PROMPTS, is_router, network_folder
from sluice.encoders.table import KNOWN

SIDECAR = "sluice.json"
VERSION = 1  # of the sidecar
FLOORS = "term_floors.npy"  # what SPLADE's prune_quantile cuts weights at, float32 [vocab]
ADAPTER = "adapter"  # a folder: parts of a tuned model that could not be merged
SETTINGS = "sentence_bert_config.json"
OWN_HOME = "sluice.encoders.sentence_transformers"  # of modules that sentence-transformers lacks
RUN_THERE = frozenset({"SimilarityHead", "TermWeights"})  # by a class of that home
REFUSED = "OnlySluice"  # the one at whose name it refuses a folder; here it is passed over

_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer"}


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object of a model folder; {} if the file is missing."""
    value = read_model_json(path)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"{path}: a {type(value).__name__}, expected a JSON object")
    return value


def length_in(settings: dict[str, Any], key: str, folder: Path) -> int | None:
    """Return a length in tokens from a folder's settings, None without one."""
    value = settings.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ModelError(f"{folder}: {key} is {value!r}, expected a number of tokens")
    return value


def position_limit(positions: Any, model_type: Any, padding: Any) -> int | None:
    """Return the tokens that ``max_position_embeddings`` are for; None for a model without any."""
    if not isinstance(positions, int) or positions <= 0:
        return None  # RoBERTa's start after the padding index
    return positions - ((padding or 0) + 1 if model_type in _OFFSET_POSITIONS else 0)


def read_sidecar(folder: Path) -> dict[str, Any]:
    """Read ``sluice.json`` of a model folder, {} if it is missing; ``ModelError`` if newer."""
    facts = read_object(folder / SIDECAR)
    check_version(facts.get("version", VERSION), VERSION, folder / SIDECAR, ModelError)
    return facts


def write_sidecar(folder: Path, facts: dict[str, Any]) -> None:
    """Write ``sluice.json``: the kind of encoder and what the layout cannot express."""
    adapter = {"adapter": ADAPTER} if (folder / ADAPTER).is_dir() else {}
    write_json(folder / SIDECAR, {"version": VERSION, **facts, **adapter})
    if adapter:
        append_module(folder, ADAPTER)


def own_modules(folder: Path) -> set[str]:
    """Return the names of the classes of ``OWN_HOME`` that a model is made of, all its parts'."""
    texts = [file.read_text(encoding="utf-8") for file in folder.rglob("modules.json")]
    return set(re.findall(rf"{re.escape(OWN_HOME)}\.(\w+)", "".join(texts)))


def append_module(folder: Path, name: str, target: str = "") -> Path:
    """Add a module of the class ``target`` to ``modules.json``; return its folder, not yet made.

    By default it is ours, and where we have none of that ``name`` other libraries refuse the model.
    """
    kinds = {"Transformer": "sentence_transformers.models.Transformer"}
    own = kinds.get(name, f"{OWN_HOME}.{name if name in RUN_THERE else REFUSED}")
    entries = read_model_json(folder / "modules.json") or []
    number = len(entries)
    entry = {"idx": number, "name": str(number), "path": f"{number}_{name}", "type": target or own}
    write_json(folder / "modules.json", [*entries, entry])
    return folder / f"{number}_{name}"


AUTOENCODER = "SparseAutoEncoder"  # sentence-transformers' module of CSR encoders
# The orders of modules that our encoders run in.
MODULE_ORDER = re.compile(
    r"|(MLM)?Transformer( SpladePooling( TermFrequency| TermWeights)?"
    r"| Pooling( Dense| LayerNorm| Normalize)*"
    r"( TopLayers( Experts| Concepts)?| Concepts| Experts| Gaussian| HyperHead| PseudoQueries"
    r"| SparseAutoEncoder)?)?"
    r"|StaticEmbedding( Dense| LayerNorm| Normalize)*"
)
RANKER_ORDER = re.compile(r"|Transformer( SimilarityHead| TermHead)?")
VECTOR_MODULES = ("Dense", "LayerNorm", "Normalize")  # each maps vectors of texts to others
# What sentence-transformers has no module for, by the key of their settings in ``sluice.json``. It
# runs some of them (``encoders.sentence_transformers``), and refuses a folder with another.
OWN = {
    "Concepts": "concepts", "Experts": "experts", "Gaussian": "gaussian", "HyperHead": "hyper_head",
    "PseudoQueries": "pseudo_queries", "SimilarityHead": "head", "TermFrequency": "term_frequency",
    "TermHead": "head", "TermWeights": "query_model", "TopLayers": "top_layers",
}  # fmt: skip


def check_modules(folder: Path, modules: Sequence[str]) -> None:
    """Raise ``ModelError`` for modules that no encoder here is made of, or in another order."""
    ranks = read_object(folder / PROMPTS).get("model_type") == "CrossEncoder"
    if (RANKER_ORDER if ranks else MODULE_ORDER).fullmatch(" ".join(modules)):
        return
    known = {
        *re.findall(r"[A-Z]\w+", "" if ranks else MODULE_ORDER.pattern),
        "Transformer",
        "MLMTransformer",
        "Router",
    }
    others = [kind for kind in dict.fromkeys(modules) if kind not in known]
    if others:
        raise ModelError(
            f"{folder / 'modules.json'}: Sluice has no module {', '.join(others)}; in Python, give "
            f"the opened model as the {'reranker' if ranks else 'encoder'}: "
            f"{'CrossEncoder' if ranks else 'SentenceTransformer'}({str(folder)!r})"
        )
    raise ModelError(
        f"{folder / 'modules.json'}: modules {', '.join(modules)}; expected Transformer, Pooling, "
        "any number of Dense, LayerNorm and Normalize; or StaticEmbedding in place of the first "
        "two; or Transformer, SpladePooling; SparseAutoEncoder only at the end"
    )


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Return (class name, folder) of each module in ``modules.json``; [] without the file."""
    path = folder / "modules.json"
    entries = read_model_json(path)
    if entries is None:
        return []
    modules = []
    for entry in entries if isinstance(entries, list) else [entries]:
        kind = entry.get("type") if isinstance(entry, dict) else None
        place = entry.get("path") if isinstance(entry, dict) else None
        if not isinstance(kind, str) or not isinstance(place, str):
            raise ModelError(
                f"{path}: {entry!r}; expected a list of modules, each with 'type' and 'path'"
            )
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise ModelError(f"{path}: path {place!r} leads out of the folder")
        try:
            (folder / place).exists()
        except (OSError, ValueError) as error:  # too long, a NUL character
            raise ModelError(f"{path}: path {place!r:.80} cannot be a folder's: {error}") from error
        modules.append((kind.rsplit(".", 1)[-1], folder / place))
    return [module for module in modules if module[0] != REFUSED]


def token_layout(folder: Path) -> Literal["pylate", "modules", "colbert"] | None:
    """Return how a token encoder's folder is laid out; None: another encoder's.

    PyLate's has the modules Transformer and Dense, that of sentence-transformers 6 more of them,
    ColBERT's own none.
    """
    settings = read_object(folder / PROMPTS)
    kind = settings.get("model_type")
    if kind == "MultiVectorEncoder":
        return "modules"
    if kind == "ColBERT" or "query_prefix" in settings:
        return "pylate"
    names = read_object(transformer_folder(folder) / "config.json").get("architectures")
    return "colbert" if isinstance(names, list) and "HF_ColBERT" in names else None


def transformer_folder(folder: Path) -> Path:
    """Return the folder of weights and tokenizer: ``0_Transformer`` in old ones, else ``folder``.

    For an inference-free SPLADE encoder it is the documents' network; separate towers are a
    ``ModelError``.
    """
    if is_router(folder):
        return network_folder(folder)
    modules = read_modules(folder)
    return modules[0][1] if modules and modules[0][0].endswith("Transformer") else folder


def network_config(home: Path) -> Path:
    """Return the ``config.json`` of a network's folder; ``ModelError`` where there is none."""
    config = home / "config.json"
    if not config.exists():
        codes = next(home.glob("*.gguf"), None)
        do = f"sluice model import {codes}" if codes else "expected a transformers model folder"
        raise ModelError(f"{home}: no config.json; {do}")
    return config


def is_model2vec(folder: Path) -> bool:
    """Return whether a folder is model2vec's own, without ``modules.json``."""
    config = read_object(folder / "config.json")
    return not (folder / "modules.json").exists() and config.get("model_type") == "model2vec"


def is_static_folder(folder: Path) -> bool:
    """Return whether a folder has a table of token vectors instead of a network."""
    modules = read_modules(folder)
    return is_model2vec(folder) or (bool(modules) and modules[0][0] == "StaticEmbedding")


log = logging.getLogger("sluice")

# Ours -> sentence-transformers' (legacy key, new value), in the order in which several of the
# legacy keys stand side by side.
POOLINGS = {
    "cls": ("pooling_mode_cls_token", "cls"),
    "max": ("pooling_mode_max_tokens", "max"),
    "mean": ("pooling_mode_mean_tokens", "mean"),
    "mean_sqrt": ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    "weighted_mean": ("pooling_mode_weightedmean_tokens", "weightedmean"),
    "last": ("pooling_mode_lasttoken", "lasttoken"),
}


class VectorModule(NamedTuple):
    """A module that maps vectors: ``Dense``, ``LayerNorm`` or ``Normalize``, and its folder."""

    kind: str
    folder: Path


@dataclass(slots=True)
class Layout:
    """The contents of a model folder besides weights and tokenizer."""

    modules: tuple[str, ...] = ()  # class names in order: Transformer, Pooling, Dense, Normalize
    pooling: str | tuple[str, ...] | None = None  # several side by side
    pool_prompt: bool = True
    splade_pooling: str | None = None
    activation: str = "relu"
    layers: tuple[VectorModule, ...] = ()  # between the pooling and the last Normalize
    normalize: bool = False  # whether vectors have length 1 in the end
    gaussian: Path | None = None  # the folder of what makes variances
    max_length: int | None = None
    lengths: dict[str, int | None] = field(default_factory=dict)  # of a side, by its setting
    truncate_dim: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str | None = None
    sidecar: dict[str, Any] = field(default_factory=dict)


def read_layout(folder: Path) -> Layout:
    """Read a folder's layout; a bare transformers folder has an empty ``Layout``."""
    layout = Layout(sidecar=read_sidecar(folder))
    if is_router(folder):
        network_folder(folder)  # refuses towers
        raise ModelError(
            f"{folder}: a SPLADE folder with query weights; load it with SpladeEncoder (type: "
            "splade)"
        )
    if token_layout(folder):
        raise ModelError(
            f"{folder}: a token encoder's folder; load it with TokenEncoder (type: tokens)"
        )
    entries = read_modules(folder)
    layout.modules = tuple(kind for kind, _ in entries)
    check_modules(folder, layout.modules)
    for kind, setting in OWN.items():
        if kind in layout.modules and setting not in layout.sidecar:
            raise ModelError(
                f"{folder / SIDECAR}: has no {setting}, and modules.json names {kind}, which is "
                "nothing without it; copy sluice.json too from where the model was saved"
            )
    for kind, place in entries:
        if kind == "Pooling":
            _read_pooling(layout, place)
        elif kind == "SpladePooling":
            config = read_object(place / "config.json")
            layout.splade_pooling = str(config.get("pooling_strategy", "max"))
            layout.activation = str(config.get("activation_function", "relu"))
        elif kind in VECTOR_MODULES:
            _check_input(place)
            layout.layers += (VectorModule(kind, place),)
        elif kind == "Gaussian":
            layout.gaussian = place
    if layout.layers and layout.layers[-1].kind == "Normalize":
        layout.normalize = True
        layout.layers = layout.layers[:-1]
    own = read_object(transformer_folder(folder) / SETTINGS)
    layout.max_length = length_in(own, "max_seq_length", folder) or None
    sides = ("query_length", "document_length")
    layout.lengths = {side: length_in(own, side, folder) for side in sides}
    settings = read_object(folder / PROMPTS)
    layout.truncate_dim = length_in(settings, "truncate_dim", folder)
    prompts = settings.get("prompts") or {}
    default = settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not isinstance(default, str | None):
        raise ModelError(f"{folder / PROMPTS}: prompts is not a mapping")
    layout.prompts = {key: str(value) for key, value in prompts.items()}
    layout.default_prompt = default
    layout.similarity = settings.get("similarity_fn_name")
    _follow_similarity(layout, folder)
    return layout


def refuse_others(layout: Layout, folder: Path, own: str = "") -> None:
    """Raise ``ModelError`` for a folder with the module of another encoder than ``own``."""
    for kind, each in KNOWN.items():
        if each.module in layout.modules and each.module != own:
            name = each.folder or each.called
            raise ModelError(f"{folder}: a {name}'s folder; load it with type: {kind}")


def _follow_similarity(layout: Layout, folder: Path) -> None:
    """Scale vectors to length 1 where the folder compares them by the cosine."""
    if layout.similarity in ("euclidean", "manhattan"):
        log.warning(
            "%s: compares vectors by the %s distance; here the score is their inner product",
            folder, layout.similarity,
        )  # fmt: skip
    of_texts = {"Pooling", "StaticEmbedding"} & set(layout.modules)
    if AUTOENCODER in layout.modules:  # what is compared are its codes
        return
    if of_texts and layout.similarity == "cosine" and not layout.normalize:
        log.info(
            "%s: has no Normalize module but compares by the cosine, so vectors are scaled to "
            "length 1; normalize: false leaves them as they are", folder,
        )  # fmt: skip
        layout.normalize = True


def _check_input(place: Path) -> None:
    """Raise ``ModelError`` for a module that reads other than the texts' vectors."""
    config = read_object(place / "config.json")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in ("sentence_embedding", None):
            raise ModelError(
                f"{place / 'config.json'}: {key} is {config[key]!r}; expected "
                "'sentence_embedding', the vectors of texts"
            )


def _read_pooling(layout: Layout, place: Path) -> None:
    config = read_object(place / "config.json")
    mode = config.get("pooling_mode")
    named = [ours for ours, (key, _) in POOLINGS.items() if config.get(key)]
    if mode is not None:
        ours = {new: ours for ours, (_, new) in POOLINGS.items()}
        modes = mode if isinstance(mode, list) else [mode]
        unknown = [each for each in modes if not isinstance(each, str) or each not in ours]
        if unknown or not modes:
            raise ModelError(
                f"{place / 'config.json'}: pooling_mode is {mode!r}; known: {', '.join(ours)}"
            )
        named = [ours[each] for each in modes]
    layout.pooling = tuple(named) if len(named) > 1 else (named or ["mean"])[0]
    layout.pool_prompt = bool(config.get("include_prompt", True))
