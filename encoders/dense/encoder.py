"""Dense encoders: one vector per text."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from sluice.encoders.backends.backend import choose_backend
from sluice.encoders.dense.instructions import filled_prompts, with_examples
from sluice.encoders.dense.pooling import (
    Pooling,
    Poolings,
    check_top_layers,
    checked_pooling,
    dims_noted,
    pooled,
    pooling_names,
    warn_of_decoder,
)
from sluice.encoders.encoder import Dense, Side
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.adapters import cut_layers, layer_outputs, noted_weights
from sluice.encoders.model_files.layout import (
    read_layout,
    refuse_others,
    write_sidecar,
)
from sluice.encoders.model_files.loading import load, text_settings, weights_type
from sluice.encoders.model_files.options import TextGraphOptions, takes_options
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.model_files.weights.quantised import Weights
from sluice.encoders.transformer.decoder_attention import Attention, set_attention, with_positions
from sluice.encoders.transformer.model import Features
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.projection import as_projection, chosen_projection, cut_vectors
from sluice.encoders.transformer.text_encoder import (
    Parts,
    TextEncoder,
    encode_parts,
    refuse_two_stacks,
    with_modules,
)
from sluice.encoders.transformer.tokens import TokenBatch, end_texts, is_plain
from sluice.encoders.transformer.vector_layers import VectorLayer
from sluice.familiar import Similarity


class DenseEncoder(TextEncoder):
    """A transformer, a pooling or several, optional layers over vectors, and normalisation.

    Vectors are float32 ``[n, dim]``. With ``normalize`` they have unit length and the similarity is
    the cosine; without, it is the dot product. (Karpukhin et al., 2020, DPR; Reimers and Gurevych,
    2019, Sentence-BERT.) With ``top_layers`` k the last k layers' states stand side by side before
    the pooling, the last layer's first. (Barkan et al., 2020, Distilled Sentence Embedding, has 4.)
    """

    kind = "dense"
    own_module = ""  # that tells a subclass's folder from this one's

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        pooling: Poolings | Sequence[Pooling] = "mean",
        projection: VectorLayer | None = None,
        normalize: bool = True,
        pool_prompt: bool = True,
        shortened: int | None = None,
        matryoshka_dims: Sequence[int] = (),
        top_layers: int = 1,
        append_eos: bool | None = None,
        **options: Any,
    ) -> None:
        parts = with_modules(model, projection=projection)
        super().__init__(parts, tokenizer, **options)
        self.model = model
        self.projection = projection
        self.pooling: Poolings = checked_pooling(pooling)
        self.normalize: bool = normalize
        self.pool_prompt = pool_prompt
        self.shortened = shortened  # to this many dimensions, if no projection does it
        self.matryoshka_dims = tuple(matryoshka_dims)  # the prefixes it was trained for
        self.top_layers = top_layers
        self.append_eos = append_eos  # as was asked for; the tokenizer does it

    @classmethod
    @takes_options(TextGraphOptions)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        pooling: Annotated[
            Pooling | list[Pooling] | None,
            "How token vectors become one, or several side by side, such as [cls, mean]; left "
            "out, as the model's folder says.",
        ] = None,
        projection: int | dict[str, Any] | None = None,
        normalize: bool | None = None,
        layers: int | None = None,
        top_layers: Annotated[
            int | None, "Pools so many of the last layers, side by side: 4 in DSE."
        ] = None,
        dim: Annotated[int | None, "Keeps only so many of the vectors' first dimensions."] = None,
        attention: Annotated[
            Attention | None,
            "causal or bidirectional: whether a decoder's tokens see those after them.",
        ] = None,
        append_eos: Annotated[
            bool | None,
            "Whether every text ends with the end-of-text token, whose state pooling: last "
            "takes; left out, as the tokenizer does.",
        ] = None,
        instruction: Annotated[
            str | None, "What a query is for; it fills {task} of the prompts."
        ] = None,
        few_shot: Annotated[
            list[dict[str, str]] | None,
            "Answered examples {query, document} that are put before a query.",
        ] = None,
        weights: Weights | None = None,
        seed: int = 13,
        **options: Unpack[TextGraphOptions],
    ) -> DenseEncoder:
        """Load a sentence-transformers folder or a bare transformers encoder, by path or hub id.

        Arguments left at None come from the folder; a bare encoder gets mean pooling and
        normalisation. Several poolings stand side by side. ``projection`` adds a new linear layer
        to that many dimensions, drawn by ``seed``, or several: ``{dim: 128, layers: 2, residual:
        true}``, see ``draw_projection``.
        ``layers`` keeps the model's first layers, ``top_layers`` pools so many of the last, side by
        side, ``dim`` keeps the vectors' first dimensions, normalised again: for models trained for
        it (Matryoshka). ``attention: bidirectional`` removes a decoder's causal mask (usually with
        ``pooling: mean``; without it, ``last``). ``append_eos`` ends texts with the end-of-text
        token, which ``pooling: last`` takes the state of, if the tokenizer does not.

        Lengths are in tokens. Prompts are put before the text: ``instruction`` fills their
        ``{task}`` (queries without a prompt get ``Instruct: {task}``), and ``few_shot`` puts
        answered examples ``{query, document}`` before the queries' prompt. ``backend`` is torch, or
        an engine for the graph ``backend_file`` (``onnx/model.onnx``) of ``sluice model export``;
        None is the folder's. ``weights`` int8 or int4 keeps matrices in so many bits.
        """
        from transformers import AutoModel

        loaded = load(
            AutoModel, str(model), weights=weights_type(str(model), weights, options["backend"])
        )
        network, tokenizer, folder, _ = loaded
        hidden = int(network.config.hidden_size)
        layout = read_layout(folder)
        exported = (options["backend"] or layout.sidecar.get("backend", "torch")) != "torch"
        refuse_others(layout, folder, own=cls.own_module)
        refuse_two_stacks(network, folder, "dense encoder")
        if pooling is None and attention is None and not layout.modules:
            warn_of_decoder(network, folder)
        cut_layers(network, layers, exported=exported)
        top = layout.sidecar.get("top_layers", 1) if top_layers is None else top_layers
        check_top_layers(top, int(network.config.num_hidden_layers), exported=exported)
        poolings = checked_pooling((layout.pooling or "mean") if pooling is None else pooling)
        width = top * hidden * len(pooling_names(poolings))
        head = chosen_projection(projection, layout.layers, width, seed)
        dim = layout.truncate_dim if dim is None else dim
        head, shortened = cut_vectors(head, width, dim, layout.sidecar)
        ends = layout.sidecar.get("append_eos") if append_eos is None else append_eos
        if "last" in pooling_names(poolings) or ends is not None:
            end_texts(tokenizer, ends, folder)
        set_attention(network, attention)
        if normalize is None:
            normalize = layout.normalize or not layout.modules
        prompts = filled_prompts(options["query_prompt"], options["document_prompt"], instruction)
        sides = text_settings(loaded, layout, {**options, **prompts})
        sides["query_prompt"] = with_examples(sides["query_prompt"], few_shot or ())
        encoder = cls(
            network,
            tokenizer,
            pooling=poolings,
            projection=head,
            normalize=normalize,
            pool_prompt=layout.pool_prompt,
            shortened=shortened,
            matryoshka_dims=dims_noted(layout.sidecar, folder),
            top_layers=top,
            append_eos=ends,
            **sides,
        )
        choose_backend(encoder, folder, options, layout.sidecar)
        return encoder

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        if self.projection is not None:
            return self.projection.outputs
        return self.shortened or self.pooled_width

    @property
    def derived(self) -> tuple[DenseEncoder, Callable[[Any], Any]] | None:
        """The vectors of all dimensions, of which the first are kept."""
        if self.shortened is None:
            return None
        whole = copy.copy(self)
        whole.shortened = None
        return whole, self._cut

    def _cut(self, vectors: Dense) -> Dense:
        cut = np.ascontiguousarray(vectors[:, : self.shortened])
        if self.normalize:
            cut /= np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.float32(1e-12))
        return cut

    @property
    def state_width(self) -> int:
        """The number of dimensions of a token's state, those of all ``top_layers`` together."""
        return self.top_layers * super().state_width

    @property
    def pooled_width(self) -> int:
        """The number of dimensions of a pooled vector, before the layers over vectors."""
        return self.state_width * len(pooling_names(self.pooling))

    @property
    def layer_count(self) -> int:
        """The number of the transformer's layers."""
        return int(self.model.config.num_hidden_layers)

    @property
    def similarity(self) -> Similarity:
        """The similarity the vectors are made for; called, it compares two sets of them."""
        return Similarity("cosine" if self.normalize else "dot")

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        activation = self.projection.described if self.projection else None
        settings = {
            **super().settings(), "pooling": self.pooling, "normalize": self.normalize,
            "pool_prompt": self.pool_prompt, "activation": activation,
        }  # fmt: skip
        optional = {
            "dim": self.shortened, "top_layers": self.top_layers if self.top_layers > 1 else None
        }  # fmt: skip
        return {**settings, **{key: value for key, value in optional.items() if value is not None}}

    def hidden(self, features: Features) -> Tensor:
        """Return the states ``[n, length, hidden]`` the model ends in, padded on either side."""
        placed = with_positions(self.model, features)
        if self.top_layers == 1:
            return super().hidden(placed)
        below = [self.layer_count - number for number in range(1, self.top_layers)]
        with layer_outputs(self.model, below) as states:
            last = super().hidden(placed)
        return torch.cat([last, *(states[number] for number in below)], dim=-1)

    def run_packed(self, network: PackedTransformer, batch: TokenBatch) -> Tensor:
        """Return the last states of a batch by a packed pass, see ``output``."""
        if self.top_layers == 1:
            return super().run_packed(network, batch)
        return network.states(*self.laid_out(batch), top=self.top_layers)

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return the vectors ``[n, dim]`` of tokenised texts, float32, with gradients."""
        return self.vectors_of(self.hidden(features), features["attention_mask"], side)

    def vectors_of(self, states: Tensor, mask: Tensor, side: Side) -> Tensor:
        """Return the vectors ``[n, dim]`` of states ``[n, length, hidden]``, whose mask is 1."""
        return self._projected(self._pooled(states, mask, side))

    def embed_layers(self, features: Features, side: Side, layers: Sequence[int]) -> Tensor:
        """Return the vectors of several layers side by side, ``[n, len(layers) * dim]``.

        Layers are numbered from 1; the last one's vectors are those of ``embed``. Raises
        ``ConfigError`` for a layer the model does not have, or with ``top_layers``.
        """
        if self.top_layers > 1:
            raise ConfigError(
                f"encoder.top_layers: {self.top_layers} layers make one vector, and this loss "
                "wants a vector of each; leave it out"
            )
        last = self.layer_count
        with layer_outputs(self.model, [n for n in layers if n != last]) as states:
            states_of_last = self.hidden(features)
        states[last] = states_of_last
        mask = features["attention_mask"]
        vectors = [self._projected(self._pooled(states[n], mask, side)) for n in layers]
        return torch.cat(vectors, dim=1)

    def _pooled(self, states: Tensor, mask: Tensor, side: Side) -> Tensor:
        real = mask
        if not self.pool_prompt and self.prompts[side]:
            text = mask.clone()
            text[:, : self.prompt_tokens[side]] = 0
            # an empty text without a special token at its end: only the prompt is left
            mask = torch.where(text.any(dim=1, keepdim=True), text, mask)
        return pooled(states.float(), mask, self.pooling, real)

    def _projected(self, vectors: Tensor) -> Tensor:
        if self.projection is not None:
            vectors = self.projection(vectors).float()
        elif self.shortened is not None:
            vectors = vectors[..., : self.shortened]
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
            vectors[batch.rows] = self.batch_vectors(batch, network, side).cpu().numpy()

        self.map_texts(texts, side, store)
        return vectors

    def batch_vectors(
        self, batch: TokenBatch, network: PackedTransformer | None, side: Side
    ) -> Tensor:
        """Return the vectors ``[n, dim]`` of a batch that ``map_texts`` passes on, float32."""
        return self._projected(self._pooled_batch(batch, network, side)).float()

    def _pooled_batch(
        self, batch: TokenBatch, network: PackedTransformer | None, side: Side
    ) -> Tensor:
        single = self.pooling in ("cls", "last") and self.pool_prompt and self.top_layers == 1
        if network is not None and single:
            last = self.pooling == "last"
            return network.single_states(*self.laid_out(batch), last=last).float()
        return torch.cat(
            [self._pooled(*texts, side) for texts in self.states_by_length(batch, network)]
        )

    @property
    def encode_parts(self) -> Callable[[Sequence[str], Sequence[Parts]], Dense] | None:
        """Encodes parts of documents, see ``encode_parts``.

        None for another pooling than the mean, and a tokenizer that does not tell tokens' places.
        """
        if self.pooling != "mean" or not is_plain(self.tokenizer):
            return None
        unpooled = 0 if self.pool_prompt else self.prompt_tokens["document"]
        return partial(
            encode_parts, self, dim=self.dim, vectors_of=self._projected, unpooled=unpooled
        )

    def save_pretrained(self, path: str | Path) -> None:
        """Write a sentence-transformers folder (legacy layout), replacing ``path`` in one step."""
        projection, noted = self.projection, dict[str, Any]()
        if projection is None and self.shortened is not None:
            projection = as_projection(self.pooled_width, self.shortened)
            noted["dim"] = self.shortened
        dims = [dim for dim in self.matryoshka_dims if dim <= self.dim]
        if self.top_layers > 1:
            noted["top_layers"] = self.top_layers
        if dims:
            noted["matryoshka_dims"] = dims
        if self.append_eos is not None:
            noted["append_eos"] = self.append_eos
        with replaced_folder(Path(path)) as folder:
            facts = self.write_model(
                folder, projection=projection, pooling=self.pooling, pool_prompt=self.pool_prompt,
                normalize=self.normalize, similarity=self.similarity, top_layers=self.top_layers,
            )  # fmt: skip
            backend = self.save_backend(folder)
            write_sidecar(folder, {**facts, **backend, **noted_weights(self.model), **noted})
            write_probes(folder, self)
