"""CSR encoders: a dense encoder, and a sparse autoencoder that makes codes of its vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import scipy.sparse as sp
import torch
from torch import Tensor, nn

from sluice.encoders.backends.devices import Dtype
from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.encoder import Side
from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.disk.folder_swap import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.added_module import add_module
from sluice.encoders.model_files.layout import AUTOENCODER, read_layout, read_modules, read_object
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.model_files.router import PROMPTS, write_prompts
from sluice.encoders.splade.csr.autoencoder import SparseAutoencoder
from sluice.encoders.splade.term_selection import sparse_rows
from sluice.encoders.transformer.model import Features
from sluice.encoders.transformer.network import with_modules
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder
from sluice.encoders.transformer.tokens import TokenBatch

MODULE = f"sentence_transformers.sparse_encoder.models.{AUTOENCODER}"
LIMIT = "max_active_dims"  # beside the prompts: the k that stands in place of the module's


class _Reader(DenseEncoder):
    """The dense encoder below the autoencoder."""

    own_module = AUTOENCODER


class CsrEncoder(TextEncoder):
    """A dense encoder whose vectors a sparse autoencoder turns into codes of ``top_k`` latents.

    Vectors are float32 ``csr_array [n, latents]``, 0 or more, served by an inverted index; the
    similarity is the dot product, or with ``normalize`` the cosine. It reads and writes the folders
    of sentence-transformers' ``SparseEncoder`` with the module ``SparseAutoEncoder``. (Wen et al.
    2025, Beyond Matryoshka: Contrastive Sparse Representation, arXiv 2503.01776.)
    """

    kind = "csr"
    head_parameters = ("autoencoder.",)

    def __init__(
        self, dense: DenseEncoder, autoencoder: SparseAutoencoder, *, normalize: bool = False
    ) -> None:
        parts = with_modules(dense.model, autoencoder=autoencoder, projection=dense.projection)
        super().__init__(
            parts, dense.tokenizer,
            query_prompt=dense.prompts["query"], document_prompt=dense.prompts["document"],
            query_length=dense.lengths["query"], document_length=dense.lengths["document"],
            device=str(dense.device), batch_tokens=dense.batch_tokens,
        )  # fmt: skip
        self.dtype = dense.dtype
        self.model = dense.model
        self.dense = dense
        self.autoencoder = autoencoder
        self.normalize: bool = normalize

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        top_k: int | None = None,
        normalize: bool | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        query_length: int | None = None,
        document_length: int | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
        batch_tokens: int | None = None,
    ) -> CsrEncoder:
        """Load a CSR folder, ours or sentence-transformers'.

        ``top_k`` is the most latents of a text, ``normalize`` scales codes to length 1; left at
        None they are the folder's, as are the other arguments, a dense encoder's. Raises
        ``ModelError`` for a folder without a sparse autoencoder.
        """
        folder = model_folder(str(model))
        layout = read_layout(folder)
        if AUTOENCODER not in layout.modules:
            raise ModelError(
                f"{folder}: has no sparse autoencoder; take a model that was trained as CSR, or "
                "this one as it is, by type: dense"
            )
        dense = _Reader.from_pretrained(
            model, query_prompt=query_prompt, document_prompt=document_prompt,
            query_length=query_length, document_length=document_length, device=device, dtype=dtype,
            weights="float32", batch_tokens=batch_tokens, backend="torch",
        )  # fmt: skip
        place = dict(read_modules(folder))[AUTOENCODER]
        autoencoder = SparseAutoencoder.read(place, dense.dim).to(dense.device)
        latents = len(autoencoder.weight)
        if top_k is not None and not (type(top_k) is int and 1 <= top_k <= latents):
            raise ConfigError(f"top_k: {top_k!r}; expected 1 to {latents}, the model's latents")
        autoencoder.top_k = top_k or _limit(folder, latents) or autoencoder.top_k
        unit = layout.similarity == "cosine" if normalize is None else normalize
        return cls(dense, autoencoder, normalize=unit)

    @property
    def dim(self) -> int:
        """The number of latents."""
        return len(self.autoencoder.weight)

    @property
    def top_k(self) -> int:
        """The most latents of a text."""
        return self.autoencoder.top_k

    @property
    def similarity(self) -> Literal["cosine", "dot"]:
        """The similarity the codes are made for."""
        return "cosine" if self.normalize else "dot"

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        return {
            **self.dense.settings(), **super().settings(), "top_k": self.top_k,
            "scaled": self.autoencoder.normalize, "unit_codes": self.normalize,
        }  # fmt: skip

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return the codes ``[n, latents]`` of tokenised texts, float32, with gradients."""
        return self.embed_both(features, side)[0]

    def embed_both(self, features: Features, side: Side) -> tuple[Tensor, Tensor]:
        """Return the codes, and the dense vectors ``[n, inputs]`` that they are of."""
        vectors = self.dense.embed(features, side)
        empty = ~features["attention_mask"].any(dim=1, keepdim=True)
        return self._codes(vectors).masked_fill(empty, 0.0), vectors.masked_fill(empty, 0.0)

    def embed_layers(self, features: Features, side: Side, layers: Sequence[int]) -> Tensor:
        """Return the codes and the dense vectors side by side, ``[n, latents + inputs]``.

        They are layer 0; ``ConfigError`` for any other.
        """
        if tuple(layers) != (0,):
            raise ConfigError(
                f"loss: needs the vectors of layers {tuple(layers)}, and a CSR encoder has codes "
                "of its last one alone; take the loss csr, or one over scores, such as info_nce"
            )
        return torch.cat(self.embed_both(features, side), dim=1)

    def _codes(self, vectors: Tensor) -> Tensor:
        codes: Tensor = self.autoencoder(vectors)
        return nn.functional.normalize(codes, dim=-1) if self.normalize else codes

    def encode_queries(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the queries' codes, float32 ``csr_array [n, latents]``, in input order."""
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the documents' codes, float32 ``csr_array [n, latents]``, in input order."""
        return self._encode(texts, "document")

    def _encode(self, texts: Sequence[str], side: Side) -> sp.csr_array:
        def codes(batch: TokenBatch, network: PackedTransformer | None) -> Tensor:
            return self._codes(self.dense.batch_vectors(batch, network, side))

        return sparse_rows(self, texts, side, codes)

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder that sentence-transformers' ``SparseEncoder`` reads too, in one step."""
        with replaced_folder(Path(path)) as folder:
            self.dense.save_pretrained(folder)
            place = add_module(folder, AUTOENCODER, {"type": self.kind}, target=MODULE)
            self.autoencoder.write(place)
            write_prompts(folder, "SparseEncoder", self.prompts, self.similarity)
            facts = read_object(folder / PROMPTS)
            write_json(folder / PROMPTS, {**facts, LIMIT: self.top_k})
            write_probes(folder, self)


def _limit(folder: Path, latents: int) -> int | None:
    """Return the most latents of a text that a folder notes beside its prompts."""
    limit = read_object(folder / PROMPTS).get(LIMIT)
    if limit is None:
        return None
    if type(limit) is not int or not 1 <= limit <= latents:
        raise ModelError(
            f"{folder / PROMPTS}: {LIMIT} is {limit!r}; expected 1 to {latents}, its latents"
        )
    return limit
