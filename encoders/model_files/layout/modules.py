"""Reads ``modules.json``: which modules a model folder has, and so what kind of encoder it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sluice.encoders.foundation.disk.files import read_model_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout.files import REFUSED, read_object
from sluice.encoders.model_files.router import PROMPTS, is_router, network_folder

AUTOENCODER = "SparseAutoEncoder"  # sentence-transformers' module of CSR encoders
# The orders of modules that our encoders run in.
MODULE_ORDER = re.compile(
    r"|(MLM)?Transformer( SpladePooling( TermFrequency| TermWeights)?"
    r"| Pooling( Dense| LayerNorm| Normalize)*"
    r"( TopLayers( Experts| Concepts)?| Concepts| Experts| Gaussian| HyperHead| PseudoQueries"
    r"| SparseAutoEncoder)?)?"
    r"|StaticEmbedding( Dense| LayerNorm| Normalize)*"
)
RANKER_ORDER = re.compile(r"|Transformer( SimilarityHead)?")
VECTOR_MODULES = ("Dense", "LayerNorm", "Normalize")  # each maps vectors of texts to others
# What sentence-transformers has no module for, by the key of their settings in ``sluice.json``. It
# runs some of them (``encoders.sentence_transformers``), and refuses a folder with another.
OWN = {
    "Concepts": "concepts", "Experts": "experts", "Gaussian": "gaussian", "HyperHead": "hyper_head",
    "PseudoQueries": "pseudo_queries", "SimilarityHead": "head", "TermFrequency": "term_frequency",
    "TermWeights": "query_model", "TopLayers": "top_layers",
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


def is_model2vec(folder: Path) -> bool:
    """Return whether a folder is model2vec's own, without ``modules.json``."""
    config = read_object(folder / "config.json")
    return not (folder / "modules.json").exists() and config.get("model_type") == "model2vec"


def is_static_folder(folder: Path) -> bool:
    """Return whether a folder has a table of token vectors instead of a network."""
    modules = read_modules(folder)
    return is_model2vec(folder) or (bool(modules) and modules[0][0] == "StaticEmbedding")
