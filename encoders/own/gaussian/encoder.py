"""Gaussian encoders: a mean and a variance of every text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sluice.encoders.backends.backend import choose_backend
from sluice.encoders.dense.pooling import POOLINGS
from sluice.encoders.encoder import Dense, Side
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.adapters import cut_layers
from sluice.encoders.model_files.layout import (
    read_layout,
    read_modules,
    refuse_others,
    write_sidecar,
)
from sluice.encoders.model_files.loading import load, text_settings
from sluice.encoders.model_files.options import TextGraphOptions, takes_options
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.own.gaussian.heads import VarianceHead, new_parts, read_parts
from sluice.encoders.transformer.decoder_attention import with_positions
from sluice.encoders.transformer.model import Features
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder, refuse_two_stacks, with_modules
from sluice.encoders.transformer.tokens import TokenBatch
from sluice.encoders.transformer.vector_layers import VectorLayer


class Gaussians(NamedTuple):
    """Means and variances ``[n, k]``."""

    means: NDArray[np.float64]
    variances: NDArray[np.float64]


def width_of(dimensions: int) -> int:
    """Return the width of the vectors of Gaussians of so many dimensions."""
    return 2 * dimensions + 1


def augmented(means: Tensor, variances: Tensor, side: Side, reference: float) -> Tensor:
    """Return vectors ``[n, 2k + 1]`` whose inner products are S; r is ``reference``."""
    if side == "query":
        return torch.cat([torch.ones_like(means[:, :1]), variances + means.square(), means], dim=1)
    precisions = 1 / variances
    bias = -((variances / reference).log() + means.square() * precisions).sum(1, keepdim=True)
    return torch.cat([bias, 1 / reference - precisions, 2 * means * precisions], dim=1)


def gaussians_of(vectors: NDArray[np.float32], side: Side, reference: float) -> Gaussians:
    """Return the Gaussians ``[n, k]`` that ``augmented`` made vectors ``[n, 2k + 1]`` of."""
    wide = np.asarray(vectors, np.float64)
    dimensions = wide.shape[1] // 2
    middle, last = wide[:, 1 : dimensions + 1], wide[:, dimensions + 1 :]
    if side == "query":
        return Gaussians(last, middle - last**2)
    variances = 1 / (1 / reference - middle)
    return Gaussians(last * variances / 2, variances)


Pooling = Literal["cls", "mean", "mean_sqrt", "max", "last", "weighted_mean"]


class GaussianEncoder(TextEncoder):
    """A transformer that makes a mean and a variance of every text, k numbers each.

    Documents are ranked by the negative Kullback-Leibler divergence of the query's Gaussian from
    theirs. Vectors are float32 ``[n, 2k + 1]``, made so that the divergence is an inner product:
    any index of inner products serves them. Those of queries and of documents are of two kinds, and
    only a query and a document can be compared. The mean is a dense encoder's vector; the variance
    is made of the state of a token before the text, or of the pooled state. (Zamani and Bendersky
    2023, Multivariate Representation Learning for Information Retrieval.)
    """

    kind = "gaussian"
    similarity: Literal["dot"] = "dot"
    one_way = True
    head_parameters = ("variance.",)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        variance: VarianceHead,
        pooling: Pooling = "mean",
        projection: VectorLayer | None = None,
        unit_means: bool = True,
        pool_prompt: bool = True,
        query_prompt: str = "",
        document_prompt: str = "",
        **options: Any,
    ) -> None:
        if pooling not in POOLINGS:
            raise ConfigError(f"pooling: {pooling!r}; known: {', '.join(POOLINGS)}")
        parts = with_modules(model, variance=variance, projection=projection)
        token = variance.settings.token
        super().__init__(
            parts,
            tokenizer,
            query_prompt=token + query_prompt,
            document_prompt=token + document_prompt,
            **options,
        )
        self.model = model
        self.variance = variance
        self.projection = projection
        self.pooling = pooling
        self.unit_means = unit_means
        self.pool_prompt = pool_prompt
        self._place = self._token_place(token) if token else None

    @classmethod
    @takes_options(TextGraphOptions)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        pooling: Pooling | None = None,
        projection: Annotated[
            int | dict[str, Any] | None,
            "Adds a new linear layer for the means, to so many dimensions, or several: {dim, "
            "layers, hidden, activation, residual}.",
        ] = None,
        normalize: Annotated[
            bool | None, "Scales means to length 1; left out, as the dense encoder does."
        ] = None,
        layers: int | None = None,
        variance_token: Annotated[
            str | None,
            "The token before every text that the variance is made of; empty: the pooled "
            "state. Left out, [unused0], or [VAR].",
        ] = None,
        start_variance: Annotated[
            float | None,
            "The variance that training starts from; left out, 0.1 for means of length 1, else 1.",
        ] = None,
        variance_floor: Annotated[float | None, "The least variance, 1e-4."] = None,
        beta: Annotated[
            float | None, "How sharply the softplus bends that makes variances of numbers, 1."
        ] = None,
        seed: int = 13,
        **options: Unpack[TextGraphOptions],
    ) -> GaussianEncoder:
        """Load a Gaussian encoder's folder, or start one from a dense encoder or a transformer.

        Arguments left at None come from the folder. A start's means are the dense encoder's vectors
        and all its variances are ``start_variance``, by default 0.1 where means have length 1 and 1
        otherwise, so that it ranks as the dense encoder does by distance: train it. ``projection``
        adds a new linear layer for the means, drawn by ``seed``, see ``draw_projection``.

        ``variance_token`` stands before every text, and the variance is made of its state: by
        default ``[unused0]`` where the vocabulary has it, else ``[VAR]``; it is not pooled, and is
        made one token where it is none: give a mark that no text has. Empty,
        the variance is made of the pooled state, which is the default for models whose tokens see
        only those before them. ``variance_floor`` (1e-4) is the least variance, ``beta`` (1) how
        sharply softplus bends.
        """
        from transformers import AutoModel

        loaded = load(AutoModel, str(model))
        network, tokenizer, folder, _ = loaded
        refuse_two_stacks(network, folder, "Gaussian encoder")
        layout = read_layout(folder)
        refuse_others(layout, folder, own="Gaussian")
        noted = {} if layout.gaussian is None else layout.sidecar  # a start's graph is not its own
        exported = (options["backend"] or noted.get("backend", "torch")) != "torch"
        cut_layers(network, layers, exported=exported)
        given = {
            "variance_token": variance_token, "start_variance": start_variance,
            "variance_floor": variance_floor, "beta": beta, "normalize": normalize,
            "projection": projection,
        }  # fmt: skip
        parts = (
            new_parts(layout, folder, network, tokenizer, given, seed)
            if layout.gaussian is None
            else read_parts(layout, layout.gaussian, int(network.config.hidden_size), given)
        )
        encoder = cls(
            network,
            tokenizer,
            variance=parts.variance,
            pooling=pooling or layout.pooling or "mean",  # type: ignore[arg-type]
            projection=parts.projection,
            unit_means=parts.unit,
            pool_prompt=layout.pool_prompt,
            **text_settings(loaded, layout, options),
        )
        choose_backend(encoder, folder, options, noted)
        return encoder

    @property
    def dim(self) -> int:
        """The width of a vector, 2k + 1."""
        return width_of(self.state_width if self.projection is None else self.projection.outputs)

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        return {
            **super().settings(), "pooling": self.pooling, "normalize": self.unit_means,
            "pool_prompt": self.pool_prompt, "variance": self.variance.settings._asdict(),
            "activation": self.projection.described if self.projection else None,
        }  # fmt: skip

    def hidden(self, features: Features) -> Tensor:
        """Return the states ``[n, length, hidden]`` the model ends in, padded on either side."""
        return super().hidden(with_positions(self.model, features))

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return the vectors ``[n, 2k + 1]`` of tokenised texts, float32, with gradients."""
        return self._vectors(self.hidden(features), features["attention_mask"], side)

    def encode_queries(self, texts: Sequence[str]) -> Dense:
        """Return the queries' vectors, float32 ``[n, 2k + 1]``, in input order."""
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> Dense:
        """Return the documents' vectors, float32 ``[n, 2k + 1]``, in input order."""
        return self._encode(texts, "document")

    def gaussians(self, vectors: NDArray[np.float32], side: Side) -> Gaussians:
        """Return the means and variances, float64 ``[n, k]``, that vectors of a side stand for."""
        return gaussians_of(vectors, side, self.variance.settings.start)

    def uncertainty(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the mean logarithm of the variances of queries, by their vectors: ``[n]``."""
        spread = self.gaussians(vectors, "query").variances
        # where a mean is large, float32 leaves little of a small variance
        floor = self.variance.settings.floor
        means: NDArray[np.float64] = np.log(np.maximum(spread, floor)).mean(axis=1)
        return means

    def _encode(self, texts: Sequence[str], side: Side) -> Dense:
        vectors = np.zeros((len(texts), self.dim), np.float32)
        if side == "document" and self.unit_means:
            # A text without tokens: as one at a right angle to the query, as for a dense encoder.
            # Zeros would be a mean of 0, which is nearer to every query than most documents are.
            vectors[:, 0] = -1 / self.variance.settings.start

        def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
            parts = [self._vectors(*each, side) for each in self.states_by_length(batch, network)]
            vectors[batch.rows] = torch.cat(parts).cpu().numpy()

        self.map_texts(texts, side, store)
        return vectors

    def _vectors(self, states: Tensor, mask: Tensor, side: Side) -> Tensor:
        """Return vectors of states ``[n, length, hidden]``, whose real tokens have mask 1."""
        with torch.autocast(states.device.type, enabled=False):
            states = states.float()
            pooled = POOLINGS[self.pooling](states, self._pooled_tokens(mask, side))
            read = pooled
            if self._place is not None:
                firsts = mask.long().argmax(dim=1)  # padding may be on the left
                read = states[torch.arange(len(states), device=states.device), firsts + self._place]
            means = pooled if self.projection is None else self.projection(pooled)
            if self.unit_means:
                means = nn.functional.normalize(means, dim=-1)
            reference = self.variance.settings.start
            return augmented(means, self.variance(read), side, reference)

    def _pooled_tokens(self, mask: Tensor, side: Side) -> Tensor:
        """Return the mask ``[n, length]`` without the variance's token, and the prompt's if set."""
        places = (mask.long().cumsum(dim=1) - 1).masked_fill(mask == 0, -1)
        left = mask.bool()
        if self._place is not None:
            left = left & (places != self._place)
        if not self.pool_prompt and self.prompts[side]:
            left = left & (places >= self.prompt_tokens[side])
        # an empty text without special tokens: nothing else is left
        return torch.where(left.any(dim=1, keepdim=True), left.to(mask.dtype), mask)

    def _token_place(self, token: str) -> int:
        """Return where among a text's tokens the variance's token stands."""
        known = self.tokenizer.get_vocab().get(token)
        ids = self.tokenized([token], length=None).ids[0].tolist()
        if known is None or known not in ids:
            raise ModelError(
                f"the tokenizer has no token {token!r}, which the variance is made of; it does not "
                "belong to this model"
            )
        return int(ids.index(known))

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder in sentence-transformers' layout, replacing ``path`` in one step.

        That package refuses it: it has no module that makes variances.
        """
        token = self.variance.settings.token
        with replaced_folder(Path(path)) as folder:
            facts = self.write_model(
                folder, projection=self.projection, pooling=self.pooling, own=("Gaussian",),
                pool_prompt=self.pool_prompt, normalize=self.unit_means, similarity="dot",
                prompts={side: each.removeprefix(token) for side, each in self.prompts.items()},
            )  # fmt: skip
            noted = self.variance.write(dict(read_modules(folder))["Gaussian"])
            write_sidecar(folder, {**facts, **self.save_backend(folder), **noted})
            write_probes(folder, self)
