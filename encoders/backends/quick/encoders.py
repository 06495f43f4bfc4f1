"""Encoders over BERT in numpy (Devlin et al., 2019), opened where they were shown to agree."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.encoder import Dense
from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import (
    fingerprint_of,
    read_json,
    read_model_json,
    write_json,
)
from sluice.encoders.foundation.errors import ModelError, SluiceError
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
from sluice.encoders.table import KNOWN

Array = NDArray[np.float32]

# Settings of config.json that this pass knows, with what stands for a missing key.
UNDERSTOOD: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("bert",),
    "hidden_act": ("gelu", None),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}


def is_known(config: Mapping[str, Any]) -> bool:
    """Return whether this pass computes what a ``config.json`` describes."""
    return all(config.get(key) in values for key, values in UNDERSTOOD.items())


def read_weights(file: Path) -> dict[str, Array] | None:
    """Return a safetensors file's float32 tensors by name, None if some are of another type.

    The name of the whole model before a part's, as in ``bert.encoder``, is left out.
    """
    from safetensors import safe_open

    weights: dict[str, Array] = {}
    with safe_open(file, framework="numpy") as stored:
        for name in stored.keys():  # noqa: SIM118  not a mapping
            if stored.get_slice(name).get_dtype() == "F32":
                weights[name.removeprefix("bert.")] = stored.get_tensor(name)
            elif name.endswith(("weight", "bias")):
                return None
    return weights


class Network:
    """BERT's embeddings and layers, with their weights by name."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
        self.weights = weights
        self._layers = int(config["num_hidden_layers"])
        self._heads = int(config["num_attention_heads"])
        self._eps = np.float32(config.get("layer_norm_eps", 1e-12))

    def states(
        self, ids: Sequence[NDArray[np.int64]], types: Sequence[NDArray[np.int64]] | None = None
    ) -> list[Array]:
        """Return the last hidden states of each text, ``[its tokens, hidden]``."""
        lengths = [len(text) for text in ids]
        ends = np.cumsum(lengths)[:-1]
        places = np.concatenate([np.arange(length) for length in lengths])
        kinds = np.zeros(len(places), np.int64) if types is None else np.concatenate(types)
        x = (
            self.weights["embeddings.word_embeddings.weight"][np.concatenate(ids)]
            + self.weights["embeddings.token_type_embeddings.weight"][kinds]
            + self.weights["embeddings.position_embeddings.weight"][places]
        )
        x = self.norm(x, "embeddings.LayerNorm")
        for layer in range(self._layers):
            part = f"encoder.layer.{layer}"
            queries, keys, values = (
                np.split(self.linear(x, f"{part}.attention.self.{name}"), ends)
                for name in ("query", "key", "value")
            )
            attended = np.concatenate(
                [self._attended(*text) for text in zip(queries, keys, values, strict=True)]
            )
            out = self.linear(attended, f"{part}.attention.output.dense")
            x = self.norm(x + out, f"{part}.attention.output.LayerNorm")
            inner = gelu(self.linear(x, f"{part}.intermediate.dense"))
            x = self.norm(
                x + self.linear(inner, f"{part}.output.dense"), f"{part}.output.LayerNorm"
            )
        return np.split(x, ends)

    def linear(self, x: Array, name: str) -> Array:
        """Return ``x W^T + b`` for the layer of a name."""
        product: Array = x @ self.weights[f"{name}.weight"].T
        product += self.weights[f"{name}.bias"]
        return product

    def _attended(self, queries: Array, keys: Array, values: Array) -> Array:
        """Return one text's attention, ``[tokens, hidden]``."""
        tokens, hidden = queries.shape
        shape = tokens, self._heads, hidden // self._heads
        q, k, v = (part.reshape(shape).transpose(1, 0, 2) for part in (queries, keys, values))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(np.float32(shape[2]))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        return np.asarray((scores @ v).transpose(1, 0, 2).reshape(tokens, hidden), np.float32)

    def norm(self, x: Array, name: str) -> Array:
        """Return a layer's normalisation of each row."""
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        centred /= np.sqrt(variance + self._eps)
        return np.asarray(
            centred * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"], np.float32
        )


