"""What transformer encoders share: tokens, length-sorted batches, fingerprints."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from encoders.errors import ConfigError, ModelError
from encoders.files import fingerprint_of
from encoders.progress import progress

Dtype: TypeAlias = Literal["float32", "bfloat16", "auto"]
Features: TypeAlias = dict[str, Tensor]
PROGRESS_FROM = 2_000  # texts; shorter calls stay silent
_TOKENIZING = threading.Lock()  # not the encoder's own: encoders may share a tokenizer
CHUNK = 20_000  # texts tokenised and sorted together: bounds memory, keeps padding low


def pick_device(device: str) -> torch.device:
    """Return the device a name stands for; ``auto`` is CUDA, then MPS, then the CPU."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).cpu()  # fails where torch or the machine has no such device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        line = str(error).partition("\n")[0]
        raise ConfigError(f"device: {device!r} cannot be used here: {line}") from error
    return chosen


def pick_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """Return the arithmetic type: float32, or bfloat16 (``auto``: where the hardware has it)."""
    if dtype == "auto":
        if device.type == "cuda":
            fast = torch.cuda.is_bf16_supported()
        else:
            fast = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype not in known:
        raise ConfigError(f"dtype: {dtype!r}; expected 'float32', 'bfloat16' or 'auto'")
    return known[dtype]


