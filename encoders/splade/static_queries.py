"""SPLADE queries without a network: a fixed weight for each distinct token of the query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.model_files.layout import read_object
from sluice.encoders.model_files.router import STATIC
from sluice.encoders.model_files.weights.files import PICKLED, WEIGHTS, refuse_pickle
from sluice.encoders.transformer.tokens import Ids

STATIC_TYPE = f"sentence_transformers.sparse_encoder.models.{STATIC}"


class StaticQueries(nn.Module):
    """Query vectors ``relu(weights[t])`` for each distinct token ``t``, 0 for special tokens.

    With weights of 1 this is SPLADE-doc's query; with inverse document frequencies the
    inference-free query (Geng et al., 2025, arXiv 2411.04403). The unknown token begins at 0.
    ``counted`` says whether the weights were counted in a corpus or read from a folder.
    """

    def __init__(
        self, tokenizer: Any, size: int, *, weights: Tensor | None = None, trained: bool = False
    ) -> None:
        super().__init__()
        special = [i for i in tokenizer.all_special_ids if i < size]
        unknown = tokenizer.unk_token_id
        self.counted = weights is not None
        if weights is None:
            weights = torch.ones(size)
            weights[special] = 0.0
        if weights.shape != (size,):
            raise ModelError(f"{len(weights)} query weights; the vocabulary has {size} terms")
        silent = torch.ones(size, dtype=torch.bool)  # columns without a token
        silent[[i for i in tokenizer.get_vocab().values() if i < size]] = False
        silent[[i for i in special if i != unknown]] = True
        self.weights = nn.Parameter(weights.float().clone(), requires_grad=trained)
        self.silent: Tensor
        self.register_buffer("silent", silent, persistent=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return query vectors ``[n, vocab]`` of token ids ``[n, length]``, with gradients."""
        return bags(ids, mask, len(self.weights)) * self.table()

    def table(self) -> Tensor:
        """Return the weight of every term, ``[vocab]``."""
        return torch.relu(self.weights).masked_fill(self.silent, 0.0)

    def of_tokens(
        self, tokens: Sequence[Ids]
    ) -> tuple[list[NDArray[np.int32]], list[NDArray[np.float32]]]:
        """Return each query's terms, in order, and their weights, without terms of weight 0."""
        table = self.table().detach().cpu().numpy()
        distinct = [np.unique(ids).astype(np.int32) for ids in tokens]
        terms = [ids[table[ids] > 0] for ids in distinct]
        return terms, [table[ids] for ids in terms]


def bags(ids: Tensor, mask: Tensor, size: int) -> Tensor:
    """Return the sets of tokens ``[n, vocab]`` of padded texts: 1 for a token that occurs."""
    sets = torch.zeros((len(ids), size), device=ids.device)
    return sets.scatter_reduce_(1, ids, mask.float(), reduce="amax")


def read_query_weights(place: Path, size: int) -> Tensor:
    """Read the weights of a ``SparseStaticEmbedding`` folder, filled with 0 up to ``size``."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = place / WEIGHTS
    if not file.exists():
        refuse_pickle(place.resolve().parent, [place / PICKLED])
    try:
        weights = load_file(file)["weight"].float()
    except (OSError, KeyError, SafetensorError) as error:
        raise ModelError(
            f"{file}: no query weights ({error}); expected a tensor named weight"
        ) from None
    if weights.ndim != 1 or len(weights) > size:
        raise ModelError(f"{file}: weight is {list(weights.shape)}, expected at most [{size}]")
    if not torch.isfinite(weights).all():
        raise ModelError(f"{file}: a query weight is not a finite number; the file is damaged")
    return torch.cat([weights, torch.zeros(size - len(weights))])


def read_idf_json(path: Path, tokenizer: Any, size: int) -> Tensor:
    """Read a JSON object of token to weight (``idf.json``); tokens it lacks weigh 0."""
    weights = torch.zeros(size)
    known = tokenizer.get_vocab()
    for token, value in read_object(path).items():
        if not is_number(value):
            raise ModelError(f"{path}: {token!r} weighs {value!r}, expected a finite number")
        if token in known and known[token] < size:
            weights[known[token]] = float(value)
    return weights


def write_query_weights(place: Path, queries: StaticQueries, tokenizer: Any, length: int) -> None:
    """Write a ``SparseStaticEmbedding`` folder; queries are cut at ``length`` tokens.

    That length is without special tokens: the module adds none.
    """
    from safetensors.torch import save_file

    place.mkdir()
    usual = tokenizer.model_max_length
    try:
        tokenizer.model_max_length = max(1, length)
        tokenizer.save_pretrained(place)
    finally:
        tokenizer.model_max_length = usual
    weights = queries.table().detach()[: len(tokenizer.get_vocab())].cpu().contiguous()
    save_file({"weight": weights}, place / WEIGHTS, {"format": "pt"})
    write_json(place / "config.json", {"frozen": not queries.weights.requires_grad})
