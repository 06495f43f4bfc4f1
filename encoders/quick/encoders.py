"""Encoders over the numpy network: queries to dense or sparse vectors, pairs to scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.encoder import Dense
from sluice.encoders.foundation.disk.files import read_model_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout import (
    ADAPTER,
    SETTINGS,
    length_in,
    read_layout,
    read_object,
    read_sidecar,
    transformer_folder,
)
from sluice.encoders.model_files.prompts import side_prompts
from sluice.encoders.quick.network import Array, Network, gelu, is_known, read_weights

HEAD, WORDS = "cls.predictions", "embeddings.word_embeddings.weight"
CHUNK = 4_096  # tokens that are in one pass
# The tokenizers whose calls do no more than their file says.
TOKENIZERS = ("BertTokenizer", "BertTokenizerFast", "TokenizersBackend", "PreTrainedTokenizerFast")


class _Fast(NamedTuple):
    """The parts of an encoder's ``tokenizer`` by which documents are cut into passages."""

    backend_tokenizer: Any
    is_fast: bool = True


class _Quick:
    """A network and its tokenizer, read from a folder; ``ModelError`` for one it does not know."""

    def __init__(self, folder: Path, length: int, fingerprint: str) -> None:
        from tokenizers import Tokenizer

        self.fingerprint = fingerprint
        home = transformer_folder(folder)
        config, settings = read_object(home / "config.json"), _tokenizer_settings(home)
        weights = read_weights(home / "model.safetensors") if is_known(config) else None
        if weights is None or (home / ADAPTER).exists() or settings is None:
            raise ModelError(f"{folder}: not a model that the quick pass knows")
        self.network = Network(config, weights)
        self._tokenizer = Tokenizer.from_file(str(home / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(length)
        self.tokenizer = _Fast(self._tokenizer)

    def states(self, texts: Sequence[Any]) -> list[Array]:
        """Return the last states of texts or pairs; those of a few thousand tokens in one pass."""
        encodings = self._tokenizer.encode_batch_fast([_clean(text) for text in texts])
        ids = [np.array(each.ids, np.int64) for each in encodings]
        types = [np.array(each.type_ids, np.int64) for each in encodings]
        states: list[Array] = []
        start = 0
        while start < len(ids):
            stop, tokens = start + 1, len(ids[start])
            while stop < len(ids) and tokens + len(ids[stop]) <= CHUNK:
                tokens += len(ids[stop])
                stop += 1
            states += self.network.states(ids[start:stop], types[start:stop])
            start = stop
        return states


class QuickDense(_Quick):
    """Encodes queries as the dense encoder of a folder does, to rounding."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        layout = read_layout(folder)
        length = length_in(layout.sidecar, "query_length", folder)
        plain = layout.pool_prompt and not layout.layers
        plain = plain and not {"dim", "top_layers"} & set(layout.sidecar)
        if length is None or not plain or layout.pooling not in ("mean", "cls"):
            raise ModelError(f"{folder}: not a model that the quick pass knows")
        super().__init__(folder, length, fingerprint)
        self._prompt = side_prompts(layout, folder)["query"]
        self._pooling = layout.pooling
        self.normalize = layout.normalize

    def encode_queries(self, texts: Sequence[str]) -> Dense:
        """Return the queries' vectors, float32 ``[n, dim]``."""
        states = self.states([self._prompt + text for text in texts])
        pooled = [text[0] if self._pooling == "cls" else text.mean(axis=0) for text in states]
        vectors = np.asarray(pooled, np.float32)
        if self.normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(norms, np.float32(1e-12))
        return vectors


class QuickSplade(_Quick):
    """Encodes queries as the SPLADE encoder of a folder does, to rounding.

    ``max_i log(1 + relu(logit_ij))`` over a query's positions (Formal et al., 2021).
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        layout = read_layout(folder)
        noted = layout.sidecar
        length = length_in(noted, "query_length", folder)
        plain = (
            (noted.get("query_model"), noted.get("lexical")) == ("shared", "none")
            and noted.get("query_top_k") is None
            and (layout.splade_pooling, layout.activation) == ("max", "relu")
        )
        if length is None or not plain:
            raise ModelError(f"{folder}: not a model that the quick pass knows")
        super().__init__(folder, length, fingerprint)
        if f"{HEAD}.transform.dense.weight" not in self.network.weights:
            raise ModelError(f"{folder}: not a model that the quick pass knows")
        self._prompt = side_prompts(layout, folder)["query"]

    def encode_queries(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the queries' term weights, float32 ``[n, vocab]``, sorted by term."""
        weights = self.network.weights
        words = weights.get(f"{HEAD}.decoder.weight", weights[WORDS])
        bias = weights.get(f"{HEAD}.decoder.bias", weights.get(f"{HEAD}.bias"))
        rows = [np.zeros((0, len(words)), np.float32)]
        for states in self.states([self._prompt + text for text in texts]):
            inner = gelu(self.network.linear(states, f"{HEAD}.transform.dense"))
            logits = self.network.norm(inner, f"{HEAD}.transform.LayerNorm") @ words.T
            best = logits.max(axis=0, keepdims=True)  # the bias of a term is the same everywhere
            rows.append(np.log1p(np.maximum(best if bias is None else best + bias, 0)))
        return sp.csr_array(np.concatenate(rows))


class QuickCross(_Quick):
    """Scores pairs as the cross-encoder of a folder does, to rounding."""

    def __init__(self, folder: Path, fingerprint: str, max_length: int | None) -> None:
        noted = read_sidecar(folder).get("max_length")
        length = max_length or noted
        if not isinstance(length, int):
            raise ModelError(f"{folder}: not a model that the quick pass knows")
        super().__init__(folder, length, fingerprint)
        if not {"pooler.dense.weight", "classifier.weight"} <= self.network.weights.keys():
            raise ModelError(f"{folder}: not a model that the quick pass knows")

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return one raw logit per (query, document) pair, float32 ``[n]``."""
        if not len(pairs):
            return np.zeros(0, np.float32)
        firsts = np.stack([text[0] for text in self.states([tuple(pair) for pair in pairs])])
        pooled = np.tanh(self.network.linear(firsts, "pooler.dense"))
        return self.network.linear(pooled, "classifier")[:, 0]


def _clean(text: Any) -> Any:
    """Return a text or a pair with the replacement character for lone surrogates."""
    if isinstance(text, tuple):
        return tuple(map(_clean, text))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _tokenizer_settings(home: Path) -> Mapping[str, Any] | None:
    """Return a tokenizer's settings if its file alone says what it does."""
    settings = read_model_json(home / "tokenizer_config.json")
    own = read_object(home / SETTINGS)
    if not isinstance(settings, Mapping) or not (home / "tokenizer.json").exists():
        return None
    plain = (
        settings.get("tokenizer_class") in TOKENIZERS
        and settings.get("truncation_side", "right") == "right"
        and not settings.get("split_special_tokens")
        and not own.get("do_lower_case")
    )
    return settings if plain else None
