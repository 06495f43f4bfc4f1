"""Beam search over the n-grams that an index contains, and the likelihood of texts given others."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.layout import read_object, transformer_folder
from sluice.encoders.model_files.loading import lengths_of
from sluice.encoders.model_files.weights.files import add_tensors, read_tensors
from sluice.encoders.model_files.weights.quantised import QuantisedEmbedding, QuantisedLinear
from sluice.encoders.transformer.decoder_attention import (
    cache_name,
    causal_attention,
    reads_as_decoder,
)
from sluice.encoders.transformer.model import Features

if TYPE_CHECKING:
    from torch import Tensor


class Continuations:
    """The rows of one batch that a transformers model continues, ``copies`` for each text.

    ``ids`` and ``mask`` ``[texts, length]`` are the texts' tokens: what an encoder reads, or what a
    decoder continues (padded on the left). Keys and values of earlier tokens are kept. ``before``
    ``[tokens, width]`` are vectors that stand before the embeddings of each text (a soft prompt).
    """

    def __init__(
        self, model: Any, ids: Tensor, mask: Tensor, copies: int, before: Tensor | None = None
    ) -> None:
        self._model = model
        self._copies = copies
        self._cache: Any = None
        self._cache_name = cache_name(model)
        self._encoder_decoder = bool(model.config.is_encoder_decoder)
        self._texts, mask = read_features(model, ids, mask, before)
        self._mask = mask.repeat_interleave(copies, dim=0)
        self._first_mask = mask
        self._states: Tensor | None = None
        self._positions = "position_ids" in inspect.signature(model.forward).parameters

    def first(self) -> Tensor:
        """Return the log-probabilities ``[texts * copies, vocabulary]`` of each first token."""
        if self._encoder_decoder:
            encoder = self._model.get_encoder()
            states = encoder(**self._texts, attention_mask=self._first_mask)
            hidden = states.last_hidden_state.repeat_interleave(self._copies, dim=0)
            self._states = hidden
            start = self._model.config.decoder_start_token_id
            start = self._model.config.pad_token_id if start is None else start
            return self._decoded(torch.full((len(hidden),), int(start), device=hidden.device))
        output = self._forward(self._texts, self._first_mask)
        self._cache.batch_repeat_interleave(self._copies)
        following = torch.log_softmax(output.logits[:, -1].float(), dim=-1)
        return following.repeat_interleave(self._copies, dim=0)

    def next(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Return log-probabilities after ``tokens`` ``[n]``, appended to the old rows ``rows``."""
        self._cache.reorder_cache(rows)
        if self._encoder_decoder:
            return self._decoded(tokens)
        mask = self._mask[rows]
        self._mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        output = self._forward({"input_ids": tokens[:, None]}, self._mask)
        return torch.log_softmax(output.logits[:, -1].float(), dim=-1)

    def _decoded(self, tokens: Tensor) -> Tensor:
        from transformers.modeling_outputs import BaseModelOutput

        output = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._states),
            attention_mask=self._mask,
            decoder_input_ids=tokens[:, None],
            use_cache=True,
            **{self._cache_name: self._cache},
        )
        self._cache = output.get(self._cache_name)
        return torch.log_softmax(output.logits[:, -1].float(), dim=-1)

    def _forward(self, texts: dict[str, Tensor], mask: Tensor) -> Any:
        width = next(iter(texts.values())).shape[1]
        places = {}
        if self._positions:  # padding on the left takes no place
            positions = (mask.cumsum(dim=1) - 1).clamp_min(0)
            places["position_ids"] = positions[:, -width:]
        output = self._model(
            attention_mask=mask,
            use_cache=True,
            **{self._cache_name: self._cache},
            **texts,
            **places,
        )
        self._cache = output.get(self._cache_name)
        return output


