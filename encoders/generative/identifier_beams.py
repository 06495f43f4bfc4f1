"""Beam search over the identifiers of documents, held to those that an index has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sluice.encoders.generative.constrained_decoding import Continuations, Following, Keys, Ngram
from sluice.encoders.generative.identifiers import FREE


class IdentifierIndex(Protocol):
    """What decoding asks of an index: ``indexing.TrieIndex`` answers it."""

    def prefix(self, ngram: Sequence[int] = ()) -> Any:
        """Return the place of a beginning, which is ``complete`` where an identifier ends."""
        ...

    def extended(self, node: Any, token: int) -> Any:
        """Return the place of a beginning with one token more."""
        ...

    def continuations(self, node: Any) -> Following:
        """Return what follows a place."""
        ...


class _Beam(NamedTuple):
    ids: Ngram
    node: Any  # in the index
    score: float  # the log-probability so far
    row: int  # of the model's batch


@dataclass(frozen=True, slots=True)
class IdentifierBeams:
    """Beam search that writes whole identifiers of an index and nothing else.

    The ``beams`` most probable beginnings continue, and an identifier that is complete stands among
    them as it is, so ``beams`` as many as documents is the exact ranking of all. Probabilities are
    the model's own, not normalised over what the index allows. Tokens from ``FREE`` on tell the
    new documents of a cluster apart, of which the model knows nothing: each has the cluster's
    probability divided by the number of documents in it. (DSI; Tay et al. 2022, section 3.3;
    constrained as in De Cao et al. 2021, Autoregressive entity retrieval, section 3.2.)
    """

    beams: int

    def search(self, rows: Continuations, index: IdentifierIndex, texts: int) -> list[Keys]:
        """Return the identifiers of each text; ``rows`` has ``beams`` continuations of each."""
        root = index.prefix()
        running = [[_Beam((), root, 0.0, text * self.beams)] for text in range(texts)]
        if not root.count:
            return [{} for _ in range(texts)]
        following = rows.first()
        while True:
            scores = following.cpu().numpy()
            running = [self._best(beams, scores, index) for beams in running]
            if all(beam.node.complete for beams in running for beam in beams):
                return [{beam.ids: beam.score for beam in beams} for beams in running]
            following = rows.next(*self._laid_out(running, following.device))
            running = [
                [beam._replace(row=text * self.beams + at) for at, beam in enumerate(beams)]
                for text, beams in enumerate(running)
            ]

    def _best(self, beams: Sequence[_Beam], scores: Any, index: IdentifierIndex) -> list[_Beam]:
        """Return the best of the complete identifiers and of all continuations of the others."""
        candidates: list[tuple[float, Ngram, _Beam]] = []
        for beam in beams:
            if beam.node.complete:
                candidates.append((-beam.score, beam.ids, beam))
                continue
            tokens = index.continuations(beam.node).tokens
            if len(tokens) and tokens[-1] >= FREE:
                candidates += islice(self._new(beam, index), self.beams)
            tokens = tokens[: np.searchsorted(tokens, scores.shape[1])]
            sums = beam.score + scores[beam.row, tokens].astype(np.float64)
            least = np.partition(sums, -self.beams)[-self.beams] if len(sums) > self.beams else None
            good = np.arange(len(sums)) if least is None else np.flatnonzero(sums >= least)
            candidates += [
                (-float(sums[at]), (*beam.ids, int(tokens[at])), beam) for at in good.tolist()
            ]
        best = []
        for negative, ids, beam in sorted(candidates, key=lambda each: each[:2])[: self.beams]:
            node = beam.node
            for token in ids[len(beam.ids) :]:
                node = index.extended(node, token)
            best.append(_Beam(ids, node, -negative, beam.row))
        return best

    def _new(self, beam: _Beam, index: IdentifierIndex) -> Iterator[tuple[float, Ngram, _Beam]]:
        """Yield the new documents of a cluster, each as likely as the mean document in it."""
        negative = math.log(beam.node.count) - beam.score
        waiting: list[tuple[Ngram, Any]] = [(beam.ids, beam.node)]
        while waiting:
            ids, node = waiting.pop()
            if node.complete:
                yield negative, ids, beam
                continue
            tokens = index.continuations(node).tokens
            for token in tokens[np.searchsorted(tokens, FREE) :].tolist()[::-1]:
                waiting.append(((*ids, token), index.extended(node, token)))

    def _laid_out(
        self, running: Sequence[Sequence[_Beam]], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return each row's next token, and which row it continues; rows without are filled."""
        tokens = np.zeros(len(running) * self.beams, np.int64)
        sources = np.repeat(np.arange(len(running)) * self.beams, self.beams)
        for text, beams in enumerate(running):
            for at, beam in enumerate(beams):
                if beam.node.complete:
                    continue
                tokens[text * self.beams + at] = beam.ids[-1]
                sources[text * self.beams + at] = beam.row
        return torch.from_numpy(tokens).to(device), torch.from_numpy(sources).to(device)
