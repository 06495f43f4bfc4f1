"""Scores a query and a document from their vectors with a small network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sluice.encoders.foundation.disk.files import check_version, write_json
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.model_files.layout import read_object

FOLDER = "pair_head"  # in the folder of the encoder that makes the vectors
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
ROWS = 4_096  # pairs scored at a time


class PairHead(nn.Module):
    """``MLP([u, v, u * v, |u - v|])``: one hidden layer with ReLU, one score for each pair.

    It reads the vectors as the encoder returns them, so they can be cached: scoring a pair costs
    4 dim hidden multiplications and no transformer pass. (Barkan et al. 2020, Distilled Sentence
    Embedding, section 3.2.)
    """

    def __init__(self, dim: int, hidden: int = 512) -> None:
        if dim < 1 or hidden < 1:
            raise ConfigError(f"pair head: dim {dim} and hidden {hidden}, expected 1 or more")
        super().__init__()
        self.dim = dim
        self.hidden = hidden
        self.inner = nn.Linear(4 * dim, hidden)
        self.outer = nn.Linear(hidden, 1)

    def forward(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Return scores ``[n]`` of the pairs of ``[n, dim]`` and ``[n, dim]``, with gradients."""
        pairs = torch.cat(
            [queries, documents, queries * documents, (queries - documents).abs()], dim=-1
        )
        scores: Tensor = self.outer(torch.relu(self.inner(pairs)))
        return scores.squeeze(-1)

    def score(
        self, queries: NDArray[np.float32], documents: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return scores float32 ``[n]`` of pairs of cached vectors, ``[n, dim]`` each.

        Raises ``DataError`` for vectors of another shape.
        """
        if queries.shape != documents.shape or queries.shape[1:] != (self.dim,):
            raise DataError(
                f"pair head: queries are {list(queries.shape)} and documents "
                f"{list(documents.shape)}, expected [n, {self.dim}] of both"
            )
        device = self.outer.weight.device
        scores = np.empty(len(queries), np.float32)
        with torch.inference_mode():
            for start in range(0, len(queries), ROWS):
                part = slice(start, start + ROWS)
                logits = self(
                    torch.from_numpy(np.ascontiguousarray(queries[part])).to(device).float(),
                    torch.from_numpy(np.ascontiguousarray(documents[part])).to(device).float(),
                )
                scores[part] = logits.cpu().numpy()
        return scores

    def save(self, folder: str | Path) -> None:
        """Write ``pair_head/`` into a model folder: safetensors and JSON.

        sentence-transformers, which reads the modules in ``modules.json``, ignores it.
        """
        from safetensors.torch import save_file

        home = Path(folder) / FOLDER
        home.mkdir(parents=True, exist_ok=True)
        facts = {"version": 1, "dim": self.dim, "hidden": self.hidden}
        write_json(home / CONFIG, facts)
        weights = {name: value.detach().cpu() for name, value in self.state_dict().items()}
        save_file(weights, home / WEIGHTS, {"format": "pt"})

    @classmethod
    def load(cls, folder: str | Path) -> PairHead:
        """Read the head of a model folder; raises ``ModelError`` if it is missing or damaged.

        No code from the folder runs.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        home = Path(folder) / FOLDER
        if not (home / CONFIG).exists() or not (home / WEIGHTS).exists():
            raise ModelError(
                f"{home}: no pair head; expected {CONFIG} and {WEIGHTS}, as training with "
                "loss: {type: dse} writes them"
            )
        facts = read_object(home / CONFIG)
        check_version(facts.get("version", 1), 1, home / CONFIG, ModelError)
        sizes = facts.get("dim"), facts.get("hidden")
        if not all(type(size) is int and size > 0 for size in sizes):
            raise ModelError(f"{home / CONFIG}: dim and hidden are {sizes}, expected 1 or more")
        dim, hidden = facts["dim"], facts["hidden"]
        try:
            weights = load_file(home / WEIGHTS)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{home / WEIGHTS}: does not fit its config.json: {error}") from error
        shapes = {
            key: list(value.shape) for key, value in weights.items() if value.is_floating_point()
        }
        # before allocating memory for what a config claims
        expected = {
            "inner.bias": [hidden], "inner.weight": [hidden, 4 * dim], "outer.bias": [1],
            "outer.weight": [1, hidden],
        }  # fmt: skip
        if shapes != expected or len(weights) != len(expected):
            raise ModelError(
                f"{home / WEIGHTS}: does not fit its config.json: float tensors {shapes}, expected "
                f"{expected}"
            )
        head = cls(dim, hidden)
        head.load_state_dict(weights)
        return head.eval()


def draw_pair_head(dim: int, hidden: int, seed: int) -> PairHead:
    """Return a new head whose weights are drawn by ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return PairHead(dim, hidden)
