"""Reads and writes folders of static embeddings: sentence-transformers' and model2vec's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout import (
    Layout,
    is_model2vec,
    read_layout,
    read_modules,
    read_object,
)
from sluice.encoders.model_files.router import write_prompts
from sluice.encoders.model_files.weights.files import PICKLED, WEIGHTS, refuse_pickle

MODULE = "StaticEmbedding"
TOKENIZER = "tokenizer.json"
LARGEST = 1 << 30  # numbers of a table that a small file may unfold to
MODEL2VEC_LENGTH = 512  # tokens that model2vec reads of a text


class StaticFolder(NamedTuple):
    """A folder's table ``[vocabulary, dim]``, tokenizer and layout.

    ``skip`` is the token that is left out of means (None: no token is), ``length`` the tokens of a
    text that are read (None: all).
    """

    table: Tensor
    tokenizer: Any
    layout: Layout
    skip: int | None
    length: int | None


def read_static(folder: Path) -> StaticFolder:
    """Read a folder of static embeddings; ``ModelError`` where it is none, or damaged.

    With ``modules.json`` it is read as sentence-transformers reads it. Without, it is model2vec's:
    the unknown token is left out of means, and texts are cut at 512 tokens.
    """
    layout = read_layout(folder)
    alone = is_model2vec(folder)
    if not alone and layout.modules[:1] != (MODULE,):
        raise ModelError(
            f"{folder}: no static embeddings; expected modules.json to begin with {MODULE}, or the "
            "config.json of model2vec"
        )
    home = folder if alone else read_modules(folder)[0][1]
    tokenizer, cut = _read_tokenizer(home / TOKENIZER)
    table = _read_table(home / WEIGHTS, tokenizer)
    if not alone:
        noted = layout.sidecar.get("skip_unknown", False)
        return StaticFolder(table, tokenizer, layout, _unknown(tokenizer) if noted else None, cut)
    layout.normalize = bool(read_object(folder / "config.json").get("normalize", False))
    return StaticFolder(table, tokenizer, layout, _unknown(tokenizer), MODEL2VEC_LENGTH)


def _read_tokenizer(path: Path) -> tuple[Any, int | None]:
    """Return a transformers tokenizer that adds no special tokens, and where its file cuts."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    if not path.exists():
        raise ModelError(f"{path}: missing; static embeddings have their tokenizer there")
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises Exception itself
        raise ModelError(f"{path}: not readable as a tokenizer: {error}") from None
    cut = (backend.truncation or {}).get("max_length")
    backend.no_padding()
    backend.no_truncation()
    backend.post_processor = None
    return PreTrainedTokenizerFast(tokenizer_object=backend), cut


def _read_table(path: Path, tokenizer: Any) -> Tensor:
    """Return one row for each token, float32 ``[vocabulary, dim]``.

    model2vec's ``mapping`` names a token's row, its ``weights`` multiply them.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.exists():
        refuse_pickle(path.resolve().parent, [path.with_name(PICKLED)])
        raise ModelError(f"{path}: missing; weights are read from safetensors only")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: not readable as safetensors: {error}") from error
    table: Tensor | None = tensors.get("embedding.weight", tensors.get("embeddings"))
    mapping, weights = tensors.get("mapping"), tensors.get("weights")
    if table is None or table.ndim != 2 or 0 in table.shape:
        raise ModelError(
            f"{path}: no table of vectors; expected embedding.weight or embeddings, [tokens, dim]"
        )
    table = table.float()
    if mapping is not None:
        rows = mapping.long()
        if rows.ndim != 1 or not len(rows) or not 0 <= rows.min() <= rows.max() < len(table):
            raise ModelError(f"{path}: mapping names rows that embeddings do not have")
        if len(rows) * table.shape[1] > LARGEST:
            raise ModelError(
                f"{path}: mapping makes a table of {len(rows):,} by {table.shape[1]:,} numbers; "
                f"expected at most {LARGEST:,}"
            )
        table = table[rows]
    if weights is not None:
        if weights.shape != table.shape[:1]:
            raise ModelError(f"{path}: weights are {list(weights.shape)}, expected [{len(table)}]")
        table = table * weights.float()[:, None]
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= len(table):
        raise ModelError(
            f"{path}: the tokenizer has token id {largest}, the table {len(table)} rows; they do "
            "not belong together"
        )
    if not torch.isfinite(table).all():
        raise ModelError(f"{path}: a number of the table is not finite; the file is damaged")
    found: Tensor = table.contiguous()
    return found


def _unknown(tokenizer: Any) -> int | None:
    """Return the id of the token for unknown words, as the tokenizer's model names it."""
    model = tokenizer.backend_tokenizer.model
    token = getattr(model, "unk_token", None)
    return None if token is None else tokenizer.get_vocab().get(token)


def write_static(
    folder: Path,
    table: Tensor,
    tokenizer: Any,
    *,
    length: int | None,
    layers: list[str],
    normalize: bool,
    prompts: dict[str, str],
    similarity: str,
) -> list[Path]:
    """Write a folder that sentence-transformers loads; return those of the modules ``layers``."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer

    kinds = [MODULE, *layers, *(["Normalize"] if normalize else [])]
    entries = [
        {
            "idx": number, "name": str(number), "path": f"{number}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]  # fmt: skip
    for entry in entries:
        (folder / str(entry["path"])).mkdir()
    write_json(folder / "modules.json", entries)
    write_prompts(folder, "SentenceTransformer", prompts, similarity)
    home = folder / str(entries[0]["path"])
    save_file({"embedding.weight": table.detach().cpu().contiguous()}, home / WEIGHTS)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    if length is None:
        backend.no_truncation()
    else:
        backend.enable_truncation(length)
    backend.save(str(home / TOKENIZER))
    return [folder / f"{number}_{kind}" for number, kind in enumerate(layers, start=1)]
