"""Moves a document's vector towards a query that it answers, to see which negatives are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from sluice.encoders.foundation.disk.files import write_bytes
from sluice.encoders.foundation.errors import DataError, ModelError
from sluice.encoders.foundation.numbers import whole_number

FILE = "error_adapter.safetensors"  # in the folder of the encoder that makes the vectors
FORMAT = "sluice.error_adapter"
SCALE = 10.0  # of the cosine in the logit, before training
ROWS = 4_096  # pairs scored at a time


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
