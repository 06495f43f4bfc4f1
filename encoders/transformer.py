"""What transformer encoders share: loading, tokens, length-sorted batches, fingerprints."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from encoders.errors import ConfigError, ModelError
from encoders.files import fingerprint_of
from encoders.models import model_folder
from encoders.progress import progress

Dtype: TypeAlias = Literal["float32", "bfloat16", "auto"]
Features: TypeAlias = dict[str, Tensor]
PROGRESS_FROM = 2_000  # texts; shorter calls stay silent
CHUNK = 20_000  # texts tokenised and sorted together: bounds memory, keeps padding low


def pick_device(device: str) -> torch.device:
    """Return the device a name stands for; ``auto`` is CUDA, then MPS, then the CPU."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device: {device!r} is not a torch device") from error


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


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' load reports: what is missing or fresh is said by our own errors."""
    from transformers.utils import logging as hf

    level, bars = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hf.set_verbosity_error()
    hf.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf.set_verbosity(level)
        if bars:
            hf.enable_progress_bar()


def load(auto_class: Any, name: str, **options: Any) -> tuple[Any, Any, Path]:
    """Return ``(model, tokenizer, folder)`` of a local folder or hub id, in float32.

    Only safetensors are read, and no code from the folder is run. A missing or unfit folder is a
    ``ModelError``.
    """
    from safetensors import SafetensorError
    from transformers import AutoTokenizer

    folder = model_folder(name)
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder}: no config.json; expected a transformers model folder")
    with quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model = auto_class.from_pretrained(
                folder, use_safetensors=True, dtype=torch.float32, **options
            )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise ModelError(
                f"{folder}: cannot be loaded as {auto_class.__name__}: {line}"
            ) from error
    return model.eval(), tokenizer, folder


def save(model: Any, folder: Path) -> None:
    """Write a transformers model's configuration and safetensors without its progress bars."""
    with quiet_transformers():
        model.save_pretrained(folder)


def length_limit(tokenizer: Any, config: Any) -> int:
    """Return the longest input the model takes, in tokens."""
    limits = [int(getattr(tokenizer, "model_max_length", 512))]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        # RoBERTa's positions start behind the padding index.
        offset = (config.pad_token_id or 0) + 1 if config.model_type in _OFFSET_POSITIONS else 0
        limits.append(positions - offset)
    return min(limits) if min(limits) < 1_000_000 else 512


_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer"}


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
            self.module.train(training)

    def batches(self, tokens: Sequence[Sequence[int]]) -> Iterator[tuple[np.ndarray, Features]]:
        """Yield (positions, padded features) with the longest texts first, by a token budget."""
        lengths = np.fromiter((len(t) for t in tokens), np.int64, len(tokens))
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            size = max(1, self.batch_tokens // max(1, int(lengths[order[start]])))
            chosen = order[start : start + size]
            yield chosen, self.pad([tokens[i] for i in chosen])
            start += size

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
        """Return a hash of every parameter and of the tokenizer; recomputed only after a change."""
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

    def token_ids(self, texts: Sequence[str], side: str) -> list[list[int]]:
        """Return token ids with prompt and special tokens, cut at the side's length."""
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise ModelError(f"text {number} is a {type(text).__name__}, expected a string")
        if not texts:
            return []
        prompt = self.prompts[side]
        prompted = [prompt + text for text in texts] if prompt else list(texts)
        encoded = self.tokenizer(
            prompted,
            truncation=True,
            max_length=self.lengths[side],
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        ids: list[list[int]] = encoded["input_ids"]
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