def _tokenizer_state(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return sorted(tokenizer.get_vocab().items())
    state = json.loads(backend.to_str())
    # Calls leave their truncation and padding behind: they are no part of what it is.
    return {key: value for key, value in state.items() if key not in ("truncation", "padding")}


class TransformerModel:
    """A torch module with its tokenizer, device and arithmetic type.

    ``module`` holds every parameter in float32 and is trained in place; ``dtype`` decides only the
    arithmetic of encoding (bfloat16 by autocast).
    """

    def __init__(
        self, module: Any, tokenizer: Any, *, device: str, dtype: Dtype, batch_tokens: int
    ) -> None:
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device)
        self.module: nn.Module = module.to(self.device)
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens
        if tokenizer.pad_token is None:  # decoder models often come without one
            if tokenizer.eos_token is None:
                raise ModelError("the tokenizer has neither a padding nor an end-of-text token")
            tokenizer.pad_token = tokenizer.eos_token
        self._hashed: tuple[tuple[int, ...], str] | None = None

    @contextlib.contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Inference without gradients, in evaluation mode, in the encoder's arithmetic type."""
        training = self.module.training
        self.module.eval()
        half = self.dtype is not torch.float32
        try:
            with torch.inference_mode(), torch.autocast(self.device.type, self.dtype, enabled=half):
                yield
        finally:
            if training:  # else other threads may be in here
                self.module.train()

    def batches(self, tokens: Sequence[Sequence[int]]) -> Iterator[tuple[np.ndarray, Features]]:
        """Yield (positions, padded features): texts of like length together, by a token budget.

        The batch of the longest texts comes first, so that too little memory shows at once; the
        others in a mixed order, so that the time left can be told from the time gone.
        """
        lengths = np.fromiter((len(t) for t in tokens), np.int64, len(tokens))
        order = np.argsort(-lengths, kind="stable")
        starts = [0]
        while starts[-1] < len(order):
            longest = max(1, int(lengths[order[starts[-1]]]))
            starts.append(starts[-1] + max(1, self.batch_tokens // longest))
        spans = list(itertools.pairwise(starts))
        random.Random(len(spans)).shuffle(rest := spans[1:])
        for start, stop in spans[:1] + rest:
            chosen = order[start:stop]
            yield chosen, self.pad([tokens[i] for i in chosen])

    def tokenized(self, *texts: Sequence[str], length: int | None, types: bool = False) -> Any:
        """Tokenise texts, or pairs of them, with special tokens, cut at ``length``.

        Safe in threads: a fast tokenizer keeps the length between setting it and using it.
        """
        with _TOKENIZING:
            return self.tokenizer(
                *(list(part) for part in texts),
                truncation=length is not None,
                max_length=length,
                return_attention_mask=False,
                return_token_type_ids=types,
            )

    def pad(self, tokens: Sequence[Sequence[int]]) -> Features:
        """Return ``input_ids`` and ``attention_mask`` ``[n, longest]``, padded on the right."""
        longest = max(1, max(len(t) for t in tokens))
        ids = torch.full((len(tokens), longest), int(self.tokenizer.pad_token_id))
        mask = torch.zeros((len(tokens), longest), dtype=torch.long)
        for row, text in enumerate(tokens):
            ids[row, : len(text)] = torch.tensor(text, dtype=torch.long)
            mask[row, : len(text)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def map_batches(
        self,
        count: int,
        tokens_of: Callable[[int, int], Sequence[Sequence[int]]],
        store: Callable[[np.ndarray, Features], None],
        *,
        label: str,
        unit: str,
    ) -> None:
        """Tokenise in chunks, batch by length, and hand each batch to ``store(rows, features)``."""
        show = count >= PROGRESS_FROM
        with progress(label, count, unit, show=show) as advance, self.arithmetic():
            for start in range(0, count, CHUNK):
                tokens = tokens_of(start, min(count, start + CHUNK))
                for chosen, features in self.batches(tokens):
                    on_device = {key: value.to(self.device) for key, value in features.items()}
                    store(start + chosen, on_device)
                    advance(len(chosen))

    def weights_hash(self) -> str:
        """Return a hash of every parameter and of the tokenizer; recomputed only after a change.

        Changes are seen as torch counts them: writing through ``parameter.data`` is not counted,
        so write in place under ``torch.no_grad()`` instead.
        """
        tensors = dict(self.module.state_dict(keep_vars=True))
        # In-place updates (an optimiser's, a load's) raise a tensor's version counter.
        key = tuple(v for t in tensors.values() for v in (t.data_ptr(), t._version))
        if self._hashed is None or self._hashed[0] != key:
            digest = hashlib.sha256()
            for name in sorted(tensors):
                tensor = tensors[name].detach().cpu().contiguous()
                digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
                digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
            self._hashed = (key, digest.hexdigest())
        return fingerprint_of(self._hashed[1], _tokenizer_state(self.tokenizer))


class TextEncoder(TransformerModel):
    """A transformer over single texts, with prompts and lengths per side."""

    kind: str = ""

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        *,
        query_prompt: str = "",
        document_prompt: str = "",
        query_length: int = 512,
        document_length: int = 512,
        device: str = "auto",
        dtype: Dtype = "float32",
        batch_tokens: int = 4096,
    ) -> None:
        super().__init__(module, tokenizer, device=device, dtype=dtype, batch_tokens=batch_tokens)
        self.prompts = {"query": query_prompt, "document": document_prompt}
        self.lengths = {"query": query_length, "document": document_length}
        self.prompt_tokens = {side: self._prompt_tokens(side) for side in self.prompts}

    def _prompt_tokens(self, side: str) -> int:
        """Return how many tokens come before the text, and check that the length has more room."""
        if not self.prompts[side]:
            return 0
        ids: list[int] = self.tokenized([self.prompts[side]], length=None)["input_ids"][0]
        if len(ids) >= self.lengths[side]:
            raise ConfigError(
                f"{side}_prompt: takes {len(ids)} tokens, and {side}_length is "
                f"{self.lengths[side]}; no text would be read"
            )
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)

    def token_ids(self, texts: Sequence[str], side: str) -> list[list[int]]:
        """Return token ids with prompt and special tokens, cut at the side's length."""
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise ModelError(f"text {number} is a {type(text).__name__}, expected a string")
        if not texts:
            return []
        prompt = self.prompts[side]
        prompted = [prompt + text for text in texts] if prompt else list(texts)
        ids: list[list[int]] = self.tokenized(prompted, length=self.lengths[side])["input_ids"]
        return ids

    def tokenize(self, texts: Sequence[str], side: str) -> Features:
        """Return the padded features of a batch, ready for ``embed``."""
        return self.pad(self.token_ids(texts, side))

    def settings(self) -> Mapping[str, Any]:
        """Return what besides weights and tokenizer decides the vectors."""
        return {"kind": self.kind, "prompts": self.prompts, "lengths": self.lengths}

    @property
    def fingerprint(self) -> str:
        """A hash of weights, tokenizer, pooling, prompts and lengths (not of device or dtype)."""
        return fingerprint_of(self.weights_hash(), self.settings())
