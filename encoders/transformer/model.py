"""The base of all transformer encoders: tokens, packed and padded batches, fingerprints."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from sluice.encoders.backends.backend import ChosenBackend, pick_device, say_used
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.processes import trim_memory
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.tokens import report_tokens
from sluice.encoders.model_files.adapters import merged_state
from sluice.encoders.model_files.identity import (
    architecture_of,
    modules_of,
    parameters_of,
    state_hash,
    versions,
)
from sluice.encoders.model_files.options import Dtype
from sluice.encoders.transformer.arithmetic import is_faster_in_halves, pick_dtype
from sluice.encoders.transformer.packed.families import is_changed
from sluice.encoders.transformer.packed.model import PackedTransformer, TrainingPass
from sluice.encoders.transformer.tokens import (
    Ids,
    TokenBatch,
    Tokens,
    ahead,
    chunks,
    side_by_side,
    token_batches,
    tokenized,
    tokenizer_state,
)
from sluice.familiar import Named

Features: TypeAlias = dict[str, Tensor]
BATCH_TOKENS = {"cpu": 4_096}  # of one pass by default; other devices need more to be busy
PROGRESS_FROM = 2_000  # texts; shorter calls stay silent
FEW = 24  # tokens of a batch that one thread is sooner through with than several
TRIM_BATCHES = 32  # after which free memory is given back
# Sentences, a title, a question, code and numbers.
PROBES = (
    "The gold lies at the bottom of the river, under a foot of sand and gravel.",
    "what is a sluice", "Neural networks for ranking: a review of dense and sparse retrieval",
    "def add(a, b): return a + b", "COVID-19; SARS-CoV-2 (2020)", "x",
    "In 1848 some 4,000 people came by sea; by 1849 there were 90,000.",
    "Is it safe to take ibuprofen with a blood thinner, and for how long?",
)  # fmt: skip
_MODES = threading.Lock()  # not an encoder's own: locks cannot be copied

log = logging.getLogger("sluice")


class TransformerModel(metaclass=Named):
    """A torch module with its tokenizer, device and arithmetic type.

    ``kind`` is its type's name in YAML. ``module`` holds every parameter in float32 and is trained
    in place; ``dtype`` decides only the arithmetic of encoding. ``batch_tokens`` is the size of one
    pass, by default 4,096 tokens on a CPU and 65,536 elsewhere.
    """

    kind: str = ""
    takes_bytes = False  # whether it can run in dtype int8: it encodes by ``map_batches``

    def __init__(
        self,
        module: Any,
        tokenizer: Any,
        *,
        device: str = "auto",
        dtype: Dtype = "float32",
        batch_tokens: int | None = None,
    ) -> None:
        if dtype == "int8" and not self.takes_bytes:
            raise ConfigError(
                "dtype: int8 is for encoders and cross-encoders; write bfloat16 or auto"
            )
        self.device: torch.device = pick_device(device)
        self.dtype: torch.dtype = pick_dtype(dtype, self.device, module, bytewise=self.takes_bytes)
        self.module: nn.Module = module.to(self.device)
        self.model: Any = module
        self.tokenizer: Any = tokenizer
        if tokenizer is None:
            raise ModelError(f"{type(self).__name__}: a network without its tokenizer")
        if batch_tokens is None:
            batch_tokens = BATCH_TOKENS.get(self.device.type, 65_536)
        self.batch_tokens: int = whole_number(batch_tokens, "batch_tokens", 1)
        if tokenizer.pad_token is None:  # decoder models often come without one
            if tokenizer.eos_token is None:
                raise ModelError("the tokenizer has neither a padding nor an end-of-text token")
            tokenizer.pad_token = tokenizer.eos_token
        self.packed = True  # set to False to encode by the model's own padded pass
        self.packed_training = True  # set to False to train by it
        self._users = 0  # calls that are encoding now
        self._training: list[nn.Module] = []  # parts to put back into training mode afterwards
        self._hashed: tuple[tuple[object, ...], str] | None = None
        self._network: tuple[Any, PackedTransformer | None] | None = None
        self._compared = False
        self._training_compared = False
        self.backend: ChosenBackend | None = None  # None: torch

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which hashes and packs its weights by itself."""
        return {**self.__dict__, "_network": None, "_hashed": None, "_users": 0, "_training": []}

    @contextlib.contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Run the block without gradients, in evaluation mode and the encoder's arithmetic type.

        The last of several threads to leave restores the mode of every part.
        """
        with _MODES:
            if not self._users:
                self._training = [part for part in modules_of(self.module) if part.training]
                if self._training:
                    self.module.eval()
            self._users += 1
        floats = self.floats
        half = floats is not torch.float32
        try:
            with torch.inference_mode(), torch.autocast(self.device.type, floats, enabled=half):
                yield
        finally:
            with _MODES:
                self._users -= 1
                for part in () if self._users else self._training:
                    part.training = True

    def tokenized(self, *texts: Sequence[str], length: int | None, types: bool = False) -> Tokens:
        """Tokenise texts, or pairs of them, with special tokens, cut at ``length``."""
        return tokenized(self.tokenizer, *texts, length=length, types=types)

    def pad(
        self,
        tokens: Sequence[Sequence[int] | Ids],
        types: Sequence[Sequence[int] | Ids] | None = None,
    ) -> Features:
        """Return ``input_ids`` and ``attention_mask`` ``[n, longest]``, padded on the right.

        With ``types`` also ``token_type_ids``, 0 at the padding.
        """
        longest = max(1, max(len(t) for t in tokens))
        ids = np.full((len(tokens), longest), int(self.tokenizer.pad_token_id))
        mask = np.zeros_like(ids)
        for row, text in enumerate(tokens):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        if types is not None:
            segments = np.zeros_like(ids)
            for row, text in enumerate(types):
                segments[row, : len(text)] = text
            features["token_type_ids"] = torch.from_numpy(segments)
        return features

    def map_batches(
        self,
        count: int,
        tokens_of: Callable[[int, int], Tokens],
        store: Callable[[TokenBatch, PackedTransformer | None], None],
        *,
        label: str,
        unit: str,
        in_order: bool = False,
    ) -> None:
        """Tokenise texts a chunk ahead, and pass batches by length, with ``network``, to ``store``.

        On a CPU each thread has batches of its own, unless ``in_order``: ``store`` may run in
        several at a time. Texts without tokens are never passed on.
        """
        show = count >= PROGRESS_FROM
        with progress(label, count, unit, show=show) as advance, self.arithmetic():
            network = self.network()
            threads = 1
            if network is not None and self.device.type == "cpu" and not in_order:
                threads = torch.get_num_threads()
            budget = max(1, self.batch_tokens // threads)

            def batches() -> Iterator[TokenBatch]:
                start = 0
                for tokens in ahead(lambda span: tokens_of(*span), chunks(count)):
                    report_tokens(tokens.counts)
                    for batch in token_batches(tokens, budget, padded=network is None):
                        yield batch._replace(rows=start + batch.rows)
                    start += len(tokens.ids)

            def work(batch: TokenBatch) -> None:
                with self.arithmetic():
                    store(batch, network)

            done, first = 0, list(itertools.islice(stream := batches(), 2))
            if len(first) == 1 and sum(first[0].lengths) >= FEW:
                threads = 1  # the batch is for all
            everything = side_by_side(work, itertools.chain(first, stream), threads)
            for passed, batch in enumerate(everything, start=1):
                done += len(batch.rows)
                advance(len(batch.rows))
                if passed % TRIM_BATCHES == 0:
                    trim_memory()
            if done < count:
                advance(count - done)

    def network(self) -> PackedTransformer | None:
        """Return the packed form of the model as it is now; None if it runs padded.

        It is rebuilt after a change of the model. The first is compared with the ordinary pass.
        """
        packed = self._packed_pass()
        if packed is None and self.dtype is torch.int8:
            say_used(f"dtype: int8: {type(self.model).__name__} has no packed pass", self.floats)
        return packed

    def _packed_pass(self) -> PackedTransformer | None:
        if not self.packed or self.backend is not None or not self.packable:
            return None
        whole, trunk = modules_of(self.module), self.model.base_model
        # hooks come and go without a change of the weights
        if is_changed(whole if trunk is self.module else modules_of(trunk)):
            return None
        # an activation has no weights to look at
        key = (self.dtype, *map(weakref.ref, whole), *versions(parameters_of(whole)))
        known = self._network  # once: other threads write to it
        if known is not None and known[0] == key:
            return known[1]
        del known
        self._network = None  # the copy of earlier weights makes room for the next
        with self.arithmetic():
            packed = PackedTransformer.from_model(self.model.base_model, self.dtype, self.floats)
            if packed is not None and self.dtype is torch.int8 and not self._settles(packed):
                packed = PackedTransformer.from_model(self.model.base_model, self.floats)
            if packed is not None and not self._compared:
                self._compared = True
                if not self._agrees(packed):
                    log.warning(
                        "%s: its packed pass differs from the ordinary one, which is used instead",
                        type(self.model).__name__,
                    )
                    self.packed = False
                    return None
        self._network = key, packed
        return packed

    @property
    def floats(self) -> torch.dtype:
        """The arithmetic around products of bytes; where there are none, the arithmetic."""
        if self.dtype is not torch.int8:
            return self.dtype
        return torch.bfloat16 if is_faster_in_halves(self.module) else torch.float32

    def _settles(self, network: PackedTransformer) -> bool:
        """Run the probe texts through products of bytes; return whether they stay what they are."""
        tokens = self.tokenized(PROBES, length=None)
        batch = TokenBatch(np.arange(len(PROBES)), list(tokens.ids), None)
        network.states(*self.laid_out(batch))
        distance = self._distance(network, batch)
        if distance < 0.05:  # of tokens; vectors pooled from them are nearer
            return True
        say_used(
            f"dtype: int8: {type(self.model).__name__} is {distance:.0%} off on probe texts",
            self.floats,
        )
        return False

    def _agrees(self, network: PackedTransformer) -> bool:
        """Return whether the packed pass agrees with the ordinary one, within rounding."""
        size = self.model.get_input_embeddings().num_embeddings
        lengths = network.telling_lengths
        texts = [(np.arange(n) * 7919 + n).astype(np.int32) % size for n in lengths]
        batch = TokenBatch(np.arange(len(texts)), texts, None)
        return self._distance(network, batch) < (1e-3 if self.dtype is torch.float32 else 0.1)

    def _distance(self, network: PackedTransformer, batch: TokenBatch) -> float:
        """Return how far a packed pass is from the ordinary one, as a share of its length."""
        ours, theirs = self.run_packed(network, batch).float(), self.run_padded(batch).float()
        return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-6))

    @property
    def packable(self) -> bool:
        """Whether ``run_packed`` knows the head of this model."""
        return True

    def run_packed(self, network: PackedTransformer, batch: TokenBatch) -> Tensor:
        """Return the last states of a batch by a packed pass, see ``output``."""
        return network.states(*self.laid_out(batch))

    def run_padded(self, batch: TokenBatch) -> Tensor:
        """Return the same by the model's own pass or the back end's."""
        features = self.padded(batch)
        states = self.by_backend(features) if self.backend else self.hidden(features)
        return states[features["attention_mask"].bool()]

    def by_backend(self, features: Features) -> Tensor:
        """Return the exported graph's output for padded features."""
        if self.backend is None:
            raise ModelError(
                "no back end was chosen; choose one with from_pretrained(..., backend=...)"
            )
        exported = self.backend.weights
        if exported is not None and exported != versions(self.module.parameters()):
            raise ModelError(
                f"{type(self).__name__}: its weights changed since its graph was exported; save it "
                "with encoder.backend = None and export that folder, or use backend: torch"
            )
        return self.backend.run(features).to(self.device)

    def hidden(self, features: Features) -> Tensor:
        """Return the model's last states ``[n, length, hidden]``."""
        packed = self.training_pass(features)
        if packed is not None:
            return packed.packing.padded(packed.states())
        states: Tensor = self.model(**features).last_hidden_state
        return states

    def training_pass(
        self, features: Features, present: Tensor | None = None
    ) -> TrainingPass | None:
        """Return the pass without padding that trains on a batch; None for the model's own pass.

        (Encoding has a faster one, see ``network``.) The first is compared with the model's own.
        ``present`` are the tokens with states, by default those that others attend to.
        """
        if not self.packed_training or torch.is_inference_mode_enabled():
            return None
        packed = TrainingPass.from_batch(self.model.base_model, features, present)
        if packed is not None and not self._training_compared:
            self._training_compared = True
            self.packed_training = self._trains_alike()
        return packed if self.packed_training else None

    def _trains_alike(self) -> bool:
        """Return whether the training pass agrees with the model's own; log a warning if not."""
        size = self.model.get_input_embeddings().num_embeddings
        texts = [(np.arange(n) * 7919 + n).astype(np.int32) % size for n in (2, 5, 5)]
        features = self.padded(TokenBatch(np.arange(3), texts, None))
        with self.arithmetic():
            packed = TrainingPass.from_batch(self.model.base_model, features)
            theirs = self.model.base_model(**features).last_hidden_state.float()
            ours = theirs if packed is None else packed.packing.padded(packed.states()).float()
            real = features["attention_mask"].bool()
            distance = (ours - theirs)[real].norm() / theirs[real].norm().clamp(min=1e-6)
        if distance < (1e-3 if self.dtype is torch.float32 else 0.1):
            return True
        log.warning(
            "%s: its packed pass for training differs from the ordinary one, which is used instead",
            type(self.model).__name__,
        )
        return False

    def output(self, batch: TokenBatch, network: PackedTransformer | None) -> Tensor:
        """Return the last states of a batch without padding, ``[tokens, hidden]``."""
        return self.run_padded(batch) if network is None else self.run_packed(network, batch)

    def laid_out(self, batch: TokenBatch) -> tuple[Tensor, list[int], Tensor | None]:
        """Return a batch's ids, lengths and segments, end to end ``[tokens]`` on the device."""
        ids = torch.from_numpy(np.concatenate(batch.ids).astype(np.int64))
        types = None
        if batch.types is not None:
            types = torch.from_numpy(np.concatenate(batch.types).astype(np.int64)).to(self.device)
        return ids.to(self.device), batch.lengths, types

    def padded(self, batch: TokenBatch) -> Features:
        """Return a batch padded, on the device."""
        features = self.pad(batch.ids, batch.types)
        return {name: values.to(self.device) for name, values in features.items()}

    @property
    def graph_mark(self) -> str | None:
        """What marks the vectors of a quantised graph; None for the model's own."""
        return None if self.backend is None else self.backend.mark

    def save_backend(self, folder: Path) -> dict[str, Any]:
        """Copy the exported graph in use into a model folder; return what to note about it."""
        return {} if self.backend is None else self.backend.save(folder)

    def as_saved(self, name: str, tensor: Tensor) -> Tensor:
        """Return a parameter as it is saved, which is how it is hashed."""
        return tensor

    def weights_hash(self) -> str:
        """Return a hash of parameters, tokenizer and architecture; recomputed only after a change.

        Changes are those that torch counts: writing through ``parameter.data`` is not among them,
        so write in place under ``torch.no_grad()`` instead.
        """
        tensors = dict(self.module.state_dict(keep_vars=True))
        # In-place updates (an optimiser's, a load's) raise a tensor's version counter.
        key = versions(tensors.values())
        if self._hashed is None or self._hashed[0] != key:
            merged = merged_state(self.module)
            self._hashed = (key, state_hash(merged, self.as_saved))
        return fingerprint_of(
            self._hashed[1], tokenizer_state(self.tokenizer), architecture_of(self.model)
        )
