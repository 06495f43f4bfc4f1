"""Three encoders of one transformer: a dense vector, term weights, and token vectors."""

from __future__ import annotations

import functools
import json
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Unpack

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from sluice.encoders.encoder import Dense, EncoderBase, Side, Vectors
from sluice.encoders.foundation.disk.files import file_hash, fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.model_files.layout import SIDECAR, read_sidecar
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import TextOptions, takes_options
from sluice.encoders.own.three_heads.trunk import HEADS, Head, Part, Trunk
from sluice.encoders.transformer.model import Features

# The transformers that heads were opened of; let go with the last head.
_OPEN: weakref.WeakValueDictionary[object, Trunk] = weakref.WeakValueDictionary()


class HeadEncoder(EncoderBase, ABC):
    """One head of a ``ThreeHeadEncoder``, for indexing and search.

    It is trained with the others, by the loss ``three_heads`` alone: what is embedded for training
    are the vectors of all heads.
    """

    kind = "three_heads"
    head: ClassVar[Head]
    head_parameters = Trunk.head_parameters

    def __init__(self, trunk: Trunk) -> None:
        self.trunk = trunk
        trunk.ask(self.head)

    @classmethod
    @takes_options(TextOptions)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        head: Annotated[
            str | None,
            "dense, sparse (term weights) or tokens; left out, the one the folder was saved with.",
        ] = None,
        dim: Annotated[
            int | None, "Draws new heads for a model without any: dimensions of its token vectors."
        ] = None,
        seed: Annotated[int | None, "The seed of the heads that dim draws (13)."] = None,
        **options: Unpack[TextOptions],
    ) -> HeadEncoder:
        """Open one head of a model with three: dense, sparse (term weights) or tokens.

        ``head`` is the one the folder was saved with, if left out. Heads opened with the same
        settings share one model, and the passes through it. With ``dim`` a model without heads
        gets new ones, token vectors of so many dimensions, drawn by ``seed`` (13): train them.
        """
        folder = model_folder(str(model))
        named = read_sidecar(folder).get("head") if head is None else head
        if named not in HEADS:
            known = ", ".join(HEADS)
            if named is None:
                raise ConfigError(f"head: missing; {model} has three: {known}; give one of them")
            raise ConfigError(f"head: {named!r}; known: {known}{suggest(str(named), HEADS)}")
        key = (_content_of(folder), dim, seed, *options.values())
        trunk = _OPEN.get(key)
        if trunk is None:
            trunk = Trunk.from_pretrained(folder, dim=dim, seed=seed, **options)
            _OPEN[key] = trunk
        return _VIEWS[named](trunk)

    @property
    def fingerprint(self) -> str:
        """A hash of weights, tokenizer, prompts and lengths, and of the head."""
        return fingerprint_of(self.trunk.fingerprint, self.head)

    @property
    def views(self) -> Sequence[HeadEncoder]:
        """The other heads that were opened: what this one encodes is in the memo for them."""
        return [_VIEWS[head](self.trunk) for head in self.trunk.asked if head != self.head]

    @property
    def module(self) -> Any:
        """The parameters of the transformer and all heads; heads opened later share them not."""
        for key, trunk in list(_OPEN.items()):
            if trunk is self.trunk:  # they may be trained from now on
                del _OPEN[key]
        return self.trunk.module

    @property
    def model(self) -> Any:
        """The transformer."""
        return self.trunk.model

    def tokenize(self, texts: Sequence[str], side: Side) -> Features:
        """Return the padded features of a batch, ready for ``embed``."""
        return self.trunk.tokenize(texts, side)

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return the vectors of all heads, with gradients: see ``three_heads.packing``."""
        return self.trunk.embed(features, side)

    @property
    def device(self) -> Any:
        """Where it computes."""
        return self.trunk.device

    @property
    def dtype(self) -> Any:
        """Its arithmetic type."""
        return self.trunk.dtype

    @property
    def batch_tokens(self) -> int:
        """The tokens of one pass."""
        return self.trunk.batch_tokens

    @property
    def tokenizer(self) -> Any:
        """The transformer's tokenizer."""
        return self.trunk.tokenizer

    @property
    def prompts(self) -> Mapping[str, str]:
        """What is put before a text of each side."""
        return self.trunk.prompts

    @property
    def lengths(self) -> Mapping[str, int]:
        """The most tokens of a text of each side."""
        return self.trunk.lengths

    def token_ids(self, texts: Sequence[str], side: Side) -> list[list[int]]:
        """Return token ids as lists."""
        return self.trunk.token_ids(texts, side)

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """Return the queries' vectors, in input order."""
        return self.joined(self._parts(texts, "query"))

    def encode_documents(self, texts: Sequence[str]) -> Any:
        """Return the documents' vectors, in input order."""
        return self.joined(self._parts(texts, "document"))

    def _parts(self, texts: Sequence[str], side: Side) -> list[Part]:
        if isinstance(texts, str):
            raise DataError("texts: a single str; expected several texts: put it into a list")
        return self.trunk.parts(texts, side, self.head)

    @abstractmethod
    def joined(self, parts: list[Part]) -> Vectors:
        """Return the vectors of texts from what the head made of each."""

    def save_pretrained(self, path: str | Path) -> None:
        """Write the whole encoder, which is opened again as this head."""
        self.trunk.save_pretrained(path, self.head)


