"""The base of dense and SPLADE encoders: a network, a prompt and a length for each side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.encoder import Dense, EncoderBase, Side
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.model_files.layout import write_dense
from sluice.encoders.model_files.loading import lengths_of, lowers, save
from sluice.encoders.model_files.options import Computing
from sluice.encoders.model_files.prompts import look_for_prompts
from sluice.encoders.transformer.model import Features, TransformerModel
from sluice.encoders.transformer.packed.attention import spans
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.tokens import TokenBatch, Tokens, check_texts, token_offsets
from sluice.encoders.transformer.vector_layers import VectorLayer, kinds_of, write_layers

if TYPE_CHECKING:
    from torch import Tensor

    from sluice.encoders.transformer.packed.model import PackedTransformer
    from sluice.encoders.transformer.tokens import TokenBatch


Part: TypeAlias = Sequence[tuple[int, int]]  # characters [start, end) of a text, in several places
Parts: TypeAlias = Sequence[Part | None]  # of one text


def encode_parts(
    encoder: TextEncoder,
    texts: Sequence[str],
    parts: Sequence[Parts],
    *,
    dim: int,
    vectors_of: Callable[[Tensor], Tensor],
    unpooled: int,
) -> Dense:
    """Return the vectors of each document's parts, one after the other, float32 ``[parts, dim]``.

    A text passes the model once. A part's vector is the mean of the states of its own tokens, and
    of those that every text has: special tokens, and the prompt where it is pooled. A part of None
    is the whole text, whose vector is that of ``encode_documents``. ``vectors_of`` makes vectors
    ``[n, dim]`` of means; the first ``unpooled`` tokens of a text are in none.
    """
    counts = np.array([len(of) for of in parts], np.int64)
    starts = np.cumsum(counts) - counts
    vectors = np.zeros((int(counts.sum()), dim), np.float32)
    prompt = encoder.prompts["document"]

    def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
        states = encoder.output(batch, network).float()
        chosen = [prompt + texts[row] for row in batch.rows.tolist()]
        offsets = token_offsets(encoder.tokenizer, chosen, length=encoder.lengths["document"])
        ends = np.cumsum(batch.lengths)
        for row, end, places in zip(batch.rows.tolist(), ends.tolist(), offsets, strict=True):
            own = states[end - len(places) : end]
            masks = _masks(np.array(places), parts[row], len(prompt), unpooled)
            weights = torch.from_numpy(masks).to(own)
            with torch.autocast(own.device.type, enabled=False):  # sums are in float32
                means = (weights @ own) / weights.sum(dim=1, keepdim=True).clamp(min=1.0)
            made = vectors_of(means).float().cpu().numpy()
            vectors[starts[row] : starts[row] + counts[row]] = made

    encoder.map_texts(texts, "document", store)
    return vectors


def _masks(
    places: NDArray[np.int64], parts: Parts, before: int, unpooled: int
) -> NDArray[np.float32]:
    """Return which tokens are pooled ``[parts, tokens]``; ``before`` is the prompt's length."""
    starts, ends = places[:, 0] - before, places[:, 1] - before
    every = (places[:, 1] == 0) | (ends <= 0)  # special tokens stand nowhere
    masks = np.zeros((len(parts), len(places)), np.float32)
    for mask, part in zip(masks, parts, strict=True):
        mask[every if part is not None else slice(None)] = 1.0
        for start, end in part or ():
            mask[(starts < end) & (ends > start)] = 1.0
        own = mask.copy()
        own[:unpooled] = 0.0
        if own.any():  # else only the prompt is left, as where the text is empty
            mask[:] = own
    return masks


def refuse_two_stacks(network: Any, folder: Path, encoder: str) -> None:
    """Raise ``ModelError`` for a network of an encoder and a decoder."""
    if network.config.is_encoder_decoder:
        raise ModelError(
            f"{folder}: {type(network).__name__} has an encoder and a decoder; a {encoder} needs "
            "one stack of layers"
        )


