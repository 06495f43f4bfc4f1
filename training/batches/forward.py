"""The modules that the Trainer trains: forward passes of pairs, of both sides, of masked texts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.training.batches.collator import Batch
from sluice.training.batches.processes import rank, shares, world
from sluice.training.protocol import BiEncoder, Example, Features, PairEncoder, Side, Trainable


class TrainedModule(nn.Module):
    """An encoder's parameters under one forward pass, so that distributed wrappers see all use."""

    def __init__(self, encoder: Trainable) -> None:
        super().__init__()
        self.weights = encoder.module
        self.layers: tuple[int, ...] = ()  # whose vectors are returned; none: the encoder's own

    def unique_state(self) -> dict[str, Tensor]:
        """Return the state with tensors that share memory (tied embeddings) named once."""
        return {name: tensor.contiguous() for name, tensor in self._originals().values()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load what ``unique_state`` returned; a missing or foreign name is an error."""
        originals = self._originals()
        complete = {
            name: state_dict[originals[_memory(tensor)][0]]
            for name, tensor in self.state_dict().items()
            if originals[_memory(tensor)][0] in state_dict
        }
        foreign = {name: value for name, value in state_dict.items() if name not in complete}
        return super().load_state_dict({**complete, **foreign}, strict=True, assign=assign)

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Trade time for memory in every transformer inside (``trainer.activation_checkpointing``).

        The Trainer asks the module it is given, which is not the transformer itself here.
        """
        reached: set[nn.Module] = set()
        for module in self.weights.modules():
            enable = getattr(module, "activation_checkpointing_enable", None) or getattr(
                module, "gradient_checkpointing_enable", None
            )
            if callable(enable) and module not in reached:
                enable(**options)
                reached.update(module.modules())  # it sets its own parts

    # Its name in versions of transformers that know no other.
    gradient_checkpointing_enable = activation_checkpointing_enable

    def _originals(self) -> dict[tuple[object, ...], tuple[str, Tensor]]:
        first: dict[tuple[object, ...], tuple[str, Tensor]] = {}
        for name, tensor in self.state_dict().items():
            first.setdefault(_memory(tensor), (name, tensor))
        return first


def _memory(tensor: Tensor) -> tuple[object, ...]:
    # Empty tensors all lie at address 0.
    place = tensor.data_ptr() or id(tensor)
    return place, tuple(tensor.shape), tensor.stride(), tensor.dtype


class BiEncoderModule(TrainedModule):
    """Queries and documents to vectors.

    ``layers`` (numbers from 1, the last first) asks for the vectors of several layers, side by side
    ``[n, layers * dim]``; none is the encoder's own vectors alone.
    """

    SIDES: Mapping[str, Side] = {
        "query": "query", "document": "document", "answered": "query", "negative_query": "query",
    }  # fmt: skip

    def __init__(self, encoder: BiEncoder) -> None:
        super().__init__(encoder)
        self.encoder = encoder

    def forward(self, **features: Features) -> dict[str, Tensor]:
        """Return vectors ``[n, dim]`` under the names that the features came by."""
        return {name: self._vectors(part, self.SIDES[name]) for name, part in features.items()}

    def _vectors(self, features: Features, side: Side) -> Tensor:
        if not self.layers:
            return self.encoder.embed(features, side)
        embed_layers = hooks_of(self.encoder).embed_layers
        if embed_layers is None:
            raise ConfigError(
                f"loss: needs the vectors of layers {self.layers}, which a "
                f"{type(self.encoder).__name__} does not provide; train a dense encoder"
            )
        vectors: Tensor = embed_layers(features, side, self.layers)
        return vectors


class PairModule(TrainedModule):
    """Pairs to scores; also texts alone to vectors, for losses that need them."""

    def __init__(self, encoder: PairEncoder) -> None:
        super().__init__(encoder)
        self.encoder = encoder

    def forward(self, **features: Features) -> dict[str, Tensor]:
        """Return raw scores ``[n]`` as ``pairs``, and vectors ``[n, hidden]`` of the others."""
        return {
            name: self.encoder.logits(part) if name == "pairs" else self.encoder.embed_texts(part)  # type: ignore[attr-defined]
            for name, part in features.items()
        }


IGNORED = -100  # the label of a position that is not predicted


def drawn_bytes(seed: int, epoch: int, name: str) -> bytes:
    """Return 32 bytes to draw by, the same for a name in every process and order."""
    return hashlib.sha256(f"{seed}:{epoch}:{name}".encode("utf-8", "surrogatepass")).digest()


class MaskRates(NamedTuple):
    """How much is masked: a share of a text's tokens, and what becomes of these."""

    probability: float
    whole_words: bool
    keep: float
    random: float


class Masking:
    """Hides tokens of tokenised texts, as a function of seed, epoch and the text's id.

    ``probability`` of a text's tokens are chosen, rounded, at least one; special tokens (unknown
    words too) never are. Of the chosen ``keep`` stay as they are, ``random`` become any token that
    is not special, and the rest becomes the mask (Devlin et al. 2019, section 3.1). With
    ``whole_words`` the tokens of a word are chosen together.

    Raises ``ModelError`` for a tokenizer without a mask token, ``ConfigError`` when words are
    wanted and the tokenizer does not show where they begin.
    """

    def __init__(self, tokenizer: Any, rates: MaskRates, seed: int) -> None:
        if tokenizer.mask_token_id is None:
            raise ModelError(
                "masked_language: the tokenizer has no mask token; take a model that was trained "
                "as a masked language model"
            )
        self.rates = rates
        self.seed = seed
        self.mask_id = int(tokenizer.mask_token_id)
        self.special = np.array(sorted(tokenizer.all_special_ids))
        known = np.array(sorted(tokenizer.get_vocab().values()))
        self.ordinary = np.setdiff1d(known, self.special)
        self._begins = _word_beginnings(tokenizer, known) if rates.whole_words else None

    def __call__(self, ids: np.ndarray, name: str, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the masked ``ids`` ``[length]`` of a text, and labels: the id where one is hidden.

        Everywhere else the label is ``IGNORED``.
        """
        digest = drawn_bytes(self.seed, epoch, name)
        chance = np.random.default_rng(int.from_bytes(digest[:16], "little"))
        chosen = self._choose_places(ids, chance)
        labels = np.full_like(ids, IGNORED)
        labels[chosen] = ids[chosen]
        masked = ids.copy()
        fate = chance.random(len(chosen))
        drawn = self.ordinary[chance.integers(0, len(self.ordinary), len(chosen))]
        keep, random = self.rates.keep, self.rates.random
        masked[chosen] = np.where(
            fate < keep, ids[chosen], np.where(fate < keep + random, drawn, self.mask_id)
        )
        return masked, labels

    def _choose_places(self, ids: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        places = np.flatnonzero(~np.isin(ids, self.special))
        if not len(places):
            return places
        to_mask = max(1, round(self.rates.probability * len(places)))
        if self._begins is None:
            return chance.permutation(places)[:to_mask]
        apart = np.diff(places, prepend=-2) > 1  # a special token ends a word
        words = np.cumsum(self._begins[ids[places]] | apart) - 1
        sizes = np.bincount(words)
        taken: list[int] = []
        count = 0
        for word in chance.permutation(len(sizes)).tolist():
            if count + sizes[word] <= to_mask or not taken:
                taken.append(word)
                count += int(sizes[word])
            if count >= to_mask:
                break
        return places[np.isin(words, taken)]


def _word_beginnings(tokenizer: Any, known: np.ndarray) -> np.ndarray:
    """Return for each token id whether a word begins with it, ``[vocab]``."""
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(known.tolist())]
    begins = np.ones(int(known.max()) + 1, dtype=bool)
    if any(token.startswith("##") for token in tokens):
        begins[known] = [not token.startswith("##") for token in tokens]
    elif any(token.startswith(("Ġ", "▁")) for token in tokens):
        begins[known] = [token.startswith(("Ġ", "▁")) for token in tokens]
    else:
        raise ConfigError(
            "masked_language.whole_words: this tokenizer does not show where words begin; set it "
            "to false"
        )
    return begins


class MaskedCollator:
    """Tokenises the documents of examples and masks them; ``set_epoch`` chooses other masks."""

    def __init__(self, encoder: Any, masking: Masking) -> None:
        self.encoder = encoder
        self.masking = masking
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose masks the next batches get."""
        self.epoch = epoch

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Return masked ``input_ids``, their mask, and ``labels``, each ``[n, length]``."""
        parts = [examples[part] for part in shares(len(examples), world())]
        own = [document for example in parts[rank()] for document in example.documents]
        features: Features = dict(self.encoder.tokenize([d.text for d in own], "document"))
        ids = features["input_ids"].numpy()
        masked = [self.masking(row, d.id, self.epoch) for row, d in zip(ids, own, strict=True)]
        features["input_ids"] = torch.from_numpy(np.stack([row for row, _ in masked]))
        features["labels"] = torch.from_numpy(np.stack([labels for _, labels in masked]))
        names = tuple(d.id for e in examples for d in e.documents)
        return {
            "features": {"document": features},
            "sizes": {"document": [sum(len(e.documents) for e in part) for part in parts]},
            "ids": {"query": (), "document": names},
        }


CHUNK = 1024  # masked positions whose logits are held at a time: 125 MB over 30,522 words


class MaskedModule(TrainedModule):
    """Masked texts to their term weights and how badly their hidden words are predicted.

    Both come from the same states. Without ``terms`` (no sparsity penalty) the product with
    the vocabulary is made at masked positions alone.
    """

    def __init__(self, encoder: Any, *, terms: bool) -> None:
        super().__init__(encoder)
        self.encoder = encoder
        self.terms = terms

    def forward(self, document: Features) -> dict[str, Tensor]:
        """Return ``document`` ``[n, vocab + 2]``, or ``[n, 2]`` without terms.

        The last columns are, of each text, the cross-entropy summed over its masked positions and
        their number.
        """
        features = {name: values for name, values in document.items() if name != "labels"}
        labels = document["labels"]
        states = self.encoder.hidden(features)
        decoder = self.encoder.model.get_output_embeddings()
        rows, places = (labels != IGNORED).nonzero(as_tuple=True)
        entropies = token_entropies(
            states[rows, places], decoder.weight, decoder.bias, labels[rows, places]
        )
        sums = entropies.new_zeros(len(labels)).index_add(0, rows, entropies)
        counts = (labels != IGNORED).sum(1).to(sums.dtype)
        columns = [sums.unsqueeze(1), counts.unsqueeze(1)]
        if self.terms:
            columns.insert(0, self.encoder.pooled(states, features, "document"))
        return {"document": torch.cat(columns, dim=1)}


def token_entropies(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return ``-log softmax(states W^T + b)[target]`` ``[m]`` of states ``[m, hidden]``.

    Logits are held ``CHUNK`` rows at a time, and recomputed in the backward pass.
    """
    if len(states) <= CHUNK:
        return _entropies(states, weight, bias, targets)
    parts = [
        checkpoint(
            _entropies, part, weight, bias, labels, use_reentrant=False, preserve_rng_state=False
        )
        for part, labels in zip(
            torch.split(states, CHUNK), torch.split(targets, CHUNK), strict=True
        )
    ]
    return torch.cat(parts)


def _entropies(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = linear(states, weight, bias)
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return cross_entropy(exact, targets, reduction="none")
