"""Cross-encoders: one score for a query and a document read together."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from sluice.encoders.backends.backend import choose_backend
from sluice.encoders.encoder import EncoderBase
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest
from sluice.encoders.model_files.adapters import added_modules, cut_layers, noted_weights
from sluice.encoders.model_files.layout import (
    ADAPTER,
    read_layout,
    read_object,
    transformer_folder,
    write_lower_case,
    write_ranker,
    write_sidecar,
)
from sluice.encoders.model_files.loading import (
    Loaded,
    is_head,
    lengths_of,
    load,
    lowers,
    save,
    weights_type,
)
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import Dtype, GraphOptions, computing, takes_options
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.model_files.registry import kind_of
from sluice.encoders.model_files.weights.quantised import Weights
from sluice.encoders.rerankers.pairs import check_pairs
from sluice.encoders.rerankers.recipes import recipe_of
from sluice.encoders.rerankers.similarity_head import (
    HEADS as COMPARING,
    SimilarityHead,
    TermHead,
    draw_head,
    sides,
)
from sluice.encoders.splade.folder import has_mlm_head
from sluice.encoders.table import RERANKERS
from sluice.encoders.transformer.model import Features, TransformerModel
from sluice.encoders.transformer.packed.families import classification_head
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import with_modules
from sluice.encoders.transformer.tokens import TokenBatch, Tokens, check_texts
from sluice.familiar import FamiliarScorer

RELEVANT = ("relevant", "true", "yes", "positive", "1", "label_1", "entailment", "is_relevant")


def label_count(folder: Path) -> int:
    """Return the labels of a folder's classifier; 1, a new head's, for another model.

    A configuration that does not say has two, transformers' default. ``ModelError`` for more.
    """
    path = transformer_folder(folder) / "config.json"
    config = read_object(path)
    if "SequenceClassification" not in str(config.get("architectures")):
        return 1
    names = config.get("id2label")
    count = len(names) if isinstance(names, dict) else config.get("num_labels", 2)
    if count not in (1, 2):
        raise ModelError(f"{path}: a classifier of {count} labels; a reranker has one or two")
    return int(count)


def relevant_label(config: Any) -> int:
    """Return which of two labels says relevant: the one of that name, else the second."""
    names = getattr(config, "id2label", None) or {}
    first = str(names.get(0, "")).strip().lower()
    second = str(names.get(1, "")).strip().lower()
    return 0 if first in RELEVANT and second not in RELEVANT else 1


def one_score(logits: Tensor, relevant: int) -> Tensor:
    """Return one number a pair ``[n]`` of logits ``[n, 1]`` or ``[n, 2]``, float32.

    Of two it is their difference, the log-odds of relevance: its sigmoid is the probability that a
    softmax gives. (Nogueira and Cho, 2019, arXiv 1901.04085, train two labels so.)
    """
    scores = logits.float()
    if scores.shape[-1] == 1:
        return scores.squeeze(-1)
    signs = torch.full((2,), -1.0, device=scores.device)
    signs[relevant] = 1.0
    return (scores * signs).sum(dim=-1)


log = logging.getLogger("sluice")

Head = Literal["classifier", "similarity", "terms"]
CLASSIFIER: Head = "classifier"
HEADS = (CLASSIFIER, *COMPARING)


class CrossEncoder(FamiliarScorer, TransformerModel, EncoderBase):
    """A network that reads "query [SEP] document"; scores are raw logits.

    It is a sequence classifier of one label (Nogueira and Cho, 2019, arXiv 1901.04085), or of two,
    whose score is the log-odds of the relevant one, or with a ``SimilarityHead`` an encoder whose
    states of both texts are compared.
    """

    kind = "cross_encoder"
    takes_bytes = True
    own_pass = ""  # what other libraries would leave out of the scores
    head_parameters = ("classifier", "pooler", "score", "similarity_head")

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        max_length: int = 512,
        device: str = "auto",
        dtype: Dtype = "float32",
        batch_tokens: int | None = None,
        similarity_head: SimilarityHead | None = None,
    ) -> None:
        labels = int(model.config.num_labels)
        if labels not in (1, 2) and similarity_head is None:
            raise ModelError(
                f"{type(model).__name__} has {labels} labels; a reranker has one or two"
            )
        head = similarity_head
        module = model if head is None else with_modules(model, similarity_head=head)
        super().__init__(module, tokenizer, device=device, dtype=dtype, batch_tokens=batch_tokens)
        self.model = model
        self.similarity_head = similarity_head
        self.max_length = max_length
        self._relevant = relevant_label(model.config)
        # DistilBERT has no segments, and RoBERTa's tokenizer returns none.
        known = inspect.signature(model.forward).parameters
        self._segments = "token_type_ids" in set(tokenizer.model_input_names) & set(known)
        if model.config.pad_token_id is None:  # by which decoders find the last token
            model.config.pad_token_id = self.tokenizer.pad_token_id
        around = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.eos_token_id}
        self._separators = torch.tensor(sorted(around - {None}), device=self.device)
        if similarity_head is not None:
            self._check_sides()

    @classmethod
    @takes_options(GraphOptions)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        head: Annotated[
            Head | None,
            "classifier, or similarity: the texts' states are compared, which is the better "
            "start from a sentence encoder; terms: what a masked-language-model head says of the "
            "query's words counts too, for SPLADE's body.",
        ] = None,
        max_length: Annotated[
            int | None, "Tokens of a query and a document together that are read; the rest is cut."
        ] = None,
        layers: int | None = None,
        weights: Weights | None = None,
        seed: int = 13,
        **options: Unpack[GraphOptions],
    ) -> CrossEncoder:
        """Load a cross-encoder, or any encoder with a new one-label head drawn by ``seed``.

        ``head`` is ``classifier`` or ``similarity``, the better start from a sentence encoder and
        little training (``SimilarityHead``), or ``terms`` (``TermHead``), for a masked language
        model; None is the one that the folder was saved with, else ``classifier``. ``max_length``
        is in tokens, of both texts and special tokens together; the longer text, usually the
        document, is cut first. A new classifier is logged as a warning, and so is a trained one
        that a new similarity head leaves out. ``layers``, ``backend`` and ``weights`` are as in
        ``DenseEncoder``; a similarity head has torch alone.
        """
        if head is not None and head not in HEADS:
            near = suggest(str(head), HEADS)
            raise ConfigError(f"head: {head!r}; expected {', '.join(HEADS)}{near}")
        layout = read_layout(model_folder(str(model)))
        own = layout.sidecar.get("type")
        if own in RERANKERS and own not in ("cross_encoder", cls.kind):
            raise ModelError(
                f"{model}: a model of type {own}, which scores otherwise; open it by that type"
            )
        noted = layout.sidecar.get("head", CLASSIFIER)
        if noted not in HEADS:
            raise ModelError(f"{model}: sluice.json: head is {noted!r}, expected one of {HEADS}")
        name = str(head or noted)
        similar = name != CLASSIFIER
        backend, backend_file = options["backend"], options["backend_file"]
        if similar and (backend not in (None, "torch") or backend_file is not None):
            raise ConfigError(
                f"backend: {backend or backend_file}; a similarity head has no exported graph: "
                "leave backend and backend_file out"
            )
        bits = weights_type(str(model), weights, backend)
        network, tokenizer, folder, drawn = _loaded(str(model), name, seed=seed, weights=bits)
        graph = (backend or layout.sidecar.get("backend", "torch")) != "torch"
        cut_layers(network, layers, exported=graph)
        compared = None
        if similar and noted == name:
            compared = COMPARING[name].read(folder, int(network.config.hidden_size), network)
        elif similar:
            compared = draw_head(name, network, seed)
            if kind_of(folder) == cls.kind:
                log.warning("%s: head: %s leaves its trained %s out", folder, name, noted)
        elif drawn:
            recipe = recipe_of(str(model))
            log.warning(
                "%s: no one-label head, so a new one was drawn at random; train it before use%s",
                folder,
                f", or give it the prompt of {recipe.name}: type: generative" if recipe else "",
            )
        usual, limit = lengths_of(tokenizer, network.config, layout.max_length)
        length = usual if max_length is None else max_length
        if not 5 <= length <= limit:
            raise ConfigError(f"max_length: {length}; the model takes 5 to {limit} tokens")
        encoder = cls(
            network, tokenizer, max_length=length, similarity_head=compared, **computing(options)
        )
        if not similar:
            choose_backend(encoder, folder, options, layout.sidecar)
        return encoder

    def _check_sides(self) -> None:
        """Raise ``ModelError`` where the query's and the document's tokens cannot be told apart."""
        tokens = self._tokens([("a", "b")])
        pair = TokenBatch(np.arange(1), tokens.ids, tokens.types)
        features = self.padded(pair)
        if not all(bool(side.any()) for side in self._sides(features)):
            raise ModelError(
                f"{type(self.model).__name__}: its tokenizer puts nothing between the texts of a "
                "pair, so a similarity head cannot tell them apart; use head: classifier"
            )

    def _sides(self, features: Features) -> tuple[Tensor, Tensor]:
        """Return where the queries' and the documents' tokens lie, bool ``[n, length]``."""
        ids, mask = features["input_ids"], features["attention_mask"]
        return sides(ids, mask, features.get("token_type_ids"), self._separators)

    def _by_head(self, states: Tensor, features: Features) -> Tensor:
        """Return what the similarity head says of the states of padded features, ``[n]``."""
        assert self.similarity_head is not None
        scores: Tensor = self.similarity_head(states, *self._sides(features), features["input_ids"])
        return scores

    @property
    def fingerprint(self) -> str:
        """A hash of weights, tokenizer and length."""
        settings = {"kind": self.kind, "length": self.max_length}
        if self.graph_mark is not None:
            settings["graph"] = self.graph_mark
        return fingerprint_of(self.weights_hash(), settings)

    def _tokens(self, pairs: Sequence[tuple[str, str]]) -> Tokens:
        return self.tokenized(
            [query for query, _ in pairs],
            [document for _, document in pairs],
            length=self.max_length,
            types=self._segments,
        )

    def tokenize_pairs(self, pairs: Sequence[tuple[str, str]]) -> Features:
        """Return the padded features of (query, document) pairs, ready for ``logits``."""
        tokens = self._tokens(pairs)
        return self.pad(tokens.ids, tokens.types)

    def logits(self, features: Features) -> Tensor:
        """Return one raw logit per pair, float32 ``[n]``, with gradients."""
        packed, head = self.training_pass(features), classification_head(self.model)
        if self.similarity_head is not None:
            if packed is None:
                states = self.model.base_model(**features).last_hidden_state
            else:
                states = packed.packing.padded(packed.states())
            return self._by_head(states, features)
        if packed is not None and head is not None:
            return one_score(head(packed.firsts()), self._relevant)
        return one_score(self.model(**features).logits, self._relevant)

    def tokenize_texts(self, texts: Sequence[str]) -> Features:
        """Return the padded features of single texts, ready for ``embed_texts``."""
        check_texts(texts)
        tokens = self.tokenized(texts, length=self.max_length, types=self._segments)
        return self.pad(tokens.ids, tokens.types)

    def embed_texts(self, features: Features) -> Tensor:
        """Return the last layer's state of each text's first token, float32 ``[n, hidden]``.

        With gradients. For a decoder, whose first token sees no other, it is the last token's
        state, which its head reads.
        """
        states: Tensor = self.model.base_model(**features).last_hidden_state
        if not hasattr(self.model, "score"):  # what transformers calls a decoder's head
            return states[:, 0].float()
        last = features["attention_mask"].sum(1) - 1
        return states[torch.arange(len(states), device=states.device), last].float()

    @property
    def packable(self) -> bool:
        """Whether the head of this model is known."""
        return self.similarity_head is not None or classification_head(self.model) is not None

    def run_packed(self, network: PackedTransformer, batch: TokenBatch) -> Tensor:
        """Return one raw logit per pair, by a packed pass.

        For a classifier its last layer sees one token of each.
        """
        if self.similarity_head is not None:
            parts = torch.split(network.states(*self.laid_out(batch)), batch.lengths)
            padded = nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
            return self._by_head(padded, self.padded(batch))
        states = network.single_states(*self.laid_out(batch))
        head = classification_head(self.model)
        return one_score(states if head is None else head(states), self._relevant)

    def run_padded(self, batch: TokenBatch) -> Tensor:
        """Return one raw logit per pair, by the model's own pass or the back end's."""
        features = self.padded(batch)
        if self.backend is None:
            return self.logits(features)
        return one_score(self.by_backend(features), self._relevant)

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return one raw logit per (query, document) pair, float32 ``[n]``, in input order."""
        check_pairs(pairs)
        scores = np.zeros(len(pairs), np.float32)

        def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
            scores[batch.rows] = self.output(batch, network).cpu().numpy()

        self.map_batches(
            len(pairs),
            lambda start, stop: self._tokens(pairs[start:stop]),
            store,
            label="score pairs",
            unit="pairs",
        )
        return scores

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder that sentence-transformers' CrossEncoder loads with raw logits.

        It runs a similarity head with ``trust_remote_code=True``, and refuses what it cannot run.
        """
        head = self.similarity_head
        part = self.own_pass or (ADAPTER if added_modules(self.model) else "")
        part = part or ("" if head is None else type(head).__name__)
        with replaced_folder(Path(path)) as folder:
            home = write_ranker(folder, "Transformer", part) if part else folder
            config = self.model.config
            # Without this key, sentence-transformers applies a sigmoid to one-label models.
            config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}
            if head is not None:
                config.num_labels = 1
            save(self.model, home)
            limit = int(self.tokenizer.model_max_length)
            self.tokenizer.model_max_length = self.max_length  # where CrossEncoder reads it
            self.tokenizer.save_pretrained(home)
            self.tokenizer.model_max_length = limit
            write_lower_case(home, lowers(self.tokenizer))
            if head is not None:
                head.save(folder, self._separators.tolist(), segments=self._segments)
            write_sidecar(folder, {**self.facts(), **self.save_backend(folder)})
            write_probes(folder, self)

    def facts(self) -> dict[str, Any]:
        """Return what ``sluice.json`` notes."""
        head = {} if self.similarity_head is None else {"head": self.similarity_head.NAME}
        noted = noted_weights(self.model)
        return {"type": self.kind, "max_length": self.max_length, **head, **noted}


def _loaded(model: str, head: str, *, seed: int, weights: Weights) -> Loaded:
    """Load the network with what its head reads: nothing, the words' weights, or its classifier."""
    from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

    if head == TermHead.NAME:
        if not has_mlm_head(model_folder(model)):
            raise ModelError(
                f"{model}: no masked-language-model head, which head: {head} reads; take SPLADE's "
                f"body, or write head: {SimilarityHead.NAME}"
            )
        return load(AutoModelForMaskedLM, model, weights=weights)
    if head != CLASSIFIER:
        return load(AutoModel, model, weights=weights)
    labels = label_count(model_folder(model))
    return load(
        AutoModelForSequenceClassification, model, fresh=is_head, seed=seed, weights=weights,
        num_labels=labels,
    )  # fmt: skip
