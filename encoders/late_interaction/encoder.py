"""Token encoders: one vector for each token of a text."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from sluice.encoders.encoder import Side
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.late_interaction.folder import (
    Given,
    check_words,
    expansion_of,
    lengths_of,
    new_parts,
    write_token_folder,
)
from sluice.encoders.late_interaction.layout import TokenLayout, read_token_layout
from sluice.encoders.late_interaction.pooling import pooled_tokens
from sluice.encoders.late_interaction.pruning import VORONOI, PoolBy, pruned_tokens
from sluice.encoders.model_files.adapters import cut_layers
from sluice.encoders.model_files.loading import load, lowers, save
from sluice.encoders.model_files.options import TextOptions, computing, takes_options
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.transformer.model import Features
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder, refuse_two_stacks, with_modules
from sluice.encoders.transformer.tokens import TokenBatch
from sluice.encoders.transformer.vector_layers import VectorLayer
from sluice.familiar import Similarity


class TokenEncoder(TextEncoder):
    """A transformer whose token states are projected and normalised, one vector a token.

    Queries and documents are scored by MaxSim. A marker token stands before each text. Queries are
    filled up to ``expand_to`` tokens with mask tokens, which have vectors too; unless ``attend``,
    no token sees them. Of documents, tokens of ``skip_words`` have no vectors, and with a
    ``pool_factor`` above 1 like tokens share one, or with ``pool_by`` voronoi some go, see
    ``pruning``. (Khattab and Zaharia, 2020, ColBERT; pooling: Clavié et al., 2024, arXiv
    2409.14683.)
    """

    kind = "tokens"
    similarity: Similarity = Similarity("max_sim")
    head_parameters = ("projection.",)

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        projection: VectorLayer | None = None,
        normalize: bool = True,
        query_marker: str = "",
        document_marker: str = "",
        expand_to: int = 0,
        attend: bool = False,
        mask: str | None = None,
        skip_words: Sequence[str] = (),
        pool_factor: float = 1.0,
        protected_tokens: int = 1,
        normalize_pooled: bool = True,
        pool_by: PoolBy = "ward",
        query_prompt: str = "",
        document_prompt: str = "",
        **options: Any,
    ) -> None:
        parts = with_modules(model, projection=projection)
        self.markers: dict[Side, str] = {"query": query_marker, "document": document_marker}
        super().__init__(
            parts,
            tokenizer,
            query_prompt=query_marker + query_prompt,
            document_prompt=document_marker + document_prompt,
            **options,
        )
        self.model = model
        self.projection = projection
        self.normalize: bool = normalize
        self.expand_to = whole_number(expand_to, "expand_queries", 0)
        self.attend = attend
        self.mask = mask
        self.skip_words = tuple(skip_words)
        self.pool_factor = finite_number(pool_factor, "pool_factor", 1.0)
        self.protected_tokens = whole_number(protected_tokens, "protected_tokens", 0)
        self.normalize_pooled, self.pool_by = normalize_pooled, pool_by
        if self.pool_factor > 1 and not normalize:
            raise ConfigError("pool_factor: joins like tokens by their cosine; normalize: true")
        if self.expand_to > self.lengths["query"]:
            raise ConfigError(
                f"expand_queries: {self.expand_to} tokens, and query_length is "
                f"{self.lengths['query']}; raise query_length, or fill up to fewer tokens"
            )
        self._mask_id = _mask_id(tokenizer, mask) if self.expand_to else -1
        self._skipped = torch.tensor(_skipped_ids(tokenizer, self.skip_words), dtype=torch.long)

    @classmethod
    @takes_options(TextOptions)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        dim: Annotated[
            int | None,
            "Keeps only so many of the vectors' first dimensions; of another encoder, the "
            "dimensions of its new projection (128).",
        ] = None,
        projection: Annotated[
            int | bool | dict[str, Any] | None,
            "Adds a new linear layer to so many dimensions, or several: {dim, layers, hidden, "
            "activation, residual}; false: none.",
        ] = None,
        normalize: bool | None = None,
        layers: int | None = None,
        query_marker: Annotated[
            str | None,
            "The token before every query; empty for none. Left out, the model's own, or "
            "[unused0], or [Q].",
        ] = None,
        document_marker: Annotated[
            str | None,
            "The token before every document; empty for none. Left out, the model's own, or "
            "[unused1], or [D].",
        ] = None,
        expand_queries: Annotated[
            bool | int | None,
            "Fills queries up with mask tokens, which have vectors too: true (to "
            "query_length), false, or to so many tokens.",
        ] = None,
        attend_to_expansion: Annotated[
            bool | None,
            "Whether the tokens of a query see the mask tokens that it is filled up with.",
        ] = None,
        skip_words: Annotated[
            list[str] | None, "Tokens of documents that have no vector; left out, punctuation."
        ] = None,
        pool_factor: Annotated[
            float | None,
            "Divides the number of a document's vectors: like tokens share one. 2 costs next "
            "to nothing, 1 pools none.",
        ] = None,
        protected_tokens: Annotated[
            int | None, "The first tokens of a document that are not pooled."
        ] = None,
        pool_by: Annotated[
            PoolBy | None,
            "Whether like tokens share a vector (ward), or those go that MaxSim misses least "
            "(voronoi).",
        ] = None,
        seed: Annotated[
            int | None, "The seed of a new projection, and of new markers (13)."
        ] = None,
        **options: Unpack[TextOptions],
    ) -> TokenEncoder:
        """Load a token encoder's folder (PyLate, sentence-transformers 6, ColBERT), or start one.

        Arguments left at None come from the folder. Any other encoder gets a projection to 128
        dimensions without bias, drawn by ``seed`` (13), two markers, queries of 32 and documents of
        180 tokens, queries filled up, and no vectors for punctuation: train it. ``projection`` adds
        a new one: its number of dimensions, or ``{dim: 128, layers: 2, residual: true}``, see
        ``draw_projection``; false: none. ``dim`` keeps the first dimensions of a trained model.

        ``expand_queries`` is true (to ``query_length``), false, or a number of tokens.
        ``skip_words`` are tokens of documents without a vector, ``pool_factor`` 2 halves the number
        of a document's vectors, of which the first ``protected_tokens`` stay as they are.
        """
        from transformers import AutoModel

        loaded = load(AutoModel, str(model))
        network, tokenizer, folder, _ = loaded
        refuse_two_stacks(network, folder, "token encoder")
        layout = read_token_layout(folder)
        cut_layers(network, layers)
        head, sides = new_parts(
            layout, folder, network, tokenizer, Given(projection, dim, query_marker,
            document_marker, seed),
        )  # fmt: skip
        given: dict[Side, str | None] = {
            "query": options["query_prompt"], "document": options["document_prompt"]
        }  # fmt: skip
        for side, prompt in given.items():
            sides[f"{side}_prompt"] = layout.prompts.get(side, "") if prompt is None else prompt
        if pool_factor is not None:
            layout.pool_factor = pool_factor
        layout.pool_by = pool_by or layout.pool_by
        if (protected_tokens, pool_by) != (None, None):
            if layout.pool_factor == 1:
                raise ConfigError(
                    "protected_tokens, pool_by: say how tokens are pooled, and there is none; "
                    "give a pool_factor above 1 too"
                )
            if protected_tokens is not None:
                layout.protected_tokens = protected_tokens
        lengths = options["query_length"], options["document_length"]
        sides |= lengths_of(layout, network, tokenizer, *lengths)
        expand_to = expansion_of(layout, sides["query_length"], expand_queries)
        if skip_words is not None:
            check_words(tokenizer, skip_words)
        if attend_to_expansion is not None and not expand_to:
            raise ConfigError(
                "attend_to_expansion: queries are not filled up; give expand_queries: true too"
            )
        return cls(
            network,
            tokenizer,
            projection=head,
            normalize=layout.normalize if normalize is None else normalize,
            expand_to=expand_to,
            attend=layout.attend if attend_to_expansion is None else attend_to_expansion,
            mask=layout.mask,
            skip_words=layout.skip_words if skip_words is None else skip_words,
            pool_factor=layout.pool_factor,
            protected_tokens=layout.protected_tokens,
            normalize_pooled=layout.normalize_pooled,
            pool_by=layout.pool_by,
            **computing(options),
            **sides,
        )

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return self.state_width if self.projection is None else self.projection.outputs

    @property
    def derived(self) -> tuple[TokenEncoder, Callable[[Any], Any]] | None:
        """The vectors of all tokens, which are pooled."""
        if self.pool_factor == 1:
            return None
        whole = copy.copy(self)
        whole.pool_factor = 1.0
        return whole, self._pooled_documents

    def _pooled_documents(self, vectors: TokenVectors) -> TokenVectors:
        values, counts = self._pool(vectors.values, vectors.lengths)
        return TokenVectors(values, np.concatenate([[0], np.cumsum(counts)]))

    def _pool(
        self, values: NDArray[np.float32], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return documents' vectors end to end as they are pooled, and how many each has."""
        if self.pool_factor == 1:
            return values, counts
        protected, normalize = self.protected_tokens, self.normalize_pooled
        if self.pool_by == VORONOI:
            return pruned_tokens(values, counts, self.pool_factor, protected=protected)
        return pooled_tokens(
            values, counts, self.pool_factor, protected=protected, normalize=normalize
        )

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        expansion = (self.expand_to, self.attend, self._mask_id) if self.expand_to else None
        way = (VORONOI,) if self.pool_by == VORONOI else ()
        pooling = (self.pool_factor, self.protected_tokens, self.normalize_pooled, *way)
        return {
            **super().settings(),
            "normalize": self.normalize,
            "activation": self.projection.described if self.projection else None,
            "expansion": expansion,
            "skipped": self._skipped.tolist(),
            "token_pooling": pooling if self.pool_factor > 1 else None,
        }

    def tokenize(self, texts: Sequence[str], side: str) -> Features:
        """Return the padded features of a batch, ready for ``embed``.

        Queries are filled up; ``attention_mask`` is 1 where tokens are seen by others.
        """
        features = self.pad(self.tokens(texts, side).ids)
        return self._expanded(features) if side == "query" else features

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return the vectors ``[n, length, dim]`` of tokenised texts, float32, with gradients.

        Padding and skipped tokens are zeros. Documents are not pooled.
        """
        if side == "query":
            features = self._expanded(features)  # where a part of a batch was cut to its texts
        scored = self.scored(features, side)
        states = self.hidden(features, scored if side == "query" else None)
        vectors = states.new_zeros((*scored.shape, self.dim), dtype=torch.float32)
        vectors[scored] = self._vectors(states[scored])
        return vectors

    def encode_queries(self, texts: Sequence[str]) -> TokenVectors:
        """Return the vectors of the queries' tokens, in input order."""
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> TokenVectors:
        """Return the vectors of the documents' tokens, in input order."""
        return self._encode(texts, "document")

    @property
    def token_names(self) -> TokenEncoder:
        """The encoder itself, whose tokenizer knows them."""
        return self

    def token_texts(self, texts: Sequence[str], side: Side) -> list[list[str]]:
        """Return the tokens of each text that have vectors, see ``token_names``."""
        from sluice.encoders.late_interaction.names import token_names

        return token_names(self, texts, side)

    def token_places(self, texts: Sequence[str], side: Side) -> list[list[list[tuple[int, int]]]]:
        """Return where in each text the tokens of its vectors stand, see ``token_places``."""
        from sluice.encoders.late_interaction.names import token_places

        return token_places(self, texts, side)

    def _encode(self, texts: Sequence[str], side: Side) -> TokenVectors:
        counts = np.zeros(len(texts), np.int64)
        parts: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []

        def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
            values, lengths = self._batch_vectors(batch, network, side)
            counts[batch.rows] = lengths
            parts.append((batch.rows, values))

        self.map_texts(texts, side, store)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        values = np.empty((int(bounds[-1]), self.dim), np.float32)
        while parts:  # each is let go as it is copied
            rows, vectors = parts.pop()
            values[_places(bounds[rows], counts[rows])] = vectors
        return TokenVectors(values, bounds)

    def _batch_vectors(
        self, batch: TokenBatch, network: PackedTransformer | None, side: Side
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return a batch's vectors end to end, and how many each text has."""
        if side == "query":
            most = max(1, self.batch_tokens // max(1, self.expand_to))
            parts = [self._query_states(part, network) for part in batch.parts(most)]
            vectors = self._vectors(torch.cat(parts)).cpu().numpy()
            return vectors, np.maximum(batch.lengths, self.expand_to)
        states = self.output(batch, network)
        lengths = np.asarray(batch.lengths)
        ids = torch.from_numpy(np.concatenate(batch.ids).astype(np.int64))
        kept = ~torch.isin(ids, self._skipped)
        texts = np.repeat(np.arange(len(lengths)), lengths)[kept.numpy()]
        counts = np.bincount(texts, minlength=len(lengths))
        vectors = self._vectors(states[kept.to(states.device)]).cpu().numpy()
        return self._pool(vectors, counts)

    def _query_states(self, batch: TokenBatch, network: PackedTransformer | None) -> Tensor:
        """Return the last states of queries, ``[tokens, hidden]``, filled up."""
        if network is None:
            features = self._expanded(self.padded(batch))
            return self.hidden(features)[self.scored(features, "query")]
        ids = [
            np.pad(text, (0, max(0, self.expand_to - len(text))), constant_values=self._mask_id)
            for text in batch.ids
        ]
        filled = batch._replace(ids=ids)
        seen = filled.lengths if self.attend else batch.lengths
        return network.states(*self.laid_out(filled), seen=seen)

    def hidden(self, features: Features, present: Tensor | None = None) -> Tensor:
        """Return the last states ``[n, length, hidden]`` of the tokens ``present``.

        By default those that others see.
        """
        packed = self.training_pass(features, present)
        if packed is not None:
            return packed.packing.padded(packed.states())
        states: Tensor = self.model(**features).last_hidden_state
        return states

    def _vectors(self, states: Tensor) -> Tensor:
        """Return the vectors ``[tokens, dim]`` of states, float32."""
        vectors = states.float() if self.projection is None else self.projection(states.float())
        vectors = vectors.float()
        return functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def _expanded(self, features: Features) -> Features:
        """Return padded queries filled up with mask tokens to ``expand_to``; twice is as once."""
        if not self.expand_to:
            return features
        ids, mask = features["input_ids"], features["attention_mask"]
        added = (0, max(0, self.expand_to - ids.shape[1]))
        ids, mask = functional.pad(ids, added), functional.pad(mask, added)
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        filled = (places < self.expand_to) & (mask == 0)
        ids = ids.masked_fill(filled, self._mask_id)
        return {"input_ids": ids, "attention_mask": mask.masked_fill(filled, int(self.attend))}

    def scored(self, features: Features, side: Side) -> Tensor:
        """Return which tokens ``[n, length]`` of ``tokenize`` have vectors."""
        ids, mask = features["input_ids"], features["attention_mask"].bool()
        if side == "query":
            return mask | (torch.arange(ids.shape[1], device=ids.device) < self.expand_to)
        return mask & ~torch.isin(ids, self._skipped.to(ids.device))

    def save_pretrained(self, path: str | Path) -> None:
        """Write PyLate's layout, which sentence-transformers 6 reads too, in one step.

        What it cannot express (pooling, no marker, queries longer than they are filled up to) is
        written in sentence-transformers' own.
        """
        with replaced_folder(Path(path)) as folder:
            save(self.model, folder)
            self.tokenizer.save_pretrained(folder)
            layout = TokenLayout(
                normalize=self.normalize,
                markers=self.markers,
                prompts={
                    side: self.prompts[side].removeprefix(marker)
                    for side, marker in self.markers.items()
                },
                query_length=self.lengths["query"],
                document_length=self.lengths["document"],
                expand_to=self.expand_to,
                attend=self.attend,
                mask=self.mask,
                skip_words=self.skip_words,
                pool_factor=self.pool_factor,
                protected_tokens=self.protected_tokens,
                normalize_pooled=self.normalize_pooled,
                pool_by=self.pool_by,
            )
            write_token_folder(folder, layout, self.projection, lower_case=lowers(self.tokenizer))
            write_probes(folder, self)


def _mask_id(tokenizer: Any, mask: str | None) -> int:
    """Return the token that queries are filled up with: a mask, a decoder's end of text."""
    named = None if mask is None else tokenizer.get_vocab().get(mask)
    usual = (tokenizer.mask_token_id, tokenizer.eos_token_id)
    for token in (named,) if mask is not None else usual:
        if token is not None:
            return int(token)
    raise ModelError(
        f"the tokenizer has no mask token{'' if mask is None else f' {mask!r}'} to fill queries up "
        "with; give expand_queries: false"
    )


def _skipped_ids(tokenizer: Any, words: Sequence[str]) -> list[int]:
    """Return the ids of words that are one token each; others keep their vectors."""
    known = tokenizer.get_vocab()
    return sorted({int(known[word]) for word in words if word in known})


def _places(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of texts that begin at ``starts``, end to end."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)
