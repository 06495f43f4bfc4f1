"""Beam search over the n-grams that an index contains, and the likelihood of given n-grams."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.encoders.generative.continuations import Continuations

Ngram = tuple[int, ...]
Keys = dict[Ngram, float]  # n-grams with their log-probability


class Following(Protocol):
    """The tokens that follow an n-gram, ascending, and how often each does."""

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Their ids."""
        ...

    @property
    def counts(self) -> NDArray[np.int64]:
        """Their numbers, above 0."""
        ...


class NgramIndex(Protocol):
    """What decoding asks of an index: ``indexing.FmIndex`` answers it.

    A prefix is a place in one state of the index: what follows it, and the place of an n-gram with
    one token more.
    """

    @property
    def tokens(self) -> int:
        """The number of tokens of its documents."""
        ...

    def prefix(self, ngram: Sequence[int] = ()) -> Any:
        """Return the place of an n-gram, with its ``count``."""
        ...

    def extended(self, prefix: Any, token: int) -> Any:
        """Return the place of an n-gram with one token more."""
        ...

    def continuations(self, prefix: Any) -> Following:
        """Return what follows the n-gram of a place."""
        ...


class _Beam(NamedTuple):
    ngram: Ngram
    place: Any  # in the index
    score: float  # the log-probability of the n-gram
    row: int  # of the model's batch


@dataclass(frozen=True, slots=True)
class ConstrainedBeams:
    """Beam search in which only tokens that follow in the index may be chosen.

    ``never`` are tokens that no n-gram has. Every n-gram that is in the beam at some step is
    returned, so those of one token up to ``length``; the probabilities are the model's own, not
    normalised over what the index allows. Also returned are the ``unigrams`` tokens most likely at
    the first step. (SEAL; Bevilacqua et al. 2022, sections 3.2 and 3.3.)
    """

    beams: int
    length: int
    unigrams: int
    never: Collection[int] = ()

    def search(self, rows: Continuations, index: NgramIndex, texts: int) -> list[Keys]:
        """Return the n-grams of each text; ``rows`` has ``beams`` continuations of each."""
        following = rows.first()
        keys: list[Keys] = [{} for _ in range(texts)]
        root = index.prefix()
        running = [[_Beam((), root, 0.0, text * self.beams)] for text in range(texts)]
        for step in range(self.length):
            scores = following.cpu().numpy()
            scores[:, [token for token in self.never if token < scores.shape[1]]] = -np.inf
            for text, beams in enumerate(running):
                chosen = list(self._best(beams, scores, index))
                if step == 0:
                    keys[text] = {(token,): score for token, score, _ in chosen[: self.unigrams]}
                best = chosen[: self.beams]
                running[text] = [
                    _Beam((*beam.ngram, token), index.extended(beam.place, token), score, beam.row)
                    for token, score, beam in best
                ]
                keys[text] |= {beam.ngram: beam.score for beam in running[text]}
            if step == self.length - 1 or not any(running):
                break
            following = rows.next(*self._laid_out(running, following.device))
            running = [
                [beam._replace(row=text * self.beams + at) for at, beam in enumerate(beams)]
                for text, beams in enumerate(running)
            ]
        return keys

    def _best(
        self, beams: Sequence[_Beam], scores: NDArray[np.float32], index: NgramIndex
    ) -> Iterator[tuple[int, float, _Beam]]:
        """Yield the best continuations of all beams of a text, as many as may be wanted."""
        most = self.beams if beams and beams[0].ngram else max(self.beams, self.unigrams)
        parts = []
        for number, beam in enumerate(beams):
            tokens = index.continuations(beam.place).tokens
            tokens = tokens[: np.searchsorted(tokens, scores.shape[1])]
            sums = beam.score + scores[beam.row, tokens].astype(np.float64)
            least = np.partition(sums, -most)[-most] if len(sums) > most else -np.inf
            good = np.flatnonzero((sums >= least) & (sums > -np.inf))
            order = good[np.lexsort((tokens[good], -sums[good]))][:most]
            parts += [(-sums[at], number, int(tokens[at])) for at in order.tolist()]
        for negative, number, token in sorted(parts)[:most]:
            yield token, -float(negative), beams[number]

    def _laid_out(
        self, running: Sequence[Sequence[_Beam]], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return each row's next token, and which row it continues; rows without are filled."""
        tokens = np.zeros(len(running) * self.beams, np.int64)
        sources = np.repeat(np.arange(len(running)) * self.beams, self.beams)
        for text, beams in enumerate(running):
            for at, beam in enumerate(beams):
                tokens[text * self.beams + at] = beam.ngram[-1]
                sources[text * self.beams + at] = beam.row
        return torch.from_numpy(tokens).to(device), torch.from_numpy(sources).to(device)


def likelihoods(rows: Continuations, ngrams: Sequence[Sequence[Ngram]], copies: int) -> list[Keys]:
    """Return the log-probability of each text's n-grams, at most ``copies`` of them a text."""
    following = rows.first()
    width = max((len(ngram) for own in ngrams for ngram in own), default=0)
    sums = np.zeros((len(ngrams), copies))
    every = torch.arange(len(following), device=following.device)
    for step in range(width):
        scores = following.cpu().numpy().reshape(len(ngrams), copies, -1)
        tokens = np.zeros((len(ngrams), copies), np.int64)
        for text, own in enumerate(ngrams):
            for at, ngram in enumerate(own):
                if step < len(ngram):
                    tokens[text, at] = ngram[step]
                    sums[text, at] += scores[text, at, ngram[step]]
        if step < width - 1:
            taken = torch.from_numpy(tokens.reshape(-1)).to(following.device)
            following = rows.next(taken, every)
    return [
        {ngram: float(sums[text, at]) for at, ngram in enumerate(own)}
        for text, own in enumerate(ngrams)
    ]


def key_weight(log_probability: float, occurrences: int, tokens: int) -> float:
    """Return how much more an n-gram is likely after a query than in the corpus; 0 if it is not.

    ``max(0, log [P(n|q) (1 - P(n)) / (P(n) (1 - P(n|q)))])`` with ``P(n) = (F + 5) / (N + 5)``, F
    being ``occurrences`` and N the ``tokens`` of the corpus. (SEAL; Bevilacqua et al. 2022,
    section 3.3, with the smoothing of its code.)
    """
    usual = min((occurrences + 5) / (tokens + 5), 1 - 1e-12)
    chance = min(log_probability, -1e-12)
    ratio = chance - np.log(usual) + np.log1p(-usual) - np.log(-np.expm1(chance))
    return max(0.0, float(ratio))
