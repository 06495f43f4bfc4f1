"""Pseudo-query encoders: one vector a query, the centroids of its tokens' states a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize as unit

from sluice.encoders.dense.pooling import POOLINGS
from sluice.encoders.encoder import Dense, Side
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.model_files.adapters import cut_layers
from sluice.encoders.model_files.layout import (
    SIDECAR,
    Layout,
    read_layout,
    refuse_others,
    write_sidecar,
)
from sluice.encoders.model_files.loading import load, text_settings
from sluice.encoders.model_files.options import TextOptions, takes_options
from sluice.encoders.transformer.decoder_attention import with_positions
from sluice.encoders.transformer.model import Features
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.projection import chosen_projection
from sluice.encoders.transformer.text_encoder import TextEncoder, refuse_two_stacks, with_modules
from sluice.encoders.transformer.tokens import TokenBatch
from sluice.encoders.transformer.vector_layers import VectorLayer


class Centroids(NamedTuple):
    """Means ``[n, k, hidden]`` of texts' clusters, and which of them have tokens, ``[n, k]``.

    Those without are zeros.
    """

    means: Tensor
    filled: Tensor


def centroids(states: Tensor, mask: Tensor, count: int, rounds: int) -> Centroids:
    """Return the centroids of texts' token states ``[n, length, hidden]``, with gradients.

    Real tokens have mask 1, ``[n, length]``. Which token is in which cluster is taken as given: the
    gradient of a centroid goes to its tokens alike. A text of no more than ``count`` tokens has a
    centroid for each.
    """
    with torch.no_grad():
        clusters = assigned(states.detach().float(), mask, count, rounds)
    return _means(states, _members(clusters, count, states.dtype))


def assigned(states: Tensor, mask: Tensor, count: int, rounds: int) -> Tensor:
    """Return the cluster of each token, ``[n, length]``, -1 for padding.

    Lloyd's algorithm by Euclidean distance: it starts at ``count`` tokens evenly spaced over the
    text, and ends when no token moves, or after ``rounds``. A token as far from two centroids is in
    the first; a cluster that loses its tokens keeps its place. A text's clusters depend on no other
    text of the batch.
    """
    real = mask.bool()
    tokens = real.sum(dim=1, keepdim=True)  # [n, 1]
    clusters = tokens.clamp(max=count)
    numbers = torch.arange(count, device=states.device)
    used = numbers < clusters  # [n, count]
    starts = (2 * numbers + 1) * tokens // (2 * clusters).clamp(min=1)
    order = torch.argsort((~real).long(), dim=1, stable=True)  # real tokens first, in their order
    places = order.gather(1, starts.clamp(max=mask.shape[1] - 1))
    rows = torch.arange(len(states), device=states.device)[:, None]
    centres = states[rows, places]
    found = torch.full_like(mask, -1, dtype=torch.long)
    for _ in range(rounds):
        distances = centres.square().sum(2)[:, None] - 2 * states @ centres.transpose(1, 2)
        nearest = distances.masked_fill(~used[:, None], torch.inf).argmin(dim=2)
        nearest = nearest.masked_fill(~real, -1)
        if torch.equal(nearest, found):
            break
        found = nearest
        moved = _means(states, _members(found, count, states.dtype))
        centres = torch.where(moved.filled[..., None], moved.means, centres)
    return found


def _members(clusters: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return 1 where a cluster has a token, ``[n, count, length]``."""
    numbers = torch.arange(count, device=clusters.device)[:, None]
    return (clusters[:, None] == numbers).to(dtype)


def _means(states: Tensor, members: Tensor) -> Centroids:
    sizes = members.sum(dim=2, keepdim=True)
    return Centroids(members @ states / sizes.clamp(min=1), sizes.squeeze(2) > 0)


Pooling = Literal["cls", "mean", "mean_sqrt", "max", "last", "weighted_mean"]
MODULE, KEY = "PseudoQueries", "pseudo_queries"  # in modules.json and in sluice.json
UNIT_SHARPNESS = 20.0  # where vectors have length 1: scores begin as those of a dense encoder
TRAINING_ROUNDS = 5  # of k-means at most, in training; most texts are settled by then


class Clustering(NamedTuple):
    """How documents are cut: into ``centroids`` clusters, in ``rounds`` of k-means at most.

    ``sharpness`` multiplies the vectors of queries.
    """

    centroids: int = 8
    rounds: int = 20
    sharpness: float = 1.0

    def checked(self) -> Clustering:
        """Return the same settings; ``ConfigError`` for those that cannot be."""
        sharpness = finite_number(self.sharpness, "sharpness")
        if sharpness <= 0:
            raise ConfigError(f"sharpness: {self.sharpness!r}, expected a number above 0")
        return Clustering(
            whole_number(self.centroids, "centroids", 1),
            whole_number(self.rounds, "rounds", 1),
            sharpness,
        )


class PseudoQueryEncoder(TextEncoder):
    """A transformer that makes one vector of a query and several of a document.

    Those of a document are the centroids of its own tokens' states, by a k-means without chance:
    each stands for a query that the document could answer. The score is <q, sum_j a_j c_j> with
    a = softmax_j <q, c_j>: the query attends to the centroids like itself. (Tang et al. 2021,
    Improving Document Representations by Generating Pseudo Query Embeddings for Dense Retrieval.)
    With ``unit_vectors`` all have length 1; the query's is multiplied by ``clustering.sharpness``.

    Queries are float32 ``[n, dim]``, documents ``TokenVectors``: as many vectors as a text has
    clusters, at most ``clustering.centroids``. With one centroid the score is that of a dense
    encoder with mean pooling, times the sharpness.
    """

    kind = "pseudo_queries"
    similarity: Literal["attention"] = "attention"
    head_parameters = ("projection.",)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        clustering: Clustering,
        pooling: Pooling = "mean",
        projection: VectorLayer | None = None,
        unit_vectors: bool = True,
        pool_prompt: bool = True,
        **options: Any,
    ) -> None:
        if pooling not in POOLINGS:
            raise ConfigError(f"pooling: {pooling!r}; known: {', '.join(POOLINGS)}")
        parts = with_modules(model, projection=projection)
        super().__init__(parts, tokenizer, **options)
        self.model = model
        self.projection = projection
        self.pooling = pooling
        self.unit_vectors = unit_vectors
        self.pool_prompt = pool_prompt
        self.clustering = clustering.checked()

    @classmethod
    @takes_options(TextOptions)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        centroids: Annotated[int | None, "The most vectors of a document, 8."] = None,
        rounds: Annotated[int | None, "Rounds of k-means at most, 20; 5 in training."] = None,
        sharpness: Annotated[
            float | None,
            "Multiplies queries: the larger, the more a document's best vector alone counts. "
            "20 for vectors of length 1, else 1.",
        ] = None,
        pooling: Annotated[
            Pooling | None,
            "How a query's token vectors become one; left out, as the model's folder says.",
        ] = None,
        projection: int | dict[str, Any] | None = None,
        normalize: Annotated[
            bool | None,
            "Scales vectors to length 1, queries then to sharpness; left out, as the dense "
            "encoder does.",
        ] = None,
        layers: int | None = None,
        seed: int = 13,
        **options: Unpack[TextOptions],
    ) -> PseudoQueryEncoder:
        """Load a pseudo-query encoder's folder, or start one from a dense encoder: train it.

        Arguments left at None come from the folder. ``centroids`` is the most vectors of a document
        (8), ``rounds`` how long k-means may take (20; 5 in training). ``sharpness`` multiplies
        queries, and so the scores: the larger, the more the best centroid alone counts. It is 20
        for new encoders whose vectors have length 1, and else 1, as in the paper. ``pooling`` is
        the queries'. ``projection`` adds a new linear layer that queries and centroids pass, drawn
        by ``seed``, see ``draw_projection``.
        """
        from transformers import AutoModel

        loaded = load(AutoModel, str(model))
        network, tokenizer, folder, _ = loaded
        refuse_two_stacks(network, folder, "pseudo-query encoder")
        layout = read_layout(folder)
        _check_start(layout, folder)
        cut_layers(network, layers)
        hidden = int(network.config.hidden_size)
        head = chosen_projection(projection, layout.layers, hidden, seed)
        bare = not layout.modules
        units = "Normalize" in layout.modules or bare if normalize is None else normalize
        given = {"centroids": centroids, "rounds": rounds, "sharpness": sharpness}
        usual = UNIT_SHARPNESS if units else 1.0
        return cls(
            network,
            tokenizer,
            clustering=_clustering(layout, folder, given, usual),
            pooling=pooling or layout.pooling or "mean",  # type: ignore[arg-type]
            projection=head,
            unit_vectors=units,
            pool_prompt=layout.pool_prompt,
            **text_settings(loaded, layout, options),
        )

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return self.state_width if self.projection is None else self.projection.outputs

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        return {
            **super().settings(), "pooling": self.pooling, "normalize": self.unit_vectors,
            "pool_prompt": self.pool_prompt, "clustering": self.clustering._asdict(),
            "activation": self.projection.described if self.projection else None,
        }  # fmt: skip

    def hidden(self, features: Features) -> Tensor:
        """Return the states ``[n, length, hidden]`` the model ends in, padded on either side."""
        return super().hidden(with_positions(self.model, features))

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return vectors of tokenised texts, float32, with gradients.

        Queries are ``[n, dim]``, documents ``[n, k, dim]``; rows of zeros are padding.
        """
        states, mask = self.hidden(features), features["attention_mask"]
        if side == "query":
            return self._query(states, mask)
        rounds = min(self.clustering.rounds, TRAINING_ROUNDS)
        made = self._centroids(states, mask, rounds)
        return made.means.masked_fill(~made.filled[..., None], 0)

    def encode_queries(self, texts: Sequence[str]) -> Dense:
        """Return the queries' vectors, float32 ``[n, dim]``, in input order."""
        vectors = np.zeros((len(texts), self.dim), np.float32)

        def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
            parts = [self._query(*each) for each in self.states_by_length(batch, network)]
            vectors[batch.rows] = torch.cat(parts).cpu().numpy()

        self.map_texts(texts, "query", store)
        return vectors

    def encode_documents(self, texts: Sequence[str]) -> TokenVectors:
        """Return the centroids of the documents, in input order; a text without tokens has none."""
        vectors = np.zeros((len(texts), self._most, self.dim), np.float32)
        filled = np.zeros((len(texts), self._most), np.bool_)

        def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
            done = 0
            for states, mask in self.states_by_length(batch, network):
                made = self._centroids(states, mask, self.clustering.rounds)
                rows = batch.rows[done : done + len(states)]
                vectors[rows] = made.means.cpu().numpy()
                filled[rows] = made.filled.cpu().numpy()
                done += len(states)

        self.map_texts(texts, "document", store)
        bounds = np.concatenate([[0], np.cumsum(filled.sum(axis=1))])
        return TokenVectors(vectors[filled], bounds)

    @property
    def _most(self) -> int:
        """The most centroids that a document can have."""
        return min(self.clustering.centroids, self.lengths["document"])

    def _query(self, states: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast(states.device.type, enabled=False):
            pooled = POOLINGS[self.pooling](states.float(), self._own(mask, "query"))
            return self.clustering.sharpness * self._projected(pooled)

    def _centroids(self, states: Tensor, mask: Tensor, rounds: int) -> Centroids:
        with torch.autocast(states.device.type, enabled=False):
            own = self._own(mask, "document")
            means, filled = centroids(states.float(), own, self._most, rounds)
            return Centroids(self._projected(means), filled)

    def _own(self, mask: Tensor, side: Side) -> Tensor:
        """Return the mask without the prompt's tokens, where these are not pooled."""
        if self.pool_prompt or not self.prompts[side]:
            return mask
        places = (mask.long().cumsum(dim=1) - 1).masked_fill(mask == 0, -1)
        left = places >= self.prompt_tokens[side]
        # an empty text without a special token at its end: only the prompt is left
        return torch.where(left.any(dim=1, keepdim=True), left.to(mask.dtype), mask)

    def _projected(self, vectors: Tensor) -> Tensor:
        if self.projection is not None:
            vectors = self.projection(vectors).float()
        return unit(vectors, dim=-1) if self.unit_vectors else vectors

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder in sentence-transformers' layout, replacing ``path`` in one step.

        That package refuses it: it has no module that makes several vectors of a document.
        """
        with replaced_folder(Path(path)) as folder:
            facts = self.write_model(
                folder, projection=self.projection, pooling=self.pooling, similarity="dot",
                pool_prompt=self.pool_prompt, normalize=self.unit_vectors, own=(MODULE,),
            )  # fmt: skip
            write_sidecar(folder, {**facts, KEY: self.clustering._asdict()})


def _check_start(layout: Layout, folder: Path) -> None:
    """Raise ``ModelError`` for the folder of an encoder that cannot be a start."""
    refuse_others(layout, folder, own=MODULE)
    if {"top_layers", "dim"} & layout.sidecar.keys():
        raise ModelError(
            f"{folder}: pools several layers or cuts its vectors (top_layers, dim), which a "
            "pseudo-query encoder cannot start from; take the model it was made of"
        )


def _clustering(
    layout: Layout, folder: Path, given: Mapping[str, Any], sharpness: float
) -> Clustering:
    """Return the settings given, where none are the folder's, where it has none the usual ones."""
    noted: dict[str, Any] = {"sharpness": sharpness}
    if MODULE in layout.modules:
        facts = layout.sidecar.get(KEY)
        try:
            noted = Clustering(**facts).checked()._asdict()  # type: ignore[arg-type]
        except (TypeError, ConfigError) as error:
            raise ModelError(f"{folder / SIDECAR}: {KEY} is {facts!r}: {error}") from None
    return Clustering(**noted | {name: value for name, value in given.items() if value is not None})
