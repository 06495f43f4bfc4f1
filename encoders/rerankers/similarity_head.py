"""Heads that compare the two texts of a pair by the states of their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.splade.pooling import last_layer, pass_through
from sluice.encoders.transformer.packed.families import vocabulary_head

EARLIER = "similarity_head"  # where a cross-encoder's folder had the first one's weights
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

    NAME: ClassVar = "similarity"
    STARTS: ClassVar[tuple[float, ...]] = (SCALE, SCALE)  # of the scales

    def __init__(self, hidden: int, network: Any = None) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.tensor(self.STARTS))
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, 1)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(
        self, states: Tensor, queries: Tensor, documents: Tensor, ids: Tensor | None = None
    ) -> Tensor:
        """Return scores float32 ``[n]`` of states ``[n, length, hidden]``.

        ``queries`` and ``documents`` ``[n, length]`` bool are where the tokens of each lie, ``ids``
        what they are. The arithmetic is float32 also under autocast: similarities differ little.
        """
        with torch.autocast(states.device.type, enabled=False):
            states = states.float()
            likeness = torch.stack(self.likenesses(states, queries, documents, ids), 1)
            rest = self.outer(torch.tanh(self.inner(states[:, 0]))).squeeze(-1)
            scores: Tensor = likeness @ self.scales + rest
        return scores

    def likenesses(
        self, states: Tensor, queries: Tensor, documents: Tensor, ids: Tensor | None
    ) -> list[Tensor]:
        """Return what is scaled and added, ``[n]`` each."""
        return [_of_means(states, queries, documents), _of_tokens(states, queries, documents)]

    def save(self, folder: Path, separators: list[int], *, segments: bool) -> None:
        """Write the head's folder into a model folder; the rest is for sentence-transformers."""
        from safetensors.torch import save_file

        home = folder / self.place()
        home.mkdir(exist_ok=True)
        weights = {name: value.detach().cpu() for name, value in self.state_dict().items()}
        save_file(weights, home / WEIGHTS, {"format": "pt"})
        facts = {"hidden": self.inner.in_features, "separators": separators, "segments": segments}
        write_json(home / "config.json", facts)

    @classmethod
    def place(cls) -> str:
        """Return the name of its folder in that of a cross-encoder."""
        return f"1_{cls.__name__}"

    @classmethod
    def read(cls, folder: Path, hidden: int, network: Any) -> Self:
        """Read the head of a model folder.

        ``ModelError`` if it is missing, of another width or has values that are not finite.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        place = EARLIER if (folder / EARLIER).is_dir() else cls.place()
        file = folder / place / WEIGHTS
        if not file.exists():
            raise ModelError(f"{file}: missing; sluice.json says that the model has this head")
        head = cls(hidden, network)
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


class TermHead(SimilarityHead):
    """A similarity head that adds ``c sum_i w(i, t_i) max_j w(j, t_i)``, the product of SPLADE.

    i goes over the query's tokens ``t_i``, j over the document's, and ``w(j, t) = log(1 + relu(z_j
    e_t + b_t))`` is what the masked-language-model head of ``network`` says of word t at place j:
    how much a text is about a word, read with the other text in view. c begins at 1. (Formal et
    al., 2021, arXiv 2109.10086, of the query's own words.)
    """

    NAME: ClassVar = "terms"
    STARTS: ClassVar = (SCALE, SCALE, 1.0)

    def __init__(self, hidden: int, network: Any = None) -> None:
        super().__init__(hidden)
        if vocabulary_head(network) is None:
            raise ModelError(
                f"{type(network).__name__}: its masked-language-model head is not known here; "
                f"write head: {SimilarityHead.NAME}"
            )
        pass_through(network, last_layer(network))
        self._network = (network,)  # in a tuple, no module of this one: it is saved by itself

    def likenesses(
        self, states: Tensor, queries: Tensor, documents: Tensor, ids: Tensor | None
    ) -> list[Tensor]:
        """Return what is scaled and added, ``[n]`` each."""
        (network,) = self._network
        head, decoder = vocabulary_head(network), last_layer(network)
        assert ids is not None
        assert head is not None
        width = _width(queries)
        terms = ids[:, :width]
        logits = head(states) @ decoder.weight[terms].transpose(1, 2)  # [n, length, width]
        if decoder.bias is not None:
            logits = logits + decoder.bias[terms].unsqueeze(1)
        weights = torch.log1p(torch.relu(logits.float()))
        own = weights[:, :width].diagonal(dim1=1, dim2=2) * queries[:, :width]
        found = (weights * documents.unsqueeze(2)).amax(1)
        return [*super().likenesses(states, queries, documents, ids), (own * found).sum(1)]


HEADS: dict[str, type[SimilarityHead]] = {kind.NAME: kind for kind in (SimilarityHead, TermHead)}


def draw_head(name: str, network: Any, seed: int) -> SimilarityHead:
    """Return a new head of a network, whose inner layer is drawn by ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HEADS[name](int(network.config.hidden_size), network).eval()


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
    width = _width(queries)
    asking = queries[:, :width]
    cosines = unit[:, :width] @ unit.transpose(1, 2)  # [n, width, length]
    lowest = cosines.masked_fill(~documents.unsqueeze(1), -1.0)
    best = lowest.amax(2) if width else cosines.new_zeros((len(states), 0))
    counted = asking & documents.any(1, keepdim=True)
    return (best * counted).sum(1) / asking.sum(1).clamp(min=1)


def _width(queries: Tensor) -> int:
    """Return how many places hold all queries' tokens."""
    return int(queries.any(0).nonzero().max()) + 1 if bool(queries.any()) else 0
