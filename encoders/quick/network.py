"""BERT's forward pass in numpy (Devlin et al., 2019): float32, without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

# Settings of config.json that this pass knows, with what stands for a missing key.
KNOWN: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("bert",),
    "hidden_act": ("gelu", None),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}


def is_known(config: Mapping[str, Any]) -> bool:
    """Return whether this pass computes what a ``config.json`` describes."""
    return all(config.get(key) in values for key, values in KNOWN.items())


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
