"""Where a ranker's token vectors are from: a transformer's states, a token encoder, or a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.encoder import Side
from sluice.encoders.foundation.build import check_arguments, resolve
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.token_counts import counting_tokens, report_tokens
from sluice.encoders.model_files.registry import kind_of
from sluice.encoders.rerankers.matching.texts import OneText, Texts, aligned
from sluice.encoders.table import ENCODERS
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.token_states import special_ids
from sluice.encoders.transformer.tokens import TokenBatch, Tokens, token_batches

Vectors = Literal["states", "table"]
TABLE_TOKENS = 65_536  # looked up together


class TokenSource(ABC):
    """The own tokens of texts and their vectors, by an encoder of ours.

    Special tokens, a prompt's and padding are left out, so a text may have none. ``vectors`` is
    what YAML calls them.
    """

    vectors: ClassVar[Vectors] = "states"

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.module: nn.Module = encoder.module.eval()

    @property
    @abstractmethod
    def dim(self) -> int:
        """The number of dimensions of a token's vector."""

    @abstractmethod
    def embed(self, ids: Tensor, mask: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
        """Return vectors ``[n, L, dim]``, ids and which tokens are the texts' own, both ``[n, L]``.

        ``ids`` and ``mask`` ``[n, length]`` are texts as ``token_ids`` returns them, padded.
        """

    @abstractmethod
    def arithmetic(self) -> AbstractContextManager[Any]:
        """Return the context that encodes without gradients."""

    @property
    def budget(self) -> int:
        """The tokens of one pass."""
        return TABLE_TOKENS

    def token_ids(self, texts: Sequence[str], side: Side) -> list[list[int]]:
        """Return the ids of all tokens that the encoder reads of each text."""
        ids: list[list[int]] = self.encoder.token_ids(texts, side)
        return ids

    def texts(self, ids: Tensor, mask: Tensor, side: Side) -> Texts:
        """Return padded texts as ``Texts``, with gradients where there are any."""
        return aligned(*self.embed(ids, mask, side))

    def encode(self, texts: Sequence[str], side: Side) -> list[OneText]:
        """Return texts one by one, without gradients."""
        device = self.encoder.device
        nothing = OneText(
            torch.zeros((0, self.dim), device=device),
            torch.zeros(0, dtype=torch.long, device=device),
        )
        found = [nothing] * len(texts)
        ids = [np.array(text, np.int32) for text in self.token_ids(texts, side)]
        with self.arithmetic():
            for batch in token_batches(Tokens(ids, None), self.budget, padded=True):
                padded = nn.utils.rnn.pad_sequence(
                    [torch.from_numpy(text.astype(np.int64)) for text in batch.ids],
                    batch_first=True,
                )
                lengths = torch.tensor(batch.lengths)
                mask = torch.arange(padded.shape[1]) < lengths.unsqueeze(1)
                made = self.texts(padded.to(device), mask.to(device), side)
                for row, place in enumerate(batch.rows.tolist()):
                    own = int(made.lengths[row])
                    found[place] = OneText(made.vectors[row, :own], made.ids[row, :own])
        return found


class States(TokenSource):
    """The last layer's states of a dense encoder's transformer."""

    def __init__(self, encoder: Any) -> None:
        super().__init__(encoder)
        self._special = torch.tensor(special_ids(encoder.tokenizer), device=encoder.device)

    @property
    def dim(self) -> int:
        """The width of a state."""
        return int(self.encoder.state_width)

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Return the encoder's own."""
        context: AbstractContextManager[Any] = self.encoder.arithmetic()
        return context

    def embed(self, ids: Tensor, mask: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
        """Return states, ids and which tokens are the texts' own."""
        states = self.encoder.hidden({"input_ids": ids, "attention_mask": mask.long()})
        places = torch.arange(ids.shape[1], device=ids.device)
        own = mask & ~torch.isin(ids, self._special) & (places >= self._prompt(side))
        return states, ids, own

    def _prompt(self, side: Side) -> int:
        return int(self.encoder.prompt_tokens[side])

    def encode(self, texts: Sequence[str], side: Side) -> list[OneText]:
        """Return texts one by one, by passes without padding."""
        device = self.encoder.device
        empty = OneText(torch.zeros((0, self.dim), device=device), self._special[:0])
        found = [empty] * len(texts)

        def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
            states = functional.normalize(self.encoder.output(batch, network).float(), dim=-1)
            for row, ids, vectors in zip(
                batch.rows.tolist(), batch.ids, torch.split(states, batch.lengths), strict=True
            ):
                all_ids = torch.from_numpy(ids.astype(np.int64)).to(device)
                own = ~torch.isin(all_ids, self._special)
                own[: self._prompt(side)] = False
                found[row] = OneText(vectors[own], all_ids[own])

        self.encoder.map_texts(texts, side, store)
        return found


class TokenModel(TokenSource):
    """The vectors of a token encoder, as it was trained to give them; documents are not pooled."""

    @property
    def dim(self) -> int:
        """The width of a token's vector."""
        return int(self.encoder.dim)

    @property
    def budget(self) -> int:
        """The tokens of one pass."""
        return int(self.encoder.batch_tokens)

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Return the encoder's own."""
        context: AbstractContextManager[Any] = self.encoder.arithmetic()
        return context

    def token_ids(self, texts: Sequence[str], side: Side) -> list[list[int]]:
        """Return the ids of all tokens, and report how many are cut."""
        tokens = self.encoder.tokens(texts, side)
        report_tokens(tokens.counts)
        return [ids.tolist() for ids in tokens.ids]

    def embed(self, ids: Tensor, mask: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
        """Return vectors, ids and which tokens have vectors; queries are filled up."""
        added = max(0, self.encoder.expand_to - ids.shape[1]) if side == "query" else 0
        features = {
            "input_ids": functional.pad(ids, (0, added)),
            "attention_mask": functional.pad(mask.long(), (0, added)),
        }
        vectors = self.encoder.embed(features, side)
        return vectors, features["input_ids"], self.encoder.scored(features, side)


class Table(TokenSource):
    """The rows of a static encoder's table."""

    vectors: ClassVar[Vectors] = "table"

    def __init__(self, encoder: Any) -> None:
        super().__init__(encoder)
        sides: tuple[Side, ...] = ("query", "document")
        self._prompts = {side: len(encoder.token_ids([""], side)[0]) for side in sides}

    @property
    def dim(self) -> int:
        """The width of the table."""
        return int(self.encoder.table.embedding_dim)

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Return torch's own context without gradients."""
        context: AbstractContextManager[Any] = torch.inference_mode()
        return context

    def embed(self, ids: Tensor, mask: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, ids and which tokens are the texts' own."""
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.encoder.table(ids), ids, mask & (places >= self._prompts[side])


SOURCES: dict[str, type[TokenSource]] = {"dense": States, "tokens": TokenModel, "static": Table}


def source_in(folder: Path, vectors: Vectors | None, options: dict[str, Any]) -> TokenSource:
    """Open the encoder of a folder for its token vectors; ``options`` are of its factory.

    Options of None are left out. ``vectors``: ``states`` of a transformer (None), or the ``table``
    of its input embeddings alone, as which a static encoder is read.
    """
    kind = kind_of(folder)
    if kind not in SOURCES:
        raise ModelError(
            f"{folder}: a model of type {kind}; expected a dense, static or token encoder, whose "
            "tokens have vectors"
        )
    given = {name: value for name, value in options.items() if value is not None}
    if kind == "dense":
        given["backend"] = "torch"  # an exported graph has no embeddings, and gives no gradients
    if vectors == "states" and kind == "static":
        raise ConfigError("vectors: states; a static encoder has a table alone: leave vectors out")
    if vectors == "table" and kind == "tokens":
        raise ConfigError(
            "vectors: table; a token encoder's are made by its network: leave vectors out, or name "
            "a dense or static encoder"
        )
    for name in ("dtype", "batch_tokens") if vectors == "table" and kind == "dense" else ():
        if name in given:
            raise ConfigError(
                f"{name}: is of a network, and vectors: table runs none; leave it out"
            )
    make = resolve(ENCODERS[kind])
    check_arguments(make, {"model": str(folder), **given}, where="model", kind=f"{kind} encoder")
    encoder = make(folder, **given)
    if vectors == "table" and kind == "dense":
        encoder, kind = _table_of(encoder), "static"
    return SOURCES[kind](encoder)


def quietly(source: TokenSource, texts: Sequence[str], side: Side) -> list[OneText]:
    """Encode without a report of what is cut, which is about the documents."""
    with counting_tokens():
        return source.encode(texts, side)


def _table_of(encoder: Any) -> Any:
    """Return a static encoder of a transformer's input embeddings."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from sluice.encoders.dense.static.encoder import StaticEncoder

    tokenizer: Any = encoder.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"{type(tokenizer).__name__}: not one of the tokenizers package, as a table of "
            "token vectors needs; use vectors: states"
        )
    plain = Tokenizer.from_str(backend.to_str())
    plain.post_processor = None
    table = encoder.model.get_input_embeddings().weight.detach().clone().float()
    return StaticEncoder(
        table,
        PreTrainedTokenizerFast(tokenizer_object=plain),
        query_length=encoder.lengths["query"],
        document_length=encoder.lengths["document"],
        device=str(encoder.device),
    )
