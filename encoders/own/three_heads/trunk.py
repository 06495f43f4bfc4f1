"""The transformer that three heads share: one pass makes what each needs, once for each text."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.encoder import Side
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.late_interaction.folder import SEED
from sluice.encoders.model_files.identity import versions
from sluice.encoders.model_files.layout import read_layout, write_sidecar
from sluice.encoders.model_files.loading import load, text_settings
from sluice.encoders.model_files.options import TextOptions, takes_options
from sluice.encoders.model_files.weights.files import refuse_pickle
from sluice.encoders.own.three_heads.packing import HeadVectors, pack
from sluice.encoders.transformer.model import Features
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder, with_modules
from sluice.encoders.transformer.tokens import TokenBatch

Head: TypeAlias = Literal["dense", "sparse", "tokens"]
Part: TypeAlias = tuple[NDArray[Any], ...]  # arrays of one text by one head
HEADS: tuple[Head, ...] = ("dense", "sparse", "tokens")

_LOCK = threading.Lock()  # not a memo's own: locks cannot be copied


class Memo:
    """The parts of the texts asked for last, up to ``limit`` bytes; ``mark`` is the weights'.

    Another mark empties it. Safe in threads.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._mark: object = None
        self._parts: OrderedDict[tuple[bytes, Head], Part] = OrderedDict()

    def known(self, keys: Sequence[bytes], head: Head, mark: object) -> dict[bytes, Part]:
        """Return what is remembered of texts for one head."""
        with _LOCK:
            if mark != self._mark:
                self._parts.clear()
                self.size, self._mark = 0, mark
            found = {}
            for key in keys:
                part = self._parts.get((key, head))
                if part is not None:
                    self._parts.move_to_end((key, head))
                    found[key] = part
            return found

    def keep(self, key: bytes, head: Head, part: Part, mark: object) -> None:
        """Remember a part, and forget the oldest where the limit is passed."""
        with _LOCK:
            if mark != self._mark:
                return
            self._forget(key, head)
            self._parts[key, head] = part
            self.size += _bytes(part)
            while self.size > self.limit:
                self._forget(*next(iter(self._parts)))

    def _forget(self, key: bytes, head: Head) -> None:
        part = self._parts.pop((key, head), None)
        self.size -= 0 if part is None else _bytes(part)


def _bytes(part: Part) -> int:
    return sum(array.nbytes for array in part) + 200  # and about that for the objects around


log = logging.getLogger("sluice")

MEMO = 256 << 20  # bytes of the last texts' vectors
# The names of the heads' files, which BGE-M3 publishes as pickles (.pt).
FILES: Mapping[str, str] = {
    "sparse": "sparse_linear.safetensors",
    "tokens": "colbert_linear.safetensors",
}


