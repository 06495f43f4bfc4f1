"""Dense bi-encoders: one vector per text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from encoders.chosen_backend import choose_backend
from encoders.encoder import Dense, Side
from encoders.errors import ConfigError, ModelError
from encoders.files import replaced_folder
from encoders.layout import read_layout, write_dense, write_sidecar
from encoders.loading import load, lowers, save, side_settings
from encoders.packed import PackedTransformer
from encoders.packed_attention import spans
from encoders.pooling import POOLINGS
from encoders.projection import Projection, draw_projection, read_projection, write_projection
from encoders.tokens import TokenBatch
from encoders.transformer import Dtype, Engine, Features, TextEncoder

Pooling = Literal["cls", "mean", "mean_sqrt", "max", "last", "weighted_mean"]


class DenseEncoder(TextEncoder):
    """A transformer, a pooling, an optional projection, an optional normalisation.

    Vectors are float32 ``[n, dim]``. With ``normalize`` they have unit length and the similarity is
    the cosine; without, it is the dot product. (Karpukhin et al., 2020, DPR; Reimers and Gurevych,
    2019, Sentence-BERT.)
    """

    kind = "dense"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        pooling: Pooling = "mean",
        projection: Projection | None = None,
        normalize: bool = True,
        pool_prompt: bool = True,
        **options: Any,
    ) -> None:
        if pooling not in POOLINGS:
            raise ConfigError(f"pooling: {pooling!r}; known: {', '.join(POOLINGS)}")
        parts = nn.ModuleDict({"model": model})
        if projection is not None:
            parts["projection"] = projection
        parts.train(model.training)  # a new module is in training mode
        super().__init__(parts, tokenizer, **options)
        self.model = model
        self.projection = projection
        self.pooling = pooling
        self.normalize = normalize
        self.pool_prompt = pool_prompt

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        pooling: Pooling | None = None,
        projection: int | None = None,
        normalize: bool | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        query_length: int | None = None,
        document_length: int | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
        batch_tokens: int | None = None,
        backend: Engine | None = None,
        backend_file: str | None = None,
        seed: int = 13,
    ) -> DenseEncoder:
        """Load a sentence-transformers folder or a bare transformers encoder, by path or hub id.

        Arguments left at None come from the folder; a bare encoder gets mean pooling and
        normalisation. ``projection`` adds a fresh linear layer to that many dimensions (its start
        is drawn by ``seed``). Lengths are in tokens, prompts are put before the text. ``backend``
        is torch, or an engine for the graph ``backend_file`` (``onnx/model.onnx``) that ``sluice
        export`` wrote into the folder; None is what the folder was saved with.
        """
        from transformers import AutoModel

        loaded = load(AutoModel, str(model))
        network, tokenizer, folder, _ = loaded
        if network.config.is_encoder_decoder:
            raise ModelError(
                f"{folder}: {type(network).__name__} has an encoder and a decoder; a dense encoder "
                "needs one stack of layers"
            )
        hidden = int(network.config.hidden_size)
        layout = read_layout(folder)
        if layout.splade_pooling:
            raise ModelError(
                f"{folder}: a SPLADE folder; load it with SpladeEncoder (type: splade)"
            )
        head = None
        if projection is not None:
            head = draw_projection(hidden, projection, seed)
        elif layout.projection:
            head = read_projection(layout.projection, hidden)
        if normalize is None:
            normalize = "Normalize" in layout.modules or not layout.modules
        sides = side_settings(
            loaded,
            layout,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            query_length=query_length,
            document_length=document_length,
        )
        encoder = cls(
            network,
            tokenizer,
            pooling=pooling or layout.pooling or "mean",  # type: ignore[arg-type]
            projection=head,
            normalize=normalize,
            pool_prompt=layout.pool_prompt,
            device=device,
            dtype=dtype,
            batch_tokens=batch_tokens,
            **sides,
        )
        choose_backend(
            encoder, folder, engine=backend, file=backend_file, dtype=dtype, noted=layout.sidecar
        )
        return encoder

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        if self.projection is not None:
            return self.projection.linear.out_features
        return int(self.model.config.hidden_size)

    @property
    def similarity(self) -> Literal["cosine", "dot"]:
        """The similarity the vectors are made for."""
        return "cosine" if self.normalize else "dot"

    def settings(self) -> Mapping[str, Any]:
        """Return what besides weights and tokenizer decides the vectors."""
        activation = self.projection.activation_name if self.projection else None
        return {
            **super().settings(), "pooling": self.pooling, "normalize": self.normalize,
            "pool_prompt": self.pool_prompt, "activation": activation,
        }  # fmt: skip

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return the vectors ``[n, dim]`` of tokenised texts, float32, with gradients."""
        return self._projected(
            self._pooled(self.hidden(features), features["attention_mask"], side)
        )

    def _pooled(self, states: Tensor, mask: Tensor, side: Side) -> Tensor:
        if not self.pool_prompt and self.prompts[side]:
            text = mask.clone()
            text[:, : self.prompt_tokens[side]] = 0
            # an empty text without a special token behind it: the prompt is all there is
            mask = torch.where(text.any(dim=1, keepdim=True), text, mask)
        return POOLINGS[self.pooling](states.float(), mask)

    def _projected(self, vectors: Tensor) -> Tensor:
        if self.projection is not None:
            vectors = self.projection(vectors).float()
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def encode_queries(self, texts: Sequence[str]) -> Dense:
        """Return the queries' vectors, float32 ``[n, dim]``, in input order."""
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> Dense:
        """Return the documents' vectors, float32 ``[n, dim]``, in input order."""
        return self._encode(texts, "document")

    def _encode(self, texts: Sequence[str], side: Side) -> Dense:
        vectors = np.zeros((len(texts), self.dim), np.float32)  # zeros for texts without tokens

        def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
            pooled = self._pooled_batch(batch, network, side)
            vectors[batch.rows] = self._projected(pooled).float().cpu().numpy()

        self.map_texts(texts, side, store)
        return vectors

    def _pooled_batch(
        self, batch: TokenBatch, network: PackedTransformer | None, side: Side
    ) -> Tensor:
        if network is not None and self.pooling == "cls" and self.pool_prompt:
            return network.first_states(*self.laid_out(batch)).float()
        states = self.output(batch, network)
        parts = []
        for span in spans(batch.lengths):
            texts = states[span.start : span.stop].view(span.texts, span.length, -1)
            mask = torch.ones(texts.shape[:2], dtype=torch.long, device=states.device)
            parts.append(self._pooled(texts, mask, side))
        return torch.cat(parts)

    def save_pretrained(self, path: str | Path) -> None:
        """Write a sentence-transformers folder (legacy layout), replacing ``path`` in one step."""
        with replaced_folder(Path(path)) as folder:
            save(self.model, folder)
            self.tokenizer.save_pretrained(folder)
            write_dense(
                folder,
                hidden=int(self.model.config.hidden_size),
                pooling=self.pooling,
                pool_prompt=self.pool_prompt,
                projected=self.projection is not None,
                normalize=self.normalize,
                max_length=max(self.lengths.values()),
                prompts=self.prompts,
                similarity=self.similarity,
                lower_case=lowers(self.tokenizer),
            )
            if self.projection is not None:
                write_projection(self.projection, folder / "2_Dense")
            write_sidecar(
                folder,
                {
                    "type": self.kind,
                    **self.save_backend(folder),
                    "query_length": self.lengths["query"],
                    "document_length": self.lengths["document"],
                },
            )