class DenseHead(HeadEncoder):
    """The first token's state, of length 1."""

    head = "dense"
    similarity: Literal["cosine"] = "cosine"
    normalize = True

    @property
    def dim(self) -> int:
        """The number of dimensions."""
        return self.trunk.state_width

    def joined(self, parts: list[Part]) -> Dense:
        """Return float32 ``[n, dim]``; a text without tokens is zeros."""
        vectors = np.zeros((len(parts), self.dim), np.float32)
        for row, part in enumerate(parts):
            if part:
                vectors[row] = part[0]
        return vectors


class SparseHead(HeadEncoder):
    """Weights of the terms of a text."""

    head = "sparse"
    similarity: Literal["dot"] = "dot"

    @property
    def dim(self) -> int:
        """The size of the vocabulary."""
        return self.trunk.vocabulary_size

    def joined(self, parts: list[Part]) -> sp.csr_array:
        """Return float32 ``[n, vocabulary]``."""
        terms = [part[0] if part else np.zeros(0, np.int32) for part in parts]
        weights = [part[1] if part else np.zeros(0, np.float32) for part in parts]
        bounds = np.cumsum([0, *map(len, terms)])
        none = np.zeros(0, np.float32)
        return sp.csr_array(
            (
                np.concatenate([none, *weights]),
                np.concatenate([none.astype(np.int32), *terms]),
                bounds,
            ),
            shape=(len(parts), self.dim),
        )

    def terms(self, columns: Sequence[int]) -> list[str]:
        """Return the tokens of columns; a column without a token is ``[column]``."""
        tokens = self.tokenizer.convert_ids_to_tokens([int(column) for column in columns])
        named = zip(columns, tokens, strict=True)
        return [f"[{column}]" if token is None else str(token) for column, token in named]


class TokenHead(HeadEncoder):
    """A vector of length 1 for each token but the first."""

    head = "tokens"
    similarity: Literal["max_sim"] = "max_sim"
    normalize = True

    @property
    def dim(self) -> int:
        """The number of dimensions."""
        return int(self.trunk.token_head.out_features)

    def joined(self, parts: list[Part]) -> TokenVectors:
        """Return the texts' token vectors."""
        none = np.zeros((0, self.dim), np.float32)
        return TokenVectors.of([part[0] if part else none for part in parts], self.dim)


_VIEWS: Mapping[Head, type[HeadEncoder]] = {
    "dense": DenseHead, "sparse": SparseHead, "tokens": TokenHead,
}  # fmt: skip


class ThreeHeadEncoder:
    """A transformer with three heads: ``dense``, ``sparse`` and ``tokens``, each an encoder.

    The dense vector is the first token's state, normalised. The sparse head gives each token the
    weight ``relu(w h + b)``, a term the greatest of its tokens'; special tokens have none. Token
    vectors are ``W h + b`` of all tokens but the first, normalised. (Chen et al., 2024, BGE-M3,
    arXiv 2402.03216, section 3.2.)

    The heads share the passes: texts that one of them encoded another finds in a memo of the last
    texts, of at most 256 MB.
    """

    def __init__(self, trunk: Trunk) -> None:
        self.trunk = trunk

    @classmethod
    def from_pretrained(cls, model: str | Path, **options: Any) -> ThreeHeadEncoder:
        """Load a folder in BGE-M3's layout, its heads in safetensors; options as for one head."""
        return cls(Trunk.from_pretrained(model, **options))

    @property
    def dense(self) -> DenseHead:
        """The encoder of dense vectors."""
        return DenseHead(self.trunk)

    @property
    def sparse(self) -> SparseHead:
        """The encoder of term weights."""
        return SparseHead(self.trunk)

    @property
    def tokens(self) -> TokenHead:
        """The encoder of token vectors."""
        return TokenHead(self.trunk)

    def save_pretrained(self, path: str | Path) -> None:
        """Write a sentence-transformers folder of the dense head, and the others' beside it."""
        self.trunk.save_pretrained(path)


def _content_of(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the files of a model folder with hashes, and what its sidecar says of all heads.

    Each retriever that is saved has a copy of the model: equal copies are opened once.
    """
    files = [path for path in folder.iterdir() if path.is_file() and path.name != SIDECAR]
    states = [(path, path.stat()) for path in sorted(files)]
    noted = {key: value for key, value in read_sidecar(folder).items() if key != "head"}
    hashes = [
        (path.name, _hash_of(path.resolve(), state.st_size, state.st_mtime_ns))
        for path, state in states
    ]
    return *hashes, (SIDECAR, json.dumps(noted, sort_keys=True))


@functools.lru_cache(maxsize=512)
def _hash_of(path: Path, size: int, modified: int) -> str:
    """Return a file's hash, computed again when size or time have changed."""
    return file_hash(path)
