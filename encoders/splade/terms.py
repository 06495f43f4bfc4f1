"""The terms of SPLADE vectors: a query's without a network, and those that stay, counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn, zeros_like

from sluice.encoders.encoder import Side
from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.model_files.layout import read_object
from sluice.encoders.model_files.router import STATIC
from sluice.encoders.model_files.weights.files import PICKLED, WEIGHTS, refuse_pickle
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder
from sluice.encoders.transformer.tokens import Ids, TokenBatch

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


Terms: TypeAlias = NDArray[np.int32]
Weights: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TermSelection:
    """The selection of terms on one side of a SPLADE encoder, in this order.

    ``lexical`` keeps the text's own tokens (no expansion), ``below`` drops weights below a value,
    ``ratio`` those below a share of the vector's largest, ``top_k`` all but the heaviest (ties: the
    lower term). The two methods agree: one is for training, one for encoding.
    """

    lexical: bool = False
    below: float | None = None
    ratio: float | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        if self.below is not None and not (is_number(self.below) and self.below > 0):
            raise ConfigError(f"prune_below: {self.below!r}; expected a weight above 0")
        if self.ratio is not None and not (is_number(self.ratio) and 0 < self.ratio <= 1):
            raise ConfigError(f"prune_ratio: {self.ratio!r}; expected a share above 0, at most 1")

    def of_batch(self, vectors: Tensor, bags: Tensor | None) -> Tensor:
        """Return vectors ``[n, vocab]`` with the other terms at 0, and gradients of the selected.

        ``bags`` ``[n, vocab]`` holds 1 for a text's own tokens; it is read only for ``lexical``.
        """
        if self.lexical and bags is not None:
            vectors = vectors * bags
        if self.below is not None:
            vectors = vectors * (vectors.detach() >= self.below)
        if self.ratio is not None:
            largest = vectors.detach().amax(dim=1, keepdim=True)
            vectors = vectors * (vectors.detach() >= largest * self.ratio)
        return vectors if self.top_k is None else keep_top(vectors, self.top_k)

    def of_text(self, terms: Terms, weights: Weights, bag: Ids | None) -> tuple[Terms, Weights]:
        """Return the selected terms of one text, ascending, and weights; ``bag`` is its tokens."""
        if self.lexical and bag is not None:
            own = np.isin(terms, bag)
            terms, weights = terms[own], weights[own]
        if self.below is not None:
            heavy = weights >= np.float32(self.below)
            terms, weights = terms[heavy], weights[heavy]
        if self.ratio is not None and len(weights):
            heavy = weights >= weights.max() * np.float32(self.ratio)
            terms, weights = terms[heavy], weights[heavy]
        return heaviest(terms, weights, self.top_k)


def selections(lexical: str, query_top_k: int | None, *others: Any) -> dict[str, TermSelection]:
    """Return the selection of each side; ``others`` are the limits of documents, in order."""
    return {
        "query": TermSelection(lexical in ("query", "both"), top_k=query_top_k),
        "document": TermSelection(lexical in ("document", "both"), *others),
    }


def keep_top(vectors: Tensor, limit: int) -> Tensor:
    """Keep the ``limit`` largest weights of each row and zero the rest; ties: the lower column."""
    if limit < 1:
        raise ConfigError(f"top_k: {limit}; expected 1 or more, or null for no limit")
    if limit >= vectors.shape[1]:
        return vectors
    order = vectors.detach().sort(dim=1, descending=True, stable=True).indices[:, :limit]
    return vectors * zeros_like(vectors).scatter_(1, order, 1.0)


def heaviest(terms: Terms, weights: Weights, limit: int | None) -> tuple[Terms, Weights]:
    """Keep the ``limit`` heaviest terms of one text, in order of term; ties: the lower term."""
    if limit is None or len(terms) <= limit:
        return terms, weights
    top = np.sort(np.lexsort((terms, -weights))[:limit])
    return terms[top], weights[top]


def joined_rows(terms: list[Terms], weights: list[Weights], width: int) -> sp.csr_array:
    """Return the terms and weights of each text as the rows of one matrix ``[n, width]``."""
    pointers = np.zeros(len(terms) + 1, np.int64)
    np.cumsum([len(t) for t in terms], out=pointers[1:])
    indices = np.concatenate(terms).astype(np.int32) if terms else np.empty(0, np.int32)
    data = np.concatenate(weights) if weights else np.empty(0, np.float32)
    return sp.csr_array((data, indices, pointers), shape=(len(terms), width))


def sparse_rows(
    encoder: TextEncoder,
    texts: Sequence[str],
    side: Side,
    weigh: Callable[[TokenBatch, PackedTransformer | None], Tensor],
) -> sp.csr_array:
    """Return the vectors ``[n, encoder.dim]`` of texts, in input order.

    ``weigh`` makes those of a batch, dense ``[rows, encoder.dim]``.
    """
    terms: list[Terms] = [np.empty(0, np.int32)] * len(texts)
    weights: list[Weights] = [np.empty(0, np.float32)] * len(texts)

    def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
        matrix = sp.csr_array(weigh(batch, network).cpu().numpy())
        for place, row in enumerate(batch.rows):
            own = slice(matrix.indptr[place], matrix.indptr[place + 1])
            terms[row], weights[row] = matrix.indices[own], matrix.data[own]

    encoder.map_texts(texts, side, store)
    return joined_rows(terms, weights, int(encoder.dim or 0))


def prune_terms(vectors: sp.csr_array, floors: NDArray[np.float32]) -> sp.csr_array:
    """Return the vectors without weights below their term's floor, ``floors`` ``[vocab]``.

    With a quantile q of each term's weights as its floor, a term loses about the share q of its
    postings, the lightest, and keeps its heaviest. What is left can go to any index; scores are
    sums over fewer terms, so they only fall.
    """
    if floors.shape != (vectors.shape[1],):
        raise ConfigError(
            f"floors: {list(floors.shape)}, expected one weight per term [{vectors.shape[1]}]"
        )
    heavy = vectors.data >= floors[vectors.indices]
    ends = np.concatenate([[0], np.cumsum(heavy)])[vectors.indptr]
    parts = vectors.data[heavy], vectors.indices[heavy], ends.astype(vectors.indptr.dtype)
    return sp.csr_array(parts, shape=vectors.shape)


KEYS = ("k1", "b", "length")


@dataclass(frozen=True, slots=True)
class TermFrequency:
    """Factors ``tf (1 + k1) / (tf + k1 (1 - b + b dl / length))`` of a document's term weights.

    ``tf`` is how often the term stands among the ``dl`` tokens that are read, special ones not
    counted, and 1 for terms of expansion; a term that stands once in a document of ``length``
    tokens keeps its weight. It is BM25's document weight with a fixed average length (Robertson and
    Zaragoza, 2009), so that binary weights times idf queries are BM25 over word pieces.
    """

    k1: float = 0.9
    b: float = 0.4
    length: float = 128.0

    def __post_init__(self) -> None:
        if not (is_number(self.k1) and self.k1 >= 0):
            raise ConfigError(f"term_frequency.k1: {self.k1!r}; expected a number above 0")
        if self.k1 == 0:
            raise ConfigError(
                "term_frequency.k1: 0 leaves every weight as it is; expected a number above 0, or "
                "leave term_frequency out"
            )
        if not (is_number(self.b) and 0 <= self.b <= 1):
            raise ConfigError(f"term_frequency.b: {self.b!r}; expected 0 to 1")
        if not (is_number(self.length) and self.length >= 1):
            raise ConfigError(f"term_frequency.length: {self.length!r}; expected 1 token or more")

    @classmethod
    def from_config(cls, config: bool | Mapping[str, Any]) -> TermFrequency | None:
        """Read ``true``, ``false`` or the settings; ``ConfigError`` for others."""
        if isinstance(config, bool):
            return cls() if config else None
        if not isinstance(config, Mapping):
            raise ConfigError(
                f"term_frequency: {config!r}; expected true, or some of {', '.join(KEYS)}"
            )
        for key in config:
            if key not in KEYS:
                raise ConfigError(
                    f"term_frequency.{key}: unknown; known: {', '.join(KEYS)}"
                    f"{suggest(str(key), KEYS)}"
                )
        return cls(**config)

    def of_batch(self, ids: Tensor, mask: Tensor, special: Tensor, size: int) -> Tensor:
        """Return the factors ``[n, size]`` of padded texts ``[n, length]``."""
        own = mask.bool() & ~torch.isin(ids, special.to(ids.device))
        counts = torch.zeros((len(ids), size), device=ids.device)
        counts.scatter_add_(1, ids, own.float())
        tokens = own.sum(1, keepdim=True).float()
        damping = self.k1 * (1 - self.b + self.b * tokens / self.length)
        counts = counts.clamp(min=1)
        return counts * (1 + self.k1) / (counts + damping)

    def of_text(self, terms: Terms, ids: Ids) -> NDArray[np.float32]:
        """Return the factor of each of one text's terms, ascending; ``ids`` are its own tokens."""
        own, counts = np.unique(ids, return_counts=True)
        places = np.searchsorted(own, terms)
        places[places == len(own)] = 0
        tf = np.ones(len(terms), np.float32)
        if len(own):
            tf = np.where(own[places] == terms, counts[places], 1).astype(np.float32)
        damping = np.float32(self.k1 * (1 - self.b + self.b * len(ids) / self.length))
        factors: NDArray[np.float32] = tf * np.float32(1 + self.k1) / (tf + damping)
        return factors