def read_features(
    model: Any, ids: Tensor, mask: Tensor, before: Tensor | None
) -> tuple[dict[str, Tensor], Tensor]:
    """Return what a model reads, tokens or vectors, and its mask ``[texts, length]``.

    With ``before`` these are the vectors of each text's tokens behind those ``[tokens, width]``.
    """
    if before is None:
        return {"input_ids": ids}, mask
    vectors = model.get_input_embeddings()(ids)
    own = before.to(vectors.dtype).expand(len(ids), -1, -1)
    seen = mask.new_ones((len(mask), len(before)))
    return {"inputs_embeds": torch.cat([own, vectors], dim=1)}, torch.cat([seen, mask], dim=1)


def writes_in_order(model: Any) -> bool:
    """Return whether a decoder's logits of a token depend on nothing that comes after it."""
    size = model.get_input_embeddings().num_embeddings
    pairs = torch.tensor([[1, 2], [1, 3]], device=model.device) % size
    with torch.inference_mode():
        first = model(input_ids=pairs).logits[:, 0].float()
    return torch.allclose(first[0], first[1], rtol=1e-3, atol=1e-4)


class OwnWriting:
    """The network of a dense encoder under the head of its family's language model.

    A head that is the matrix of the token embeddings adds nothing to the encoder. One with weights
    of its own is read from the files that the encoder was loaded from, learns where the token
    embeddings do, and is kept beside the encoder. ``ConfigError`` for a network that is not a
    decoder, and where the files have no head.
    """

    def __init__(self, encoder: Any) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

        if not isinstance(encoder, DenseEncoder):
            raise ConfigError(
                f"grl: trains one dense encoder, whose network writes, not {type(encoder).__name__}"
            )
        network = encoder.model
        name = type(network).__name__
        known = type(network.config) in MODEL_FOR_CAUSAL_LM_MAPPING
        if not (known and reads_as_decoder(network)):
            raise ConfigError(
                f"grl: {name} is not a decoder and cannot write; take one (GPT-2, Llama, Qwen, "
                "...) with attention: bidirectional"
            )
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(network.config)
        setattr(whole, whole.base_model_prefix, network)
        table, head = network.get_input_embeddings(), whole.get_output_embeddings()
        if not isinstance(table, QuantisedEmbedding):
            whole.tie_weights()
        elif whole.config.tie_word_embeddings:
            whole.set_output_embeddings(QuantisedLinear(table.matrix, head.bias))
        apart = [name for name, value in whole.named_parameters() if value.is_meta]
        self.own_head: dict[str, nn.Parameter] = {}
        if apart:
            where = Path(network.name_or_path)
            learns = any(each.requires_grad for each in table.parameters())
            for name, value in read_tensors(where, apart).items():
                own = nn.Parameter(value.to(network.device, torch.float32), learns)
                owner, _, last = name.rpartition(".")
                setattr(whole.get_submodule(owner), last, own)
                self.own_head[name] = own
            if left := [name for name in apart if name not in self.own_head]:
                raise ConfigError(
                    f"grl: the head of {type(whole).__name__} has weights of its own "
                    f"({', '.join(left[:2])}), and {where} has none; take the folder of the "
                    "language model itself, or a model with tie_word_embeddings"
                )
        self._network = network
        self._whole = whole
        self._longest = lengths_of(encoder.tokenizer, network.config)[1]

    def save(self, folder: Path) -> None:
        """Make an encoder's saved folder that of the language model, which transformers opens."""
        home = transformer_folder(folder)
        file = home / "config.json"
        write_json(file, {**read_object(file), "architectures": [type(self._whole).__name__]})
        if self.own_head:
            add_tensors(home, {name: value.detach() for name, value in self.own_head.items()})

    def log_probabilities(
        self,
        features: Mapping[str, Features],
        queries: Tensor,
        documents: Tensor,
        *,
        chunk: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each document after its query, and its tokens, ``[n]``.

        ``queries`` and ``documents`` are rows of the features of both sides. Attention is causal:
        the same network, another mask. Queries are cut to half of what the model reads at once,
        documents to the rest. With ``chunk`` so many texts are run at a time, and again for their
        gradients, so that one chunk's graph is held.
        """
        if chunk is not None and len(queries) > chunk:
            pairs = zip(torch.split(queries, chunk), torch.split(documents, chunk), strict=True)
            parts = [
                checkpoint(self.log_probabilities, features, *pair, use_reentrant=False)
                for pair in pairs
            ]
            values, counts = zip(*parts, strict=True)
            return torch.cat(values), torch.cat(counts)
        sides = (features["query"], queries), (features["document"], documents)
        parts = [
            [own["input_ids"][row][own["attention_mask"][row].bool()] for row in rows.tolist()]
            for own, rows in sides
        ]
        parts[0] = [query[: self._longest // 2] for query in parts[0]]
        texts = [torch.cat(pair)[: self._longest] for pair in zip(*parts, strict=True)]
        width = max(map(len, texts))
        ids = texts[0].new_zeros((len(texts), width))
        mask = torch.zeros_like(ids)
        wanted = torch.zeros_like(ids, dtype=torch.bool)
        for row, (text, query) in enumerate(zip(texts, parts[0], strict=True)):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
            wanted[row, len(query) : len(text)] = True
        device = self._network.device
        ids, mask, wanted = ids.to(device), mask.to(device), wanted.to(device)
        with causal_attention(self._network):
            logits = self._whole(input_ids=ids, attention_mask=mask, use_cache=False).logits
        chances = logits[:, :-1].float().log_softmax(dim=2)
        tokens = chances.gather(2, ids[:, 1:, None])[:, :, 0] * wanted[:, 1:]
        return tokens.sum(dim=1), wanted.sum(dim=1).clamp(min=1)


Ngram = tuple[int, ...]
Keys = dict[Ngram, float]  # n-grams with their log-probability


class Following(Protocol):
    """The tokens that follow an n-gram, ascending, and how often each does."""

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Their ids."""
        ...

    @property
    def counts(self) -> NDArray[np.int64]:
        """Their numbers, above 0."""
        ...


class NgramIndex(Protocol):
    """What decoding asks of an index: ``indexing.FmIndex`` answers it.

    A prefix is a place in one state of the index: what follows it, and the place of an n-gram with
    one token more.
    """

    @property
    def tokens(self) -> int:
        """The number of tokens of its documents."""
        ...

    def prefix(self, ngram: Sequence[int] = ()) -> Any:
        """Return the place of an n-gram, with its ``count``."""
        ...

    def extended(self, prefix: Any, token: int) -> Any:
        """Return the place of an n-gram with one token more."""
        ...

    def continuations(self, prefix: Any) -> Following:
        """Return what follows the n-gram of a place."""
        ...


class _Beam(NamedTuple):
    ngram: Ngram
    place: Any  # in the index
    score: float  # the log-probability of the n-gram
    row: int  # of the model's batch


@dataclass(frozen=True, slots=True)
class ConstrainedBeams:
    """Beam search in which only tokens that follow in the index may be chosen.

    ``never`` are tokens that no n-gram has. Every n-gram that is in the beam at some step is
    returned, so those of one token up to ``length``; the probabilities are the model's own, not
    normalised over what the index allows. Also returned are the ``unigrams`` tokens most likely at
    the first step. (SEAL; Bevilacqua et al. 2022, sections 3.2 and 3.3.)
    """

    beams: int
    length: int
    unigrams: int
    never: Collection[int] = ()

    def search(self, rows: Continuations, index: NgramIndex, texts: int) -> list[Keys]:
        """Return the n-grams of each text; ``rows`` has ``beams`` continuations of each."""
        following = rows.first()
        keys: list[Keys] = [{} for _ in range(texts)]
        root = index.prefix()
        running = [[_Beam((), root, 0.0, text * self.beams)] for text in range(texts)]
        for step in range(self.length):
            scores = following.cpu().numpy()
            scores[:, [token for token in self.never if token < scores.shape[1]]] = -np.inf
            for text, beams in enumerate(running):
                chosen = list(self._best(beams, scores, index))
                if step == 0:
                    keys[text] = {(token,): score for token, score, _ in chosen[: self.unigrams]}
                best = chosen[: self.beams]
                running[text] = [
                    _Beam((*beam.ngram, token), index.extended(beam.place, token), score, beam.row)
                    for token, score, beam in best
                ]
                keys[text] |= {beam.ngram: beam.score for beam in running[text]}
            if step == self.length - 1 or not any(running):
                break
            following = rows.next(*self._laid_out(running, following.device))
            running = [
                [beam._replace(row=text * self.beams + at) for at, beam in enumerate(beams)]
                for text, beams in enumerate(running)
            ]
        return keys

    def _best(
        self, beams: Sequence[_Beam], scores: NDArray[np.float32], index: NgramIndex
    ) -> Iterator[tuple[int, float, _Beam]]:
        """Yield the best continuations of all beams of a text, as many as may be wanted."""
        most = self.beams if beams and beams[0].ngram else max(self.beams, self.unigrams)
        parts = []
        for number, beam in enumerate(beams):
            tokens = index.continuations(beam.place).tokens
            tokens = tokens[: np.searchsorted(tokens, scores.shape[1])]
            sums = beam.score + scores[beam.row, tokens].astype(np.float64)
            least = np.partition(sums, -most)[-most] if len(sums) > most else -np.inf
            good = np.flatnonzero((sums >= least) & (sums > -np.inf))
            order = good[np.lexsort((tokens[good], -sums[good]))][:most]
            parts += [(-sums[at], number, int(tokens[at])) for at in order.tolist()]
        for negative, number, token in sorted(parts)[:most]:
            yield token, -float(negative), beams[number]

    def _laid_out(
        self, running: Sequence[Sequence[_Beam]], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return each row's next token, and which row it continues; rows without are filled."""
        tokens = np.zeros(len(running) * self.beams, np.int64)
        sources = np.repeat(np.arange(len(running)) * self.beams, self.beams)
        for text, beams in enumerate(running):
            for at, beam in enumerate(beams):
                tokens[text * self.beams + at] = beam.ngram[-1]
                sources[text * self.beams + at] = beam.row
        return torch.from_numpy(tokens).to(device), torch.from_numpy(sources).to(device)


def likelihoods(rows: Continuations, ngrams: Sequence[Sequence[Ngram]], copies: int) -> list[Keys]:
    """Return the log-probability of each text's n-grams, at most ``copies`` of them a text."""
    following = rows.first()
    width = max((len(ngram) for own in ngrams for ngram in own), default=0)
    sums = np.zeros((len(ngrams), copies))
    every = torch.arange(len(following), device=following.device)
    for step in range(width):
        scores = following.cpu().numpy().reshape(len(ngrams), copies, -1)
        tokens = np.zeros((len(ngrams), copies), np.int64)
        for text, own in enumerate(ngrams):
            for at, ngram in enumerate(own):
                if step < len(ngram):
                    tokens[text, at] = ngram[step]
                    sums[text, at] += scores[text, at, ngram[step]]
        if step < width - 1:
            taken = torch.from_numpy(tokens.reshape(-1)).to(following.device)
            following = rows.next(taken, every)
    return [
        {ngram: float(sums[text, at]) for at, ngram in enumerate(own)}
        for text, own in enumerate(ngrams)
    ]


def key_weight(log_probability: float, occurrences: int, tokens: int) -> float:
    """Return how much more an n-gram is likely after a query than in the corpus; 0 if it is not.

    ``max(0, log [P(n|q) (1 - P(n)) / (P(n) (1 - P(n|q)))])`` with ``P(n) = (F + 5) / (N + 5)``, F
    being ``occurrences`` and N the ``tokens`` of the corpus. (SEAL; Bevilacqua et al. 2022,
    section 3.3, with the smoothing of its code.)
    """
    usual = min((occurrences + 5) / (tokens + 5), 1 - 1e-12)
    chance = min(log_probability, -1e-12)
    ratio = chance - np.log(usual) + np.log1p(-usual) - np.log(-np.expm1(chance))
    return max(0.0, float(ratio))