def with_modules(model: nn.Module, **added: nn.Module | None) -> nn.ModuleDict:
    """Return a network as ``model`` and the modules added to it, None left out.

    A new module is in training mode; all get the network's.
    """
    modules = {name: module for name, module in added.items() if module is not None}
    return nn.ModuleDict({"model": model, **modules}).train(model.training)


class TextEncoder(TransformerModel, EncoderBase):
    """A transformer over single texts, with prompts and lengths per side."""

    takes_bytes = True
    expand_to = 0  # tokens that queries are filled up to
    pool_prompt = True  # False: a prompt's tokens are left out of what is pooled

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        *,
        query_prompt: str = "",
        document_prompt: str = "",
        query_length: int = 512,
        document_length: int = 512,
        **computing: Unpack[Computing],
    ) -> None:
        super().__init__(module, tokenizer, **computing)
        self.prompts: dict[str, str] = {"query": query_prompt, "document": document_prompt}
        self.lengths: dict[str, int] = {"query": query_length, "document": document_length}
        self._prompts_met: set[str] = set()  # sides whose prompt texts were found to bring
        self.prompt_tokens = {side: self._prompt_tokens(side) for side in self.prompts}

    @property
    def state_width(self) -> int:
        """The number of dimensions of a token's state."""
        return int(self.model.config.hidden_size)

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a document; to set it sets the length of queries too."""
        return self.lengths["document"]

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        least = max(4 + max(self.prompt_tokens.values()), self.expand_to)
        most = lengths_of(self.tokenizer, self.model.config)[1]
        length = whole_number(tokens, "max_seq_length", least, most)
        self.lengths = dict.fromkeys(self.lengths, length)

    def _prompt_tokens(self, side: str) -> int:
        """Return how many tokens come before the text, and check that the length has more room."""
        if not self.prompts[side]:
            return 0
        ids = self.tokenized([self.prompts[side]], length=None).ids[0].tolist()
        if len(ids) >= self.lengths[side]:
            raise ConfigError(
                f"{side}_prompt: takes {len(ids)} tokens, but {side}_length is "
                f"{self.lengths[side]}, which leaves no room for the text"
            )
        return len(ids) - (bool(ids) and ids[-1] in self.tokenizer.all_special_ids)

    def with_prompts(self, prompts: Mapping[str, str]) -> Self:
        """Return an encoder with these prompts in the place of its own, over the same weights.

        Raises ``ConfigError`` where prompts are not pooled, or stand behind a marker.
        """
        if not self.pool_prompt or self.similarity == "max_sim":
            raise ConfigError(
                "prompts: this encoder leaves its prompt out of the pooled tokens, so that all its "
                "texts have the same; leave the prompts of datasets out"
            )
        other = copy.copy(self)
        other.prompts, other._prompts_met = {**self.prompts, **prompts}, set()
        other.prompt_tokens = {side: other._prompt_tokens(side) for side in other.prompts}
        return other

    def take_side(self, side: Side) -> None:
        """Read texts of both sides as those of one, for a tower of that side alone."""
        for settings in (self.prompts, self.lengths, self.prompt_tokens):
            values: dict[str, Any] = settings
            values.update(dict.fromkeys(list(values), values[side]))

    def tokens(self, texts: Sequence[str], side: str) -> Tokens:
        """Return token ids with prompt and special tokens, cut at the side's length."""
        check_texts(texts)
        prompt = self.prompts[side]
        prompted = [prompt + text for text in texts] if prompt else texts
        return self.tokenized(prompted, length=self.lengths[side])

    def map_texts(
        self,
        texts: Sequence[str],
        side: Side,
        store: Callable[[TokenBatch, PackedTransformer | None], None],
    ) -> None:
        """Check and tokenise texts, and pass batches to ``store``, see ``map_batches``."""
        check_texts(texts)
        look_for_prompts(texts, side, self.prompts, self._prompts_met)
        self.map_batches(
            len(texts),
            lambda start, stop: self.tokens(texts[start:stop], side),
            store,
            label=f"encode {side} texts",
            unit="texts",
        )

    def states_by_length(
        self, batch: TokenBatch, network: PackedTransformer | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield states ``[n, length, hidden]`` and masks of a batch's texts of each length."""
        states = self.output(batch, network)
        for span in spans(batch.lengths):
            texts = states[span.start : span.stop].view(span.texts, span.length, -1)
            yield texts, torch.ones(texts.shape[:2], dtype=torch.long, device=states.device)

    def write_model(
        self, folder: Path, *, projection: VectorLayer | None = None, **settings: Any
    ) -> dict[str, Any]:
        """Write model, tokenizer and modules as a dense encoder has them; return facts to note.

        ``settings`` are further arguments of ``write_dense``.
        """
        save(self.model, folder)
        self.tokenizer.save_pretrained(folder)
        own = {"pool_prompt": True, "prompts": self.prompts, **settings}
        places = write_dense(
            folder, hidden=int(self.model.config.hidden_size), layers=kinds_of(projection),
            lengths=self.lengths, lower_case=lowers(self.tokenizer), **own,
        )  # fmt: skip
        write_layers(projection, places)
        lengths = {f"{side}_length": length for side, length in self.lengths.items()}
        return {"type": self.kind, **lengths}

    def token_ids(self, texts: Sequence[str], side: str) -> list[list[int]]:
        """Return token ids as lists, see ``tokens``."""
        return [ids.tolist() for ids in self.tokens(texts, side).ids]

    def tokenize(self, texts: Sequence[str], side: str) -> Features:
        """Return the padded features of a batch, ready for ``embed``."""
        return self.pad(self.tokens(texts, side).ids)

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        settings = {"kind": self.kind, "prompts": self.prompts, "lengths": self.lengths}
        return settings if self.graph_mark is None else {**settings, "graph": self.graph_mark}

    @property
    def fingerprint(self) -> str:
        """A hash of weights, tokenizer, pooling, prompts and lengths (not of device or dtype)."""
        return fingerprint_of(self.weights_hash(), self.settings())


class TokenStates(NamedTuple):
    """Unit vectors of texts' tokens, end to end.

    ``values`` is ``[tokens, hidden]`` on the encoder's device, float32 or bfloat16 as the encoder
    computes; ``bounds`` ``[texts + 1]`` is where each text begins, and the end.
    """

    values: Tensor
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def of(self, text: int) -> Tensor:
        """Return the vectors of one text."""
        return self.values[int(self.bounds[text]) : int(self.bounds[text + 1])]


def token_states(encoder: TextEncoder, texts: Sequence[str], side: Side) -> TokenStates:
    """Return the last layer's states of texts' own tokens, scaled to unit length.

    Special tokens, the prompt's and padding are left out, so a text may have none. Texts are cut at
    the encoder's length for the side. (Khattab and Zaharia, 2020, ColBERT.)
    """
    special = torch.tensor(special_ids(encoder.tokenizer))
    parts: list[Tensor] = [torch.empty(0)] * len(texts)
    prompt = encoder.prompt_tokens[side]

    def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
        states = functional.normalize(encoder.output(batch, network).float(), dim=-1)
        ids = torch.from_numpy(np.concatenate(batch.ids).astype(np.int64))
        own = ~torch.isin(ids, special)
        if prompt:
            own &= torch.cat([torch.arange(length) >= prompt for length in batch.lengths])
        texts_vectors = torch.split(states.to(encoder.floats), batch.lengths)
        masks = torch.split(own.to(states.device), batch.lengths)
        for row, vectors, mask in zip(batch.rows.tolist(), texts_vectors, masks, strict=True):
            parts[row] = vectors[mask]

    encoder.map_texts(texts, side, store)
    lengths = [len(part) for part in parts]
    filled = [part for part in parts if len(part)]
    hidden = encoder.state_width
    values = torch.cat(filled) if filled else torch.zeros((0, hidden), device=encoder.device)
    return TokenStates(values, np.cumsum([0, *lengths]))


def special_ids(tokenizer: Any) -> list[int]:
    """Return the ids of tokens that are not part of a text; an unknown word is."""
    names = ("bos", "eos", "cls", "sep", "pad", "mask")
    marks = {getattr(tokenizer, f"{name}_token_id", None) for name in names}
    unknown = {tokenizer.unk_token_id} - marks
    return sorted(set(tokenizer.all_special_ids) - unknown)
