"""SPLADE: sparse vectors over the vocabulary from a masked-language-model head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from encoders.chosen_backend import choose_backend
from encoders.encoder import Side
from encoders.errors import ConfigError, ModelError
from encoders.files import replaced_folder
from encoders.layout import (
    read_layout,
    read_object,
    transformer_folder,
    write_sidecar,
    write_splade,
)
from encoders.loading import load, lowers, save, side_settings
from encoders.models import model_folder
from encoders.packed import PackedTransformer
from encoders.packed_attention import spans
from encoders.packed_heads import vocabulary_head
from encoders.splade_head import VocabularyProduct
from encoders.splade_pooling import splade_max, splade_sum
from encoders.tensor_versions import versions
from encoders.tokens import TokenBatch
from encoders.transformer import Dtype, Engine, Features, TextEncoder

Terms: TypeAlias = NDArray[np.int32]
Weights: TypeAlias = NDArray[np.float32]

TEXTS = 512  # of one pass: a row of the vocabulary each, 60 MB, is there at a time
_POOLS = {"max": splade_max, "sum": splade_sum}
_ACTIVATIONS = ("relu", "log1p_relu")
_QUERY_MODELS = ("shared", "bow")


class SpladeEncoder(TextEncoder):
    """Term weights ``w_j = pool_i log(1 + relu(logit_ij))`` over the real positions ``i``.

    Vectors are float32 ``csr_array [n, vocab]`` with sorted indices; the similarity is the dot
    product. ``pooling`` is max (v2, the default) or sum (v1); ``query_top_k`` and
    ``document_top_k`` keep only the heaviest terms of a text (ties: the lower term id);
    ``query_model="bow"`` is SPLADE-doc: a query is the set of its own tokens with weight 1 and no
    network runs for it. (Formal et al., 2021, arXiv 2107.05720 and 2109.10086.)
    """

    kind = "splade"
    similarity: Literal["dot"] = "dot"
    head_parameters = ("cls.", "lm_head.", "vocab_", "head.", "decoder.")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        pooling: Literal["max", "sum"] = "max",
        activation: Literal["relu", "log1p_relu"] = "relu",
        query_model: Literal["shared", "bow"] = "shared",
        query_top_k: int | None = None,
        document_top_k: int | None = None,
        **options: Any,
    ) -> None:
        if pooling not in _POOLS:
            raise ConfigError(f"pooling: {pooling!r}; SPLADE pools by max or sum")
        if activation not in _ACTIVATIONS:
            raise ConfigError(f"activation: {activation!r}; known: {', '.join(_ACTIVATIONS)}")
        if query_model not in _QUERY_MODELS:
            raise ConfigError(f"query_model: {query_model!r}; known: {', '.join(_QUERY_MODELS)}")
        for name, limit in (("query_top_k", query_top_k), ("document_top_k", document_top_k)):
            if limit is not None and (type(limit) is not int or limit < 1):
                raise ConfigError(f"{name}: {limit!r}; expected 1 or more, or nothing for no limit")
        super().__init__(model, tokenizer, **options)
        self.model = model
        self.pooling = pooling
        self.activation = activation
        self.query_model = query_model
        self.top_k = {"query": query_top_k, "document": document_top_k}
        decoder = model.get_output_embeddings()
        if not isinstance(decoder, nn.Linear):
            raise ModelError(
                f"{type(model).__name__} ends in {type(decoder).__name__}, expected a masked "
                "language model whose last layer is linear over the vocabulary"
            )
        self._decoder = decoder
        # The pooling applies the decoder itself, in chunks; inside the model it passes through.
        decoder.forward = _passed_through  # type: ignore[assignment]
        self._product: tuple[Any, VocabularyProduct] | None = None
        self._check_states()
        special = [i for i in tokenizer.all_special_ids if i < decoder.out_features]
        self._special = torch.tensor(sorted(special), dtype=torch.long)

    def _check_states(self) -> None:
        """Check that the head ends in its decoder: MobileBERT's reads the weights around it."""
        one = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        try:
            with self.arithmetic():
                width = self.model(input_ids=one, attention_mask=one + 1).logits.shape[-1]
        except RuntimeError:
            width = -1
        if width != self._decoder.in_features:
            raise ModelError(
                f"{type(self.model).__name__}: its head does more than a linear layer over the "
                "vocabulary at its end; SPLADE runs on BERT-like heads"
            )

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        pooling: Literal["max", "sum"] | None = None,
        activation: Literal["relu", "log1p_relu"] | None = None,
        query_model: Literal["shared", "bow"] | None = None,
        query_top_k: int | None = None,
        document_top_k: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        query_length: int | None = None,
        document_length: int | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
        batch_tokens: int | None = None,
        backend: Engine | None = None,
        backend_file: str | None = None,
    ) -> SpladeEncoder:
        """Load a masked language model or a SPLADE folder (ours or sentence-transformers').

        Arguments left at None come from the folder. An encoder without a language-model head is
        a ``ModelError``: ``encoders.start_splade`` gives it one. ``backend`` is as
        in ``DenseEncoder``.
        """
        from transformers import AutoModelForMaskedLM

        source = model_folder(str(model))
        if not has_mlm_head(source):
            raise ModelError(
                f"{source}: has no masked-language-model head; start one from texts with "
                "encoders.start_splade(model, texts), or `start: true` under encoder: in YAML"
            )
        loaded = load(AutoModelForMaskedLM, str(model))
        network, tokenizer, folder, _ = loaded
        layout = read_layout(folder)
        if "Pooling" in layout.modules:
            raise ModelError(f"{folder}: a dense folder; load it with DenseEncoder (type: dense)")
        sides = side_settings(
            loaded,
            layout,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            query_length=query_length,
            document_length=document_length,
        )
        found: dict[str, Any] = {
            "pooling": layout.splade_pooling or "max",
            "activation": layout.activation,
            "query_model": layout.sidecar.get("query_model", "shared"),
            "query_top_k": layout.sidecar.get("query_top_k"),
            "document_top_k": layout.sidecar.get("document_top_k"),
        }
        asked = {
            "pooling": pooling, "activation": activation, "query_model": query_model,
            "query_top_k": query_top_k, "document_top_k": document_top_k,
        }  # fmt: skip
        found |= {key: value for key, value in asked.items() if value is not None}
        encoder = cls(
            network,
            tokenizer,
            device=device,
            dtype=dtype,
            batch_tokens=batch_tokens,
            **found,
            **sides,
        )
        choose_backend(
            encoder, folder, engine=backend, file=backend_file, dtype=dtype, noted=layout.sidecar
        )
        return encoder

    @property
    def dim(self) -> int:
        """The size of the vocabulary."""
        return self._decoder.out_features

    def settings(self) -> Mapping[str, Any]:
        """Return what besides weights and tokenizer decides the vectors."""
        return {
            **super().settings(), "pooling": self.pooling, "activation": self.activation,
            "query_model": self.query_model, "top_k": self.top_k,
        }  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy begins with, see ``TransformerModel``."""
        return {**super().__getstate__(), "_product": None}

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return term weights ``[n, vocab]`` of tokenised texts, float32, with gradients."""
        ids, mask = features["input_ids"], features["attention_mask"]
        if side == "query" and self.query_model == "bow":
            vectors = torch.zeros((len(ids), self.dim), device=ids.device)
            vectors.scatter_reduce_(1, ids, mask.float(), reduce="amax")
            vectors[:, self._special.to(ids.device)] = 0.0
            return vectors
        vectors = _POOLS[self.pooling](
            self.hidden(features), mask, self._decoder.weight, self._bias(),
            twice=self.activation == "log1p_relu",
        )  # fmt: skip
        limit = self.top_k[side]
        return keep_top(vectors, limit) if limit is not None else vectors

    def _weights(self, batch: TokenBatch, network: PackedTransformer | None) -> Tensor:
        """Return term weights ``[n, vocab]`` of a batch, before any top-k."""
        key = (self.dtype, *versions(self._decoder.parameters()))
        if self._product is None or self._product[0] != key:
            made = VocabularyProduct(self._decoder.weight, self._bias(), self.dtype)
            self._product = key, made
        return self._product[1](
            self.output(batch, network),
            list(spans(batch.lengths)),
            pooling=self.pooling,
            twice=self.activation == "log1p_relu",
        )

    def hidden(self, features: Features) -> Tensor:
        """Return the states ``[n, length, hidden]`` before the product with the vocabulary."""
        states: Tensor = self.model(**features).logits
        return states

    @property
    def packable(self) -> bool:
        """Whether the head of this model is known."""
        return vocabulary_head(self.model) is not None

    def run_packed(self, network: PackedTransformer, batch: TokenBatch) -> Tensor:
        """Return the states before the product with the vocabulary, by a packed pass."""
        states = super().run_packed(network, batch)
        head = vocabulary_head(self.model)
        return states if head is None else head(states)

    def _bias(self) -> Tensor:
        bias: Tensor | None = self._decoder.bias
        if bias is None:
            return torch.zeros(self.dim, device=self._decoder.weight.device)
        return bias

    def encode_queries(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the queries' term weights, float32 ``csr_array [n, vocab]``, in input order."""
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the documents' term weights, float32 ``csr_array [n, vocab]``, in input order."""
        return self._encode(texts, "document")

    def terms(self, columns: Sequence[int]) -> list[str]:
        """Return the tokenizer's tokens of columns; one it has no token for is ``[column]``."""
        tokens = self.tokenizer.convert_ids_to_tokens([int(column) for column in columns])
        named = zip(columns, tokens, strict=True)
        return [f"[{column}]" if token is None else str(token) for column, token in named]

    def _encode(self, texts: Sequence[str], side: Side) -> sp.csr_array:
        if side == "query" and self.query_model == "bow":
            return self._bags(texts)
        terms: list[np.ndarray] = [np.empty(0, np.int32)] * len(texts)
        weights: list[np.ndarray] = [np.empty(0, np.float32)] * len(texts)

        def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
            for part in batch.parts(TEXTS):
                matrix = sp.csr_array(self._weights(part, network).cpu().numpy())
                for place, row in enumerate(part.rows):
                    span = slice(matrix.indptr[place], matrix.indptr[place + 1])
                    terms[row], weights[row] = heaviest(
                        matrix.indices[span], matrix.data[span], self.top_k[side]
                    )

        self.map_texts(texts, side, store)
        return self._joined(terms, weights)

    def _bags(self, texts: Sequence[str]) -> sp.csr_array:
        """Return each query's own tokens with weight 1; no network runs."""
        special = self._special.numpy()
        bags = [np.setdiff1d(ids, special) for ids in self.tokens(texts, "query").ids]
        return self._joined(bags, [np.ones(len(bag), np.float32) for bag in bags])

    def _joined(self, terms: list[Terms], weights: list[Weights]) -> sp.csr_array:
        pointers = np.zeros(len(terms) + 1, np.int64)
        np.cumsum([len(t) for t in terms], out=pointers[1:])
        indices = np.concatenate(terms).astype(np.int32) if terms else np.empty(0, np.int32)
        data = np.concatenate(weights) if weights else np.empty(0, np.float32)
        return sp.csr_array((data, indices, pointers), shape=(len(terms), self.dim))

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder that sentence-transformers' SparseEncoder loads, in one step."""
        with replaced_folder(Path(path)) as folder:
            save(self.model, folder)
            self.tokenizer.save_pretrained(folder)
            write_splade(
                folder,
                vocabulary=self.dim,
                pooling=self.pooling,
                activation=self.activation,
                max_length=max(self.lengths.values()),
                prompts=self.prompts,
                lower_case=lowers(self.tokenizer),
            )
            write_sidecar(
                folder,
                {
                    "type": self.kind,
                    **self.save_backend(folder),
                    "query_length": self.lengths["query"],
                    "document_length": self.lengths["document"],
                    "query_model": self.query_model,
                    "query_top_k": self.top_k["query"],
                    "document_top_k": self.top_k["document"],
                },
            )


def keep_top(vectors: Tensor, limit: int) -> Tensor:
    """Keep the ``limit`` largest weights of each row and zero the rest; ties: the lower column."""
    if limit < 1:
        raise ConfigError(f"top_k: {limit}; expected 1 or more, or nothing for no limit")
    if limit >= vectors.shape[1]:
        return vectors
    order = torch.sort(vectors.detach(), dim=1, descending=True, stable=True).indices[:, :limit]
    return vectors * torch.zeros_like(vectors).scatter_(1, order, 1.0)


def heaviest(terms: Terms, weights: Weights, limit: int | None) -> tuple[Terms, Weights]:
    """Keep the ``limit`` heaviest terms of one text, in order of term; ties: the lower term."""
    if limit is None or len(terms) <= limit:
        return terms, weights
    kept = np.sort(np.lexsort((terms, -weights))[:limit])
    return terms[kept], weights[kept]


def has_mlm_head(folder: Path) -> bool:
    """Return whether a model folder's architecture is a masked language model."""
    config = transformer_folder(folder) / "config.json"
    if not config.exists():
        raise ModelError(f"{config.parent}: no config.json; expected a transformers model folder")
    names = read_object(config).get("architectures")
    return isinstance(names, list) and any(str(name).endswith("ForMaskedLM") for name in names)


def _passed_through(states: Tensor) -> Tensor:
    return states