def gelu(x: Array) -> Array:
    """Return ``x`` times the normal distribution at ``x`` (Hendrycks and Gimpel, 2016)."""
    from scipy.special import erf

    return np.asarray(x * (erf(x * np.float32(0.5**0.5)) + np.float32(1)) * np.float32(0.5))


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


log = logging.getLogger("sluice")

VERSION = 1
TYPES = ("float32", "auto", "bfloat16", "float16")
OPTIONS = {"device": ("auto", "cpu"), "dtype": TYPES}  # of the encoder, where one is given
FREE = ("batch_tokens", "max_length")
TOLERANCE = 1e-5  # of the encoder's values, relative to the longest or largest
PROBES = (
    "what is a sluice",
    "Protein-protein binding in cells, measured at 37 degrees (n = 12)?",
    "x",
    "die Größe des Flusses und das Wasser; " * 12,
)


def opened_quickly(
    kind: str, folder: Path, options: Mapping[str, Any], open_itself: Callable[..., Any]
) -> Any:
    """Return an encoder of a folder: the numpy form where that was shown to agree, else itself.

    ``kind`` is that of the folder. ``open_itself`` loads the encoder with ``options``, of which a
    device of its own, a back end and the like rule the numpy form out.
    """
    if kind not in KNOWN or not KNOWN[kind].quick or not _are_usual(options):
        return open_itself(**options)
    key, note = _key(kind, folder, options), _note_of(folder)
    noted: Any = None
    if note.exists():
        with suppress(SluiceError):
            noted = read_json(note)
    if isinstance(noted, dict) and noted.get("key") == key:
        if not noted.get("agrees"):
            return open_itself(**options)
        with suppress(SluiceError, OSError, ValueError, KeyError):
            return _quick(kind, folder, options, str(noted.get("fingerprint")))
    encoder = open_itself(**{**options, "dtype": "float32"})
    agrees = _agrees(kind, folder, options, encoder)
    with suppress(OSError, SluiceError):
        fingerprint = str(encoder.fingerprint)
        write_json(note, {"key": key, "agrees": agrees, "fingerprint": fingerprint})
    usual = agrees or options.get("dtype") in (None, "float32")
    return encoder if usual else open_itself(**options)


def _are_usual(options: Mapping[str, Any]) -> bool:
    return all(
        name in FREE or value in OPTIONS.get(name, ())
        for name, value in options.items()
        if value is not None
    )


def _quick(kind: str, folder: Path, options: Mapping[str, Any], fingerprint: str) -> Any:
    if KNOWN[kind].form == "dense":
        return QuickDense(folder, fingerprint)
    if KNOWN[kind].form == "sparse":
        return QuickSplade(folder, fingerprint)
    return QuickCross(folder, fingerprint, options.get("max_length"))


def _agrees(kind: str, folder: Path, options: Mapping[str, Any], encoder: Any) -> bool:
    """Return whether the numpy form of a folder exists and gives the encoder's values."""
    try:
        quick = _quick(kind, folder, options, "")
        if isinstance(quick, QuickDense):
            ours, theirs = (each.encode_queries(PROBES) for each in (quick, encoder))
        elif isinstance(quick, QuickSplade):
            ours, theirs = (each.encode_queries(PROBES).toarray() for each in (quick, encoder))
        else:
            pairs = [(PROBES[0], text) for text in PROBES]
            ours, theirs = (np.asarray(each.score(pairs)) for each in (quick, encoder))
    except (SluiceError, OSError, ValueError, LookupError, ImportError) as error:
        log.debug("%s: no quick pass (%s)", folder, error)
        return False
    scale = max(float(np.abs(theirs).max(initial=0)), 1e-3)
    return bool(np.abs(ours - theirs).max(initial=0) <= TOLERANCE * scale)


def _key(kind: str, folder: Path, options: Mapping[str, Any]) -> str:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    facts = [
        [file.relative_to(folder).as_posix(), file.stat().st_size, file.stat().st_mtime_ns]
        for file in files
    ]
    return fingerprint_of(VERSION, kind, facts, options.get("max_length"))


def _note_of(folder: Path) -> Path:
    place = os.environ.get("SLUICE_CACHE") or "~/.cache/sluice"
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]
    return expanded(place) / "quick" / f"{name}.json"
