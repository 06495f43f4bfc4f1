"""Where a ranker's token vectors are from: a transformer's states, a token encoder, or a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.dense.static.encoder import StaticEncoder
from sluice.encoders.encoder import Side
from sluice.encoders.foundation.build import check_arguments, resolve
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.tokens import counting_tokens, report_tokens
from sluice.encoders.late_interaction.encoder import TokenEncoder
from sluice.encoders.model_files.registry import kind_of
from sluice.encoders.table import ENCODERS
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import special_ids
from sluice.encoders.transformer.tokens import TokenBatch, Tokens, token_batches
from sluice.encoders.tuning.learning import learning_of

NO_TOKEN = -1  # the id where a text has ended


class OneText(NamedTuple):
    """The unit vectors ``[length, dim]`` and the ids ``[length]`` of one text's own tokens."""

    vectors: Tensor
    ids: Tensor


class Texts(NamedTuple):
    """Several texts: ``vectors`` ``[n, longest, dim]``, ``ids`` ``[n, longest]``, ``lengths``.

    Vectors have length 1; beyond a text's length they are zeros, and ids ``NO_TOKEN``. There is
    room for one token at least, so that nothing has a width of zero.
    """

    vectors: Tensor
    ids: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """Where there are tokens, bool ``[n, longest]``."""
        places = torch.arange(self.ids.shape[1], device=self.ids.device)
        return places < self.lengths.unsqueeze(1)

    def rows(self, places: Tensor) -> Texts:
        """Return some of the texts, which may repeat."""
        return Texts(*(part[places] for part in self))


class Pairs(NamedTuple):
    """n queries, and as many documents to score for them."""

    queries: Texts
    documents: Texts

    @property
    def mask(self) -> Tensor:
        """Where a query's token meets a document's, bool ``[n, queries' longest, documents']``."""
        return self.queries.mask.unsqueeze(2) & self.documents.mask.unsqueeze(1)

    def cosines(self) -> Tensor:
        """Return the cosine of each query token with each document token, 0 where is none."""
        return self.queries.vectors @ self.documents.vectors.transpose(1, 2)


def aligned(vectors: Tensor, ids: Tensor, own: Tensor) -> Texts:
    """Return texts of the tokens ``own`` ``[n, length]`` alone, moved together, of unit length."""
    lengths = own.sum(1)
    width = max(1, int(lengths.max())) if len(lengths) else 1
    order = torch.argsort((~own).to(torch.int8), dim=1, stable=True)[:, :width]
    mask = torch.arange(width, device=ids.device) < lengths.unsqueeze(1)
    chosen = vectors.gather(1, order.unsqueeze(2).expand(-1, -1, vectors.shape[2])).float()
    unit = functional.normalize(chosen, dim=-1) * mask.unsqueeze(2)
    return Texts(unit, ids.gather(1, order).masked_fill(~mask, NO_TOKEN), lengths)


def stacked(texts: Sequence[OneText]) -> Texts:
    """Return single texts side by side."""
    lengths = torch.tensor([len(text.ids) for text in texts], device=texts[0].ids.device)
    vectors = nn.utils.rnn.pad_sequence([text.vectors for text in texts], batch_first=True)
    ids = nn.utils.rnn.pad_sequence(
        [text.ids for text in texts], batch_first=True, padding_value=NO_TOKEN
    )
    missing = 1 - min(1, ids.shape[1])
    return Texts(
        functional.pad(vectors, (0, 0, 0, missing)),
        functional.pad(ids, (0, missing), value=NO_TOKEN),
        lengths,
    )


class Gate(nn.Module):
    """``softmax_i(w v_i)`` over the vectors of a text's tokens; zeros for a text without any.

    (Guo et al., 2016, DRMM, eq. 4, with the term's vector as its input, which needs no statistics
    of a corpus.)
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Linear(dim, 1, bias=False)

    def forward(self, texts: Texts) -> Tensor:
        """Return ``[n, longest]``."""
        logits = self.weight(texts.vectors).squeeze(-1)
        # Finite, as a softmax over nothing but -inf is NaN, and so would be its gradient.
        hidden = logits.masked_fill(~texts.mask, torch.finfo(logits.dtype).min)
        return torch.softmax(hidden, dim=1) * texts.mask


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


SOURCES: dict[str, type[TokenSource]] = {
    DenseEncoder.kind: States, TokenEncoder.kind: TokenModel, StaticEncoder.kind: Table,
}  # fmt: skip


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
    runs = kind == DenseEncoder.kind
    if runs:
        given["backend"] = "torch"  # an exported graph has no embeddings, and gives no gradients
    if vectors == "states" and learning_of(kind).untuned:
        raise ConfigError("vectors: states; a static encoder has a table alone: leave vectors out")
    if vectors == "table" and kind == TokenEncoder.kind:
        raise ConfigError(
            "vectors: table; a token encoder's are made by its network: leave vectors out, or name "
            "a dense or static encoder"
        )
    for name in ("dtype", "batch_tokens") if vectors == "table" and runs else ():
        if name in given:
            raise ConfigError(
                f"{name}: is of a network, and vectors: table runs none; leave it out"
            )
    make = resolve(ENCODERS[kind])
    check_arguments(make, {"model": str(folder), **given}, where="model", kind=f"{kind} encoder")
    encoder = make(folder, **given)
    if vectors == "table" and runs:
        encoder, kind = _table_of(encoder), StaticEncoder.kind
    return SOURCES[kind](encoder)


def quietly(source: TokenSource, texts: Sequence[str], side: Side) -> list[OneText]:
    """Encode without a report of what is cut, which is about the documents."""
    with counting_tokens():
        return source.encode(texts, side)


def _table_of(encoder: Any) -> Any:
    """Return a static encoder of a transformer's input embeddings."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

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
