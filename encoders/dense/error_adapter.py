"""Small networks over dense vectors: an adapter that finds false negatives, a head over pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from sluice.encoders.foundation.disk.files import check_version, write_bytes, write_json
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.foundation.numbers import whole_number
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


FILE = "error_adapter.safetensors"  # in the folder of the encoder that makes the vectors
FORMAT = "sluice.error_adapter"
SCALE = 10.0  # of the cosine in the logit, before training


class ErrorAdapter(nn.Module):
    """``a = c + MLP([q - c, q * c, q + c])``: the document's vector as the query should see it.

    ``q`` and ``c`` are unit vectors of a query and a document, the MLP has one hidden layer with
    GELU. The pair is relevant with probability ``sigmoid(scale cos(q, a) + shift)``. A new adapter
    changes nothing: its last layer is zeros, so that a = c. (After RRRA, whose figures are
    disputed; see docs/other-representations.md for what was measured here.)
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.dim = whole_number(dim, "error adapter: dim", 1)
        self.hidden = whole_number(hidden, "error adapter: hidden", 1)
        self.inner = nn.Linear(3 * dim, hidden)
        self.outer = nn.Linear(hidden, dim)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)
        self.scale = nn.Parameter(torch.tensor(SCALE))
        self.shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Return the adapted vectors ``[n, dim]`` of pairs of ``[n, dim]``, of any lengths."""
        q, c = normalize(queries, dim=-1), normalize(documents, dim=-1)
        seen = torch.cat([q - c, q * c, q + c], dim=-1)
        moved: Tensor = self.outer(nn.functional.gelu(self.inner(seen)))
        return c + moved

    def logits(self, queries: Tensor, adapted: Tensor) -> Tensor:
        """Return the logits ``[n]`` of relevance of queries and adapted vectors, ``[n, dim]``."""
        cosines = (normalize(queries, dim=-1) * normalize(adapted, dim=-1)).sum(dim=-1)
        return self.scale * cosines + self.shift

    def scores(
        self,
        queries: NDArray[np.float32],
        documents: NDArray[np.float32],
        weight: float | None = 1.0,
    ) -> NDArray[np.float64]:
        """Return ``s(q, c) s(q, a)^weight`` of pairs of vectors ``[n, dim]``, s = (1 + cos) / 2.

        With ``weight`` 0 it is the bi-encoder's own order, with None the probability of relevance.
        All are within 0 and 1. Raises ``DataError`` for vectors of another shape.
        """
        if queries.shape != documents.shape or queries.shape[1:] != (self.dim,):
            raise DataError(
                f"error adapter: queries are {list(queries.shape)} and documents "
                f"{list(documents.shape)}, expected [n, {self.dim}] of both"
            )
        found = np.empty(len(queries), np.float64)
        with torch.inference_mode():
            for start in range(0, len(queries), ROWS):
                part = slice(start, start + ROWS)
                q = torch.from_numpy(np.ascontiguousarray(queries[part])).float()
                c = torch.from_numpy(np.ascontiguousarray(documents[part])).float()
                logits = self.logits(q, self(q, c)).double()
                if weight is None:
                    found[part] = logits.sigmoid().numpy()
                    continue
                moved = (logits - self.shift) / self.scale
                own = (normalize(q.double(), dim=1) * normalize(c.double(), dim=1)).sum(1)
                halves = (1 + own) / 2 * ((1 + moved) / 2).clamp(0, 1) ** weight
                found[part] = halves.clamp(0, 1).numpy()
        return found

    def save(self, folder: str | Path) -> None:
        """Write the adapter into a model's folder, in one step."""
        from safetensors.torch import save

        tensors = {name: value.detach().cpu() for name, value in self.state_dict().items()}
        facts = json.dumps({"dim": self.dim, "hidden": self.hidden})
        write_bytes(Path(folder) / FILE, save(tensors, {"format": FORMAT, "facts": facts}))

    @classmethod
    def load(cls, folder: str | Path) -> ErrorAdapter:
        """Read the adapter of a model's folder; ``ModelError`` if it is missing or damaged."""
        from safetensors import SafetensorError, safe_open

        file = Path(folder) / FILE
        if not file.is_file():
            raise ModelError(
                f"{file}: no such file; `sluice fit adapter` writes a folder with one, and so does "
                "training with loss: {type: rrra}"
            )
        try:
            with safe_open(file, "pt") as stored:
                metadata = stored.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise ValueError(f"format {metadata.get('format')!r}, expected {FORMAT!r}")
                facts = json.loads(metadata["facts"])
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            sizes = facts["dim"], facts["hidden"]
            _check_shapes(tensors, *sizes)  # before memory is taken for what the file claims
            adapter = cls(*sizes)
            adapter.load_state_dict(tensors)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ModelError(f"{file}: not an error adapter ({error}); make it again") from None
        return adapter.eval()


def _check_shapes(tensors: dict[str, Tensor], dim: Any, hidden: Any) -> None:
    if not all(type(size) is int and size > 0 for size in (dim, hidden)):
        raise ValueError(f"dim {dim!r} and hidden {hidden!r}")
    expected = {
        "inner.weight": [hidden, 3 * dim], "inner.bias": [hidden], "outer.weight": [dim, hidden],
        "outer.bias": [dim], "scale": [], "shift": [],
    }  # fmt: skip
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    if shapes != expected:
        raise ValueError(f"tensors {shapes}, expected {expected}")
    for name, value in tensors.items():
        if not value.is_floating_point() or not torch.isfinite(value).all():
            raise ValueError(f"{name} is not finite")


def segment_distance(adapted: Tensor, queries: Tensor, documents: Tensor) -> Tensor:
    """Return ``min over t in [0, 1] of ||a - (t q + (1 - t) c)||^2`` of rows ``[n, dim]``, ``[n]``.

    Of unit vectors q and c; t is the projection of a - c on q - c, cut to [0, 1], through which no
    gradient flows (at the minimum it has none).
    """
    q, c = normalize(queries, dim=-1), normalize(documents, dim=-1)
    way = q - c
    share = ((adapted - c) * way).sum(-1) / (way * way).sum(-1).clamp_min(1e-12)
    nearest = c + share.detach().clamp(0, 1).unsqueeze(-1) * way
    return (adapted - nearest).square().sum(-1)
