"""The transformer that three heads share: one pass makes what each of them needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.backends.devices import Dtype
from sluice.encoders.encoder import Side
from sluice.encoders.foundation.disk.folder_swap import replaced_folder
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.late_interaction.three_heads.memo import HEADS, Head, Memo, Part
from sluice.encoders.model_files.identity import versions
from sluice.encoders.model_files.layout import read_layout, write_dense, write_sidecar
from sluice.encoders.model_files.loading import load, lowers, save, side_settings
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder
from sluice.encoders.transformer.tokens import TokenBatch

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
        parts = nn.ModuleDict({"model": model, "sparse": sparse, "tokens": tokens})
        parts.train(model.training)
        super().__init__(parts, tokenizer, **options)
        self.model = model
        self.sparse_head, self.token_head = sparse, tokens
        self._special = sorted(set(tokenizer.all_special_ids))
        self._asked: set[Head] = set()
        self._memo = Memo(memo)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        query_length: int | None = None,
        document_length: int | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
        batch_tokens: int | None = None,
    ) -> Trunk:
        """Load a folder with ``sparse_linear.safetensors`` and ``colbert_linear.safetensors``.

        Raises ``ModelError`` without them; pickles (``.pt``) are not read.
        """
        from transformers import AutoModel

        loaded = load(AutoModel, str(model))
        network, tokenizer, folder, _ = loaded
        hidden = int(network.config.hidden_size)
        sparse = _read_head(folder, "sparse", hidden, outputs=1)
        tokens = _read_head(folder, "tokens", hidden, outputs=None)
        layout = read_layout(folder)
        if layout.pooling not in (None, "cls") or layout.projections:
            further = f"{layout.pooling} pooling" if layout.pooling != "cls" else "a Dense module"
            raise ModelError(
                f"{folder}: modules.json has {further}; expected cls pooling alone: the dense head "
                "of a model with three is the first token's state"
            )
        sides = side_settings(
            loaded,
            layout,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            query_length=query_length,
            document_length=document_length,
        )
        return cls(
            network,
            tokenizer,
            sparse=sparse,
            tokens=tokens,
            device=device,
            dtype=dtype,
            batch_tokens=batch_tokens,
            **sides,
        )

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

    def save_pretrained(self, path: str | Path, head: Head | None = None) -> None:
        """Write a sentence-transformers folder of the dense head, and the others' beside it.

        ``head`` is noted as the one that ``open_encoder`` opens.
        """
        from safetensors.torch import save_file

        with replaced_folder(Path(path)) as folder:
            save(self.model, folder)
            self.tokenizer.save_pretrained(folder)
            write_dense(
                folder,
                hidden=self.state_width,
                pooling="cls",
                pool_prompt=True,
                projections=0,
                normalize=True,
                max_length=max(self.lengths.values()),
                prompts=self.prompts,
                similarity="cosine",
                lower_case=lowers(self.tokenizer),
            )
            for name, layer in (("sparse", self.sparse_head), ("tokens", self.token_head)):
                state = {key: value.detach().cpu() for key, value in layer.state_dict().items()}
                save_file(state, folder / FILES[name])
            write_sidecar(
                folder,
                {
                    "type": self.kind,
                    "query_length": self.lengths["query"],
                    "document_length": self.lengths["document"],
                    **({} if head is None else {"head": head}),
                },
            )


def _key(text: str, side: Side) -> bytes:
    return hashlib.blake2b(f"{side}\n{text}".encode("utf-8", "surrogatepass")).digest()


def _read_head(folder: Path, head: str, hidden: int, outputs: int | None) -> nn.Linear:
    """Read a linear layer's ``weight`` ``[outputs, hidden]`` and ``bias``."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / FILES[head]
    if not file.exists():
        pickle = file.with_suffix(".pt")
        remedy = "expected a folder in BGE-M3's layout, its heads in safetensors"
        if pickle.exists():
            remedy = (
                f"{pickle.name} is a pickle, which Sluice does not open; where you trust it, write "
                f"safetensors.torch.save_file(torch.load('{pickle.name}', weights_only=True), "
                f"'{file.name}')"
            )
        raise ModelError(f"{file}: missing; {remedy}")
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