class Trunk(TextEncoder):
    """A transformer with its heads, which remembers the last texts.

    What one head was asked for is computed for those that were asked before too, and kept in a memo
    of at most ``memo`` bytes. Heads that nobody asked for are not computed.
    """

    kind = "three_heads"
    head_parameters = ("sparse.", "tokens.")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        sparse: nn.Linear,
        tokens: nn.Linear,
        memo: int = MEMO,
        **options: Any,
    ) -> None:
        parts = with_modules(model, sparse=sparse, tokens=tokens)
        super().__init__(parts, tokenizer, **options)
        self.model = model
        self.sparse_head, self.token_head = sparse, tokens
        self._special = sorted(set(tokenizer.all_special_ids))
        self._asked: set[Head] = set()
        self._memo = Memo(memo)

    @classmethod
    @takes_options(TextOptions)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        dim: int | None = None,
        seed: int | None = None,
        **options: Unpack[TextOptions],
    ) -> Trunk:
        """Load a folder with ``sparse_linear.safetensors`` and ``colbert_linear.safetensors``.

        Raises ``ModelError`` without them, unless ``dim`` asks for new ones, drawn by ``seed``
        (13); pickles (``.pt``) are
        not read. ``ConfigError`` for a ``seed`` without ``dim``, which draws nothing.
        """
        from transformers import AutoModel

        if seed is not None and dim is None:
            raise ConfigError(
                "seed: draws new heads, and only dim asks for them; leave seed out, or give dim: "
                "128 too, and train them"
            )

        loaded = load(AutoModel, str(model))
        network, tokenizer, folder, _ = loaded
        hidden = int(network.config.hidden_size)
        layout = read_layout(folder)
        if dim is None:
            sparse = _read_head(folder, "sparse", hidden, outputs=1)
            tokens = _read_head(folder, "tokens", hidden, outputs=None)
        else:
            sparse, tokens = _new_heads(folder, hidden, dim, seed)
        pooled = layout.pooling not in (None, "cls") and dim is None
        if pooled or layout.layers:
            further = f"{layout.pooling} pooling" if pooled else f"a {layout.layers[0].kind} module"
            raise ModelError(
                f"{folder}: modules.json has {further}; expected cls pooling alone: the dense head "
                "of a model with three is the first token's state"
            )
        settings = text_settings(loaded, layout, options)
        return cls(network, tokenizer, sparse=sparse, tokens=tokens, **settings)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which remembers texts by itself."""
        return {**super().__getstate__(), "_memo": Memo(self._memo.limit)}

    def ask(self, head: Head) -> None:
        """Let passes from now on compute a head too."""
        self._asked.add(head)

    @property
    def asked(self) -> tuple[Head, ...]:
        """The heads that passes compute."""
        return tuple(head for head in HEADS if head in self._asked)

    @property
    def vocabulary_size(self) -> int:
        """The number of terms of sparse vectors."""
        return int(self.model.get_input_embeddings().num_embeddings)

    def parts(self, texts: Sequence[str], side: Side, head: Head) -> list[Part]:
        """Return what a head makes of texts, in their order; texts that are equal are read once.

        Dense: ``(vector [dim],)``; sparse: ``(terms, weights)``; tokens: ``(vectors [n, dim],)``.
        """
        self.ask(head)
        if len(self._asked) == 1:
            return self._encoded(texts, side, (head,))[head]
        mark = (self.settings(), versions(self.module.parameters()))
        keys = [_key(text, side) for text in texts]
        known = self._memo.known(list(dict.fromkeys(keys)), head, mark)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        heads = tuple(each for each in HEADS if each in self._asked)
        made = self._encoded(list(missing.values()), side, heads, head)
        for place, key in enumerate(missing):
            known[key] = made[head][place]
        for each, found in made.items():
            for key, part in zip(missing, found, strict=True):
                if part:
                    self._memo.keep(key, each, part, mark)
        return [known[key] for key in keys]

    def _encoded(
        self, texts: Sequence[str], side: Side, heads: Sequence[Head], first: Head | None = None
    ) -> dict[Head, list[Part]]:
        """Return the parts by head; of others than ``first`` as many as the memo would hold."""
        parts: dict[Head, list[Part]] = {head: [()] * len(texts) for head in heads}
        used = 0

        def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
            nonlocal used
            states = self.output(batch, network).float()
            fits = used < self._memo.limit
            for head in heads:
                if fits or head == first or first is None:
                    for row, part in zip(batch.rows, self._head(head, states, batch), strict=True):
                        parts[head][row] = part
                        used += sum(array.nbytes for array in part)

        self.map_texts(texts, side, store)
        return parts

    def _head(self, head: Head, states: Tensor, batch: TokenBatch) -> list[Part]:
        """Return what a head makes of a batch's states ``[tokens, hidden]``, text by text."""
        ends = np.cumsum(batch.lengths)
        starts = ends - batch.lengths
        if head == "dense":
            firsts = states[torch.from_numpy(starts).to(states.device)]
            vectors = functional.normalize(firsts, dim=-1).cpu().numpy()
            return [(vector,) for vector in vectors]
        if head == "tokens":
            vectors = functional.normalize(self.token_head(states).float(), dim=-1).cpu().numpy()
            spans = zip(starts.tolist(), ends.tolist(), strict=True)
            return [(vectors[start + 1 : end].copy(),) for start, end in spans]
        weights = torch.relu(self.sparse_head(states).float())[:, 0].cpu().numpy()
        parts = list[Part]()
        for ids, start, end in zip(batch.ids, starts.tolist(), ends.tolist(), strict=True):
            own = ~np.isin(ids, self._special) & (weights[start:end] > 0)
            terms, places = np.unique(ids[own], return_inverse=True)
            best = np.zeros(len(terms), np.float32)
            np.maximum.at(best, places, weights[start:end][own])
            parts.append((terms, best))
        return parts

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return the vectors of all heads, with gradients, in one tensor: see ``pack``."""
        states = self.hidden(features)
        ids, seen = features["input_ids"], features["attention_mask"].bool()
        others = seen.clone()
        others[:, 0] = False
        special = torch.isin(ids, torch.tensor(self._special, device=ids.device))
        tokens = functional.normalize(self.token_head(states).float(), dim=-1)
        weights = torch.relu(self.sparse_head(states).float())[:, :, 0]
        vectors = HeadVectors(
            functional.normalize(states[:, 0].float(), dim=-1),
            ids,
            weights * (seen & ~special),
            tokens * others[:, :, None],
        )
        return pack(vectors)

    def save_pretrained(self, path: str | Path, head: Head | None = None) -> None:
        """Write a sentence-transformers folder of the dense head, and the others' beside it.

        ``head`` is noted as the one that ``open_encoder`` opens.
        """
        from safetensors.torch import save_file

        with replaced_folder(Path(path)) as folder:
            facts = self.write_model(folder, pooling="cls", normalize=True, similarity="cosine")
            for name, layer in (("sparse", self.sparse_head), ("tokens", self.token_head)):
                state = {key: value.detach().cpu() for key, value in layer.state_dict().items()}
                save_file(state, folder / FILES[name])
            write_sidecar(folder, {**facts, **({} if head is None else {"head": head})})


def _key(text: str, side: Side) -> bytes:
    return hashlib.blake2b(f"{side}\n{text}".encode("utf-8", "surrogatepass")).digest()


def _new_heads(
    folder: Path, hidden: int, dim: int, seed: int | None
) -> tuple[nn.Linear, nn.Linear]:
    """Return a head of weights and one of ``dim`` dimensions, drawn, for a model without any."""
    whole_number(dim, "dim", 1)
    seed = SEED if seed is None else whole_number(seed, "seed", 0)
    for name in FILES.values():
        for file in (folder / name, (folder / name).with_suffix(".pt")):
            if file.exists():
                raise ConfigError(
                    f"dim: {dim}: draws new heads, and {folder} has its own ({file.name}); leave "
                    "dim out"
                )
    drawn = torch.Generator().manual_seed(seed)
    heads = []
    for outputs in (1, dim):
        layer = nn.Linear(hidden, outputs)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(outputs, hidden, generator=drawn) / hidden**0.5)
            layer.bias.zero_()
        heads.append(layer)
    log.warning(
        "%s: new heads of weights and of %s dimensions were drawn at random; train them before "
        "they are searched with",
        folder,
        dim,
    )
    return heads[0], heads[1]


def _read_head(folder: Path, head: str, hidden: int, outputs: int | None) -> nn.Linear:
    """Read a linear layer's ``weight`` ``[outputs, hidden]`` and ``bias``."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / FILES[head]
    if not file.exists():
        refuse_pickle(folder, [file.with_suffix(".pt")])
        raise ModelError(
            f"{file}: missing; expected a folder in BGE-M3's layout, its heads in safetensors; "
            "dim: 128 draws new heads, to be trained"
        )
    try:
        state = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error
    weight, bias = state.get("weight"), state.get("bias")
    wanted = [outputs or "dimensions", hidden]
    if (
        weight is None
        or weight.ndim != 2
        or weight.shape[1] != hidden
        or len(weight) != (outputs or len(weight))
        or not weight.is_floating_point()
        or (bias is not None and bias.shape != weight.shape[:1])
    ):
        found = {name: list(tensor.shape) for name, tensor in state.items()}
        raise ModelError(f"{file}: holds {found}; expected a weight {wanted}, and its bias")
    layer = nn.Linear(hidden, len(weight), bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer
