"""The Hypencoder: documents are vectors, queries small networks that score them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from sluice.encoders.dense.pooling import POOLINGS, Pooling
from sluice.encoders.encoder import Dense, QNets, Side
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.q_net import QNetShape
from sluice.encoders.model_files.layout import (
    Layout,
    read_layout,
    refuse_others,
    write_sidecar,
)
from sluice.encoders.model_files.loading import load, text_settings
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import TextOptions, takes_options
from sluice.encoders.own.hypencoder.head import (
    HyperHead,
    Noted,
    Scaling,
    checked_scaling,
    noted_in,
    read_head,
    write_head,
)
from sluice.encoders.own.hypencoder.published import made_head, published_in, with_published_weights
from sluice.encoders.transformer.decoder_attention import with_positions
from sluice.encoders.transformer.model import Features
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.projection import chosen_projection
from sluice.encoders.transformer.text_encoder import TextEncoder, refuse_two_stacks, with_modules
from sluice.encoders.transformer.tokens import TokenBatch
from sluice.encoders.transformer.vector_layers import VectorLayer

HIDDEN_LAYERS = 2  # of new q-nets
HEAD_VALUES = 1 << 24  # of one matrix of q-nets at a time: 64 MB


class Hypencoder(TextEncoder):
    """A transformer that makes vectors of documents, and of a query a network that scores them.

    Documents are float32 ``[n, dim]``: pooled, projected and of length 1 as for a dense encoder.
    Queries are flat q-nets ``[n, query_dim]`` (``encoders.foundation.q_net``), which a hyper-head
    makes of the states of their tokens; score them by ``q_net_scores``. (Killingback, Zeng and
    Zamani 2025, arXiv 2502.05364.) With ``product`` the inner product of both texts' vectors is
    added to the q-net's score, and training starts from the plain bi-encoder.
    """

    kind = "hypencoder"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        head: HyperHead,
        pooling: Pooling = "cls",
        projection: VectorLayer | None = None,
        unit_documents: bool = False,
        **options: Any,
    ) -> None:
        if pooling not in POOLINGS:
            raise ConfigError(f"pooling: {pooling!r}; known: {', '.join(POOLINGS)}")
        parts = with_modules(model, head=head, projection=projection)
        super().__init__(parts, tokenizer, **options)
        self.model = model
        self.head = head
        self.projection = projection
        self.pooling = pooling
        self.unit_documents: bool = unit_documents

    @classmethod
    @takes_options(TextOptions)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        hidden_layers: int | None = None,
        scaling: Scaling | None = None,
        product: bool | None = None,
        pooling: Pooling | None = None,
        projection: int | dict[str, Any] | None = None,
        normalize: bool | None = None,
        seed: int = 13,
        **options: Unpack[TextOptions],
    ) -> Hypencoder:
        """Load a saved Hypencoder, ours or the authors', or start one from any dense encoder.

        ``hidden_layers`` is the number of a q-net's hidden layers, 2 for a new one; 0 is an inner
        product with one vector made of the query. ``scaling`` is the divisor in the hyper-head's
        attention: formula, or repository as in the authors' code. ``product`` adds the inner
        product of both texts' vectors to the score, so that training starts from the plain
        bi-encoder. ``pooling`` and ``normalize`` are the documents', as in the folder; a bare
        encoder gets the first token's state (cls), not normalised. ``projection`` is a new linear
        layer to that many dimensions; q-nets have as many units a layer, and their size is its
        square: 128 dimensions are 66 kB a hidden layer, 384 are 591 kB. ``seed`` draws what is new.
        """
        from transformers import AutoModel

        given = {
            "hidden_layers": hidden_layers, "scaling": scaling, "product": product,
            "projection": projection,
        }  # fmt: skip
        source = model_folder(str(model))
        theirs = published_in(source)
        if theirs is not None:
            noted = Noted(theirs.hidden_layers, "repository", product=False)
            _refuse_other({**given, "pooling": pooling, "normalize": normalize}, noted, source)
            loaded, state = with_published_weights(source, theirs)
            return cls(
                loaded.model,
                loaded.tokenizer,
                head=made_head(loaded.model, state, theirs, source),
                **text_settings(loaded, Layout(), options),
            )
        loaded = load(AutoModel, str(model))
        network, tokenizer, folder, _ = loaded
        refuse_two_stacks(network, folder, "Hypencoder")
        layout = read_layout(folder)
        refuse_others(layout, folder, own="HyperHead")
        if not layout.pool_prompt or layout.sidecar.get("top_layers", 1) != 1:
            raise ModelError(
                f"{folder}: pools without the prompt, or several layers; a Hypencoder pools all "
                "tokens of the last: start from another model"
            )
        saved = noted_in(layout, folder)
        if saved is not None:
            _refuse_other(given, saved, folder)
        layers = HIDDEN_LAYERS if hidden_layers is None else hidden_layers
        noted = saved or Noted(
            whole_number(layers, "hidden_layers", 0),
            checked_scaling(scaling or "formula"),
            bool(product),
        )
        hidden = int(network.config.hidden_size)
        reads = chosen_projection(projection, layout.layers, hidden, seed)
        dim = hidden if reads is None else reads.outputs
        shape = QNetShape(dim, noted.hidden_layers, noted.product)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            head = HyperHead(hidden, shape, noted.scaling)
        if saved is not None:
            read_head(head, folder)
        bare = not layout.modules
        return cls(
            network,
            tokenizer,
            head=head,
            pooling=pooling or ("cls" if bare else layout.pooling or "mean"),  # type: ignore[arg-type]
            projection=reads,
            unit_documents=layout.normalize if normalize is None else normalize,
            **text_settings(loaded, layout, options),
        )

    @property
    def q_nets(self) -> QNets:
        """What its queries are."""
        return QNets(self.q_net_shape, self.unit_documents)

    @property
    def q_net_shape(self) -> QNetShape:
        """The sizes of a q-net."""
        return self.head.shape

    @property
    def dim(self) -> int:
        """The number of dimensions of a document's vector."""
        return self.q_net_shape.dim

    @property
    def query_dim(self) -> int:
        """The number of values of a flat q-net."""
        return self.q_net_shape.width

    @property
    def similarity(self) -> Literal["q_net"]:
        """A query scores a document as a network."""
        return "q_net"

    @property
    def head_parameters(self) -> tuple[str, ...]:
        """How the names of the hyper-head's parameters begin."""
        return ("head.",)

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        return {
            **super().settings(),
            "pooling": self.pooling,
            "normalize": self.unit_documents,
            "activation": self.projection.described if self.projection else None,
            "q_net": [self.q_net_shape.hidden, self.q_net_shape.product, self.head.scaling],
        }

    def hidden(self, features: Features) -> Tensor:
        """Return the states ``[n, length, hidden]`` the model ends in, padded on either side."""
        return super().hidden(with_positions(self.model, features))

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return documents ``[n, dim]`` or q-nets ``[n, query_dim]`` of tokenised texts.

        float32, with gradients.
        """
        return self._made(self.hidden(features), features["attention_mask"], side)

    def _made(self, states: Tensor, mask: Tensor, side: Side) -> Tensor:
        if side == "document":
            return self._pooled(states, mask)
        own = self._pooled(states, mask) if self.q_net_shape.product else None
        q_nets: Tensor = self.head(states, mask, own)
        return q_nets

    def _pooled(self, states: Tensor, mask: Tensor) -> Tensor:
        vectors = POOLINGS[self.pooling](states.float(), mask)
        if self.projection is not None:
            vectors = self.projection(vectors).float()
        return nn.functional.normalize(vectors, dim=-1) if self.unit_documents else vectors

    def encode_queries(self, texts: Sequence[str]) -> Dense:
        """Return flat q-nets, float32 ``[n, query_dim]``, in input order.

        The q-net of a query without tokens is zeros: it scores every document 0.
        """
        return self._encode(texts, "query", self.query_dim)

    def encode_documents(self, texts: Sequence[str]) -> Dense:
        """Return the documents' vectors, float32 ``[n, dim]``, in input order."""
        return self._encode(texts, "document", self.dim)

    def _encode(self, texts: Sequence[str], side: Side, width: int) -> Dense:
        vectors = np.zeros((len(texts), width), np.float32)
        most = max(1, HEAD_VALUES // self.dim**2)

        def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
            done = 0
            for states, mask in self.states_by_length(batch, network):
                for part in torch.split(states, most):
                    rows = batch.rows[done : done + len(part)]
                    made = self._made(part, mask[: len(part)], side)
                    vectors[rows] = made.float().cpu().numpy()
                    done += len(part)

        self.map_texts(texts, side, store)
        return vectors

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder, in one step: the documents' encoder in sentence-transformers' layout.

        That names a module which sentence-transformers does not have, so that it refuses the
        folder: it would take queries for documents.
        """
        with replaced_folder(Path(path)) as folder:
            facts = self.write_model(
                folder, projection=self.projection, pooling=self.pooling, similarity="dot",
                normalize=self.unit_documents, own=("HyperHead",),
            )  # fmt: skip
            noted = Noted(self.q_net_shape.hidden, self.head.scaling, self.q_net_shape.product)
            write_head(self.head, folder)
            write_sidecar(folder, {**facts, **noted.facts()})


def _refuse_other(given: Mapping[str, Any], noted: Noted, folder: Path) -> None:
    """Raise ``ConfigError`` where a trained Hypencoder is asked to be another."""
    own = noted._asdict()
    for name, value in given.items():
        if value is not None and value != own.get(name):
            trained = own.get(name, "its own")
            raise ConfigError(
                f"{name}: {value!r}, and {folder} was trained with {trained}; leave {name} out, or "
                "start from another model"
            )
