"""A head that compares the two texts of a pair by the states of their tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ModelError

FOLDER = "1_SimilarityHead"  # in the folder of a cross-encoder
EARLIER = "similarity_head"
WEIGHTS = "model.safetensors"
SCALE = 10.0  # of both similarities at the start: their sum is spread like a trained one's logits


class SimilarityHead(nn.Module):
    """``a cos(u, v) + b mean_i max_j cos(q_i, d_j) + w tanh(W h + c) + e``.

    q and d are the last states of the query's and the document's tokens in their common pass, u and
    v their means, h the state of the first token. a and b begin at 10, w and e at 0: over a
    sentence encoder the head tells documents apart before any training, where a drawn classifier
    has to learn it. A similarity with a text of no tokens is 0. (The second term is the MaxSim of
    Khattab and Zaharia, 2020, eq. 3, over the query's number of tokens.)
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.full((2,), SCALE))
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, 1)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, states: Tensor, queries: Tensor, documents: Tensor) -> Tensor:
        """Return scores float32 ``[n]`` of states ``[n, length, hidden]``.

        ``queries`` and ``documents`` ``[n, length]`` bool are where the tokens of each lie. The
        arithmetic is float32 also under autocast: similarities differ little.
        """
        with torch.autocast(states.device.type, enabled=False):
            states = states.float()
            likeness = torch.stack(
                [_of_means(states, queries, documents), _of_tokens(states, queries, documents)], 1
            )
            rest = self.outer(torch.tanh(self.inner(states[:, 0]))).squeeze(-1)
            scores: Tensor = likeness @ self.scales + rest
        return scores

    def save(self, folder: Path, separators: list[int], *, segments: bool) -> None:
        """Write the head's folder into a model folder; the rest is for sentence-transformers."""
        from safetensors.torch import save_file

        home = folder / FOLDER
        home.mkdir(exist_ok=True)
        weights = {name: value.detach().cpu() for name, value in self.state_dict().items()}
        save_file(weights, home / WEIGHTS, {"format": "pt"})
        facts = {"hidden": self.inner.in_features, "separators": separators, "segments": segments}
        write_json(home / "config.json", facts)

    @classmethod
    def read(cls, folder: Path, hidden: int) -> SimilarityHead:
        """Read the head of a model folder.

        ``ModelError`` if it is missing, of another width or has values that are not finite.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        place = EARLIER if (folder / EARLIER).is_dir() else FOLDER
        file = folder / place / WEIGHTS
        if not file.exists():
            raise ModelError(f"{file}: missing; sluice.json says that the model has this head")
        head = cls(hidden)
        try:
            head.load_state_dict(load_file(file))
        except (SafetensorError, RuntimeError, OSError) as error:
            raise ModelError(f"{file}: does not fit the model beside it: {error}") from error
        for name, values in head.state_dict().items():
            if not torch.isfinite(values).all():
                raise ModelError(
                    f"{file}: {name} has values that are not finite, so every score would be NaN; "
                    "take the folder from its source again, or train the model again"
                )
        return head.eval()


def draw_similarity_head(hidden: int, seed: int) -> SimilarityHead:
    """Return a new head whose inner layer is drawn by ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SimilarityHead(hidden).eval()


def sides(
    ids: Tensor, mask: Tensor, types: Tensor | None, separators: Tensor
) -> tuple[Tensor, Tensor]:
    """Return where the tokens of queries and of documents lie, bool ``[n, length]`` of both.

    ``separators`` are the ids of the tokens around texts, which belong to neither. By ``types``
    the document is segment 1; without them it is what follows the first separator after a token.
    """
    inside = mask.bool() & ~torch.isin(ids, separators.to(ids.device))
    if types is not None:
        second = types.bool()
    else:
        begun = inside.cumsum(1) > 0
        second = (begun & ~inside).cumsum(1) > 0
    return inside & ~second, inside & second


def _of_means(states: Tensor, queries: Tensor, documents: Tensor) -> Tensor:
    """Return ``[n]`` cosines of the mean states of both texts."""
    return cosine_similarity(_mean(states, queries), _mean(states, documents), dim=1)


def _mean(states: Tensor, side: Tensor) -> Tensor:
    return (states * side.unsqueeze(-1)).sum(1) / side.sum(1, keepdim=True).clamp(min=1)


def _of_tokens(states: Tensor, queries: Tensor, documents: Tensor) -> Tensor:
    """Return ``[n]``: each query token's largest cosine with a document token, in the mean."""
    unit = normalize(states, dim=-1)
    width = int(queries.any(0).nonzero().max()) + 1 if bool(queries.any()) else 0
    asking = queries[:, :width]
    cosines = unit[:, :width] @ unit.transpose(1, 2)  # [n, width, length]
    lowest = cosines.masked_fill(~documents.unsqueeze(1), -1.0)
    best = lowest.amax(2) if width else cosines.new_zeros((len(states), 0))
    counted = asking & documents.any(1, keepdim=True)
    return (best * counted).sum(1) / asking.sum(1).clamp(min=1)
