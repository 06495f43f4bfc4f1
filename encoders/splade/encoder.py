"""SPLADE encoders: sparse vectors over the vocabulary from a masked-language-model head."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.encoders.backends.backend import choose_backend
from sluice.encoders.encoder import FittedTerms, Side
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.identity import versions
from sluice.encoders.model_files.layout import read_layout
from sluice.encoders.model_files.loading import load, text_settings
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import TextGraphOptions, takes_options
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.splade.folder import SpladeFolder, has_mlm_head, save_splade
from sluice.encoders.splade.pooling import (
    VocabularyProduct,
    last_layer,
    pass_through,
    splade_max,
    splade_sum,
)
from sluice.encoders.splade.settings import (
    Activation,
    Lexical,
    Pooling,
    QueryModel,
    check_choices,
    check_pruning,
    check_trained_idf,
)
from sluice.encoders.splade.terms import (
    StaticQueries,
    TermFrequency,
    bags,
    joined_rows,
    prune_terms,
    selections,
)
from sluice.encoders.transformer.model import Features
from sluice.encoders.transformer.packed.attention import spans
from sluice.encoders.transformer.packed.families import vocabulary_head
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder, with_modules
from sluice.encoders.transformer.tokens import TokenBatch
from sluice.familiar import Similarity

TEXTS = 512  # pooled at a time: their rows over the vocabulary take 60 MB
_POOLS = {"max": splade_max, "sum": splade_sum}


class SpladeEncoder(TextEncoder):
    """Term weights ``w_j = pool_i log(1 + relu(logit_ij))`` over the real positions ``i``.

    Vectors are float32 ``csr_array [n, vocab]`` with sorted indices; the similarity is the dot
    product. ``pooling`` is max (v2, the default) or sum (v1). (Formal et al., 2021, arXiv
    2107.05720 and 2109.10086.)

    ``query_model`` is the same network (``shared``) or a table: with ``bow`` (SPLADE-doc) a query
    is the set of its own tokens with weight 1; with ``idf`` they weigh ``idf`` ``[vocab]``, which
    ``sluice.encoders.fit_idf`` counts in a corpus and ``train_idf`` trains (``idf_learning_rate``).
    ``lexical`` keeps only the text's own tokens, on one side or both. For documents,
    ``prune_below`` drops weights below a value and ``prune_ratio`` below a share of the largest;
    ``query_top_k`` and ``document_top_k`` keep only the heaviest terms (ties: the lower term id).
    ``prune_quantile`` then drops the lightest share of each term's postings (Lassance et al., 2023,
    arXiv 2304.12702): weights below ``term_floors`` ``[vocab]``, that quantile of the term's
    weights in a collection. Building a retriever fits them; ``fit_term_floors`` does elsewhere.
    Training ignores them.
    """

    kind = "splade"
    similarity: Similarity = Similarity("dot")
    head_parameters = ("cls.", "lm_head.", "vocab_", "head.", "decoder.")

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        pooling: Pooling = "max",
        activation: Activation = "relu",
        query_model: QueryModel = "shared",
        lexical: Lexical = "none",
        prune_below: float | None = None,
        prune_ratio: float | None = None,
        query_top_k: int | None = None,
        document_top_k: int | None = None,
        prune_quantile: float | None = None,
        term_floors: NDArray[np.float32] | None = None,
        idf: Tensor | None = None,
        train_idf: bool = False,
        idf_learning_rate: float | None = None,
        term_frequency: bool | Mapping[str, Any] = False,
        **options: Any,
    ) -> None:
        check_choices(
            pooling=pooling, activation=activation, query_model=query_model, lexical=lexical
        )
        check_pruning(query_top_k, document_top_k, prune_quantile, term_floors)
        check_trained_idf(query_model, train_idf=train_idf, learning_rate=idf_learning_rate)
        limits = (query_top_k, prune_below, prune_ratio, document_top_k)
        self._selections = selections(lexical, *limits)
        decoder = last_layer(model)
        size, queries, parts = decoder.out_features, None, model
        if term_floors is not None and term_floors.shape != (size,):
            raise ModelError(f"{len(term_floors)} term floors; the vocabulary has {size} terms")
        if query_model != "shared":
            queries = StaticQueries(tokenizer, size, weights=idf, trained=train_idf)
            if query_model == "idf":
                parts = with_modules(model, queries=queries)
        super().__init__(parts, tokenizer, **options)
        self.model = model
        self.queries = None if queries is None else queries.to(self.device)
        self.pooling = pooling
        self.activation = activation
        self.query_model = query_model
        self.lexical = lexical
        self.top_k = {"query": query_top_k, "document": document_top_k}
        self.term_frequency = TermFrequency.from_config(term_frequency)
        self.prune_below = prune_below
        self.prune_ratio = prune_ratio
        self.prune_quantile: float | None = prune_quantile
        self.term_floors = term_floors
        self.learning_rates: dict[str, float] = (
            {} if idf_learning_rate is None else {"queries.weights": idf_learning_rate}
        )
        self._decoder = decoder
        self._product: tuple[Any, VocabularyProduct] | None = None
        with self.arithmetic():
            pass_through(model, decoder)
        special = [i for i in tokenizer.all_special_ids if i < size]
        self._special = torch.tensor(sorted(special), dtype=torch.long)

    @classmethod
    @takes_options(TextGraphOptions)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        pooling: Annotated[
            Pooling | None, "max (SPLADE v2, the default) or sum (v1), over the tokens of a text."
        ] = None,
        activation: Annotated[
            Activation | None, "What makes a term's logit a weight: log1p_relu, or relu."
        ] = None,
        query_model: Annotated[
            QueryModel | None,
            "shared: queries by the same network; bow or idf: by a table, without one.",
        ] = None,
        lexical: Annotated[
            Lexical | None, "Keeps only a text's own tokens: none, query, document or both."
        ] = None,
        prune_below: Annotated[
            float | None, "Drops a document's terms with a weight below this."
        ] = None,
        prune_ratio: Annotated[
            float | None, "Drops a document's terms below this share of its largest weight."
        ] = None,
        query_top_k: Annotated[int | None, "Keeps a query's so many heaviest terms."] = None,
        document_top_k: Annotated[int | None, "Keeps a document's so many heaviest terms."] = None,
        prune_quantile: Annotated[
            float | None, "Drops this share of each term's postings, the lightest."
        ] = None,
        train_idf: Annotated[
            bool, "Whether the idf table of query_model: idf is trained too."
        ] = False,
        idf_learning_rate: Annotated[float | None, "The learning rate of the idf table."] = None,
        term_frequency: Annotated[
            bool | dict[str, Any] | None,
            "Weighs a document's terms by how often they occur and by its length, as BM25 "
            "does: true, or {k1, b, length}.",
        ] = None,
        **options: Unpack[TextGraphOptions],
    ) -> SpladeEncoder:
        """Load a masked language model or a SPLADE folder (ours or sentence-transformers').

        Arguments left at None come from the folder; so do the query weights of ``idf``, which are 1
        if it has none (``fit_idf`` counts them). A model without a language-model head is a
        ``ModelError``: ``start_splade`` adds one. ``backend`` is as in ``DenseEncoder``.
        """
        from transformers import AutoModelForMaskedLM

        source = model_folder(str(model))
        if not has_mlm_head(source):
            raise ModelError(
                f"{source}: no masked-language-model head; training makes one: write `start: true` "
                "beside the model of the encoder that is trained (it does not work under "
                "retrievers:), or call sluice.encoders.start_splade(model, texts)"
            )
        arguments = {
            "pooling": pooling, "activation": activation, "query_model": query_model,
            "lexical": lexical, "prune_below": prune_below, "prune_ratio": prune_ratio,
            "query_top_k": query_top_k, "document_top_k": document_top_k,
            "prune_quantile": prune_quantile, "term_frequency": term_frequency,
        }  # fmt: skip
        with SpladeFolder.opened(source) as parts:
            loaded = load(AutoModelForMaskedLM, str(parts.network))
            layout = read_layout(parts.network)
            layout.sidecar |= parts.sidecar
            if "Pooling" in layout.modules:
                raise ModelError(
                    f"{source}: a dense encoder's folder; load it with DenseEncoder (type: dense)"
                )
            sides = text_settings(loaded, layout, options)
            if options["query_length"] is None:
                cut = parts.query_length(loaded.tokenizer)
                sides["query_length"] = cut or sides["query_length"]
            settings = parts.settings(layout, loaded, arguments)
        encoder = cls(
            loaded.model,
            loaded.tokenizer,
            train_idf=train_idf,
            idf_learning_rate=idf_learning_rate,
            **settings,
            **sides,
        )
        choose_backend(encoder, source, options, layout.sidecar)
        return encoder

    @property
    def dim(self) -> int:
        """The size of the vocabulary."""
        return self._decoder.out_features

    @property
    def fitted_terms(self) -> FittedTerms:
        """What a collection has to be counted for."""
        return FittedTerms(self.prune_quantile, self.needs_term_floors, self.needs_idf)

    @property
    def needs_idf(self) -> bool:
        """Whether ``sluice.encoders.fit_idf`` has yet to count the query weights."""
        return self.query_model == "idf" and not (self.queries is None or self.queries.counted)

    @property
    def needs_term_floors(self) -> bool:
        """Whether the weights that ``prune_quantile`` cuts at have yet to be fitted."""
        return self.prune_quantile is not None and self.term_floors is None

    @property
    def derived(self) -> tuple[SpladeEncoder, Callable[[Any], Any]] | None:
        """The vectors of all postings, which are pruned by ``term_floors``."""
        return None if self.prune_quantile is None else (self.without_quantile(), self._pruned)

    def without_quantile(self) -> SpladeEncoder:
        """Return this encoder, weights and all, without ``prune_quantile``."""
        other = copy.copy(self)
        other.prune_quantile = other.term_floors = None
        return other

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        floors = self.term_floors
        optional = {
            "lexical": None if self.lexical == "none" else self.lexical,
            "prune_below": self.prune_below, "prune_ratio": self.prune_ratio,
            "prune_quantile": self.prune_quantile,
            "term_frequency": None if self.term_frequency is None else asdict(self.term_frequency),
            "term_floors": None if floors is None else hashlib.sha256(floors.tobytes()).hexdigest(),
        }  # fmt: skip
        return {
            **super().settings(), "pooling": self.pooling, "activation": self.activation,
            "query_model": self.query_model, "top_k": self.top_k,
            # only those that are set: others never change a fingerprint
            **{key: value for key, value in optional.items() if value is not None},
        }  # fmt: skip

    def as_saved(self, name: str, tensor: Tensor) -> Tensor:
        """Return a parameter as it is saved: query weights are never below 0."""
        is_query = self.queries is not None and name == "queries.weights"
        return self.queries.table() if is_query and self.queries is not None else tensor

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, see ``TransformerModel``."""
        return {**super().__getstate__(), "_product": None}

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return term weights ``[n, vocab]`` of tokenised texts, float32, with gradients."""
        if side == "query" and self.queries is not None:
            vectors: Tensor = self.queries(features["input_ids"], features["attention_mask"])
            bow = self.query_model == "bow"
            return vectors if bow else self._selections[side].of_batch(vectors, None)
        return self.pooled(self.hidden(features), features, side)

    def pooled(self, states: Tensor, features: Features, side: Side) -> Tensor:
        """Return term weights ``[n, vocab]`` of the states that ``hidden`` makes of features."""
        ids, mask = features["input_ids"], features["attention_mask"]
        selection = self._selections[side]
        vectors = _POOLS[self.pooling](
            states, mask, self._decoder.weight, self._bias(),
            twice=self.activation == "log1p_relu",
        )  # fmt: skip
        if side == "document" and self.term_frequency is not None:
            factors = self.term_frequency.of_batch(ids, mask, self._special, self.dim)
            vectors = vectors * factors
        own = None
        if selection.lexical:
            own = bags(ids, mask, self.dim)
            own[:, self._special.to(ids.device)] = 0.0
        return selection.of_batch(vectors, own)

    def _weights(self, batch: TokenBatch, network: PackedTransformer | None) -> Tensor:
        """Return term weights ``[n, vocab]`` of a batch, before any top-k."""
        key = (self.dtype, *versions(self._decoder.parameters()))
        if self._product is None or self._product[0] != key:
            self._product = (
                key,
                VocabularyProduct(self._decoder.weight, self._bias(), self.floats),
            )
        return self._product[1](
            self.output(batch, network),
            list(spans(batch.lengths)),
            pooling=self.pooling,
            twice=self.activation == "log1p_relu",
        )

    def hidden(self, features: Features) -> Tensor:
        """Return the states ``[n, length, hidden]`` before the vocabulary product."""
        packed, head = self.training_pass(features), vocabulary_head(self.model)
        if packed is not None and head is not None:
            return packed.packing.padded(head(packed.states()))
        states: Tensor = self.model(**features).logits
        return states

    @property
    def packable(self) -> bool:
        """Whether the head of this model is known."""
        return vocabulary_head(self.model) is not None

    def run_packed(self, network: PackedTransformer, batch: TokenBatch) -> Tensor:
        """Return the states before the vocabulary product, by a packed pass."""
        states = super().run_packed(network, batch)
        head = vocabulary_head(self.model)
        return states if head is None else head(states)

    @property
    def term_bias(self) -> SpladeEncoder:
        """The encoder itself, whose head has a bias of each term."""
        return self

    def raises(self, side: Side) -> bool:
        """Whether ``raise_bias`` changes how many terms are active on this side."""
        shared = side == "document" or self.queries is None
        bias = self._decoder.bias
        return shared and bias is not None and bias.requires_grad

    def raise_bias(self, amount: float) -> None:
        """Add ``amount`` to the logits of all terms: more of them are active."""
        self._decoder.bias.detach().add_(amount)

    def _bias(self) -> Tensor:
        bias: Tensor | None = self._decoder.bias
        return self._decoder.weight.new_zeros(self.dim) if bias is None else bias

    def encode_queries(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the queries' term weights, float32 ``csr_array [n, vocab]``, in input order."""
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the documents' term weights, float32 ``csr_array [n, vocab]``, in input order."""
        vectors = self._encode(texts, "document")
        return vectors if self.prune_quantile is None or not len(texts) else self._pruned(vectors)

    def _pruned(self, vectors: sp.csr_array) -> sp.csr_array:
        if self.term_floors is None:
            raise ConfigError(
                f"prune_quantile: the weights to cut at, quantile {self.prune_quantile}, are not "
                "known yet; build a retriever with this encoder, or call "
                "sluice.encoders.splade.fit_term_floors(encoder, texts) first"
            )
        return prune_terms(vectors, self.term_floors)

    def terms(self, columns: Sequence[int]) -> list[str]:
        """Return the tokens of columns; a column without a token is ``[column]``."""
        tokens = self.tokenizer.convert_ids_to_tokens([int(column) for column in columns])
        named = zip(columns, tokens, strict=True)
        return [f"[{column}]" if token is None else str(token) for column, token in named]

    def _encode(self, texts: Sequence[str], side: Side) -> sp.csr_array:
        if side == "query" and self.queries is not None:
            return self._static(texts, self.queries)
        selection, special = self._selections[side], self._special.numpy()
        frequency = self.term_frequency if side == "document" else None
        terms: list[np.ndarray] = [np.empty(0, np.int32)] * len(texts)
        weights: list[np.ndarray] = [np.empty(0, np.float32)] * len(texts)

        def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
            for part in batch.parts(TEXTS):
                matrix = sp.csr_array(self._weights(part, network).cpu().numpy())
                for place, row in enumerate(part.rows):
                    span = slice(matrix.indptr[place], matrix.indptr[place + 1])
                    active, values = matrix.indices[span], matrix.data[span]
                    if frequency is not None:
                        read = part.ids[place][~np.isin(part.ids[place], special)]
                        values = values * frequency.of_text(active, read)
                    own = np.setdiff1d(part.ids[place], special) if selection.lexical else None
                    terms[row], weights[row] = selection.of_text(active, values, own)

        self.map_texts(texts, side, store)
        return joined_rows(terms, weights, self.dim)

    def _static(self, texts: Sequence[str], queries: StaticQueries) -> sp.csr_array:
        """Return each query's own tokens with their weights; no network runs."""
        terms, weights = queries.of_tokens(self.tokens(texts, "query").ids)
        if self.query_model == "idf":
            select = self._selections["query"].of_text
            chosen = [select(t, w, None) for t, w in zip(terms, weights, strict=True)]
            terms, weights = [t for t, _ in chosen], [w for _, w in chosen]
        return joined_rows(terms, weights, self.dim)

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder that sentence-transformers' SparseEncoder loads, in one step."""
        with replaced_folder(Path(path)) as folder:
            save_splade(self, folder)
            write_probes(folder, self)
