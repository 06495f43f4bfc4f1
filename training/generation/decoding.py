"""Generates text token by token: diverse beam search and top-k sampling."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import torch
from annotated_types import Ge, Gt

from sluice.encoders.foundation.build import checked
from sluice.encoders.generative.constrained_decoding import Continuations

if TYPE_CHECKING:
    from torch import Tensor


NEVER = -1e9  # the score of what must not be chosen


class Hypothesis(NamedTuple):
    """Generated token ids, with the end token if it came, and their score."""

    tokens: list[int]
    score: float


@dataclass(frozen=True, slots=True)
@checked()
class DiverseBeams:
    """``groups`` of ``beams`` each; one group is plain beam search.

    At every step the groups choose in turn: from the log-probability of a token group g takes away
    ``penalty`` times the number of beams of earlier groups that chose the same token at this step
    (the Hamming diversity), and the difference stays in the beam's sum. A finished hypothesis is
    scored by its sum over its length to the power ``length_penalty``, at most ``length`` tokens; a
    text is done when none of its running beams could still beat its worst finished one.
    (Vijayakumar et al., 2018, algorithm 1.)
    """

    groups: Annotated[int, Ge(1)] = 4
    beams: Annotated[int, Ge(1), "Beams in each group."] = 2
    penalty: Annotated[float, Ge(0), "Penalty for a token that an earlier group chose."] = 1.0
    length: Annotated[int, Ge(1), "Most tokens of a query."] = 32
    length_penalty: float = 1.0

    @property
    def copies(self) -> int:
        """Rows for each text."""
        return self.groups * self.beams

    def search(
        self, rows: Continuations, ends: Sequence[int], breaks: Sequence[int] = ()
    ) -> list[list[Hypothesis]]:
        """Return each text's hypotheses, group by group, the best of each group first.

        ``ends`` are the tokens that finish a hypothesis; ``breaks`` too, and they begin none.
        """
        following = rows.first()
        following[:, list(breaks)] = NEVER
        last = torch.tensor([*ends, *breaks], dtype=torch.long, device=following.device)
        texts = len(following) // self.copies
        groups = [_Group(self, texts, following.device) for _ in range(self.groups)]
        offsets = torch.arange(texts, device=following.device)[:, None] * self.copies
        for step in range(self.length):
            vocabulary = following.shape[1]
            each = following.view(texts, self.groups, self.beams, vocabulary)
            chosen = torch.zeros(texts, vocabulary, device=following.device)
            tokens, sources = [], []
            for number, group in enumerate(groups):
                lowered = each[:, number] - self.penalty * chosen[:, None]
                token, source = group.advance(lowered, last, final=step == self.length - 1)
                chosen.scatter_add_(1, token, torch.ones_like(token, dtype=chosen.dtype))
                tokens.append(token)
                sources.append(source + offsets + number * self.beams)
            if not any(bool(group.open.any()) for group in groups) or step == self.length - 1:
                break
            following = rows.next(
                torch.cat(tokens, dim=1).reshape(-1), torch.cat(sources, dim=1).reshape(-1)
            )
        return [
            [best for group in groups for best in group.hypotheses(text)] for text in range(texts)
        ]


class _Group:
    """The beams of one group for every text: running ones, and the best that are finished."""

    def __init__(self, settings: DiverseBeams, texts: int, device: torch.device) -> None:
        beams = settings.beams
        self._settings = settings
        self._running = torch.full((texts, beams), NEVER, device=device)
        self._running[:, 0] = 0.0  # all beams begin alike: only one may be continued
        self._sequences = torch.zeros((texts, beams, 0), dtype=torch.long, device=device)
        self._finished: list[list[Hypothesis]] = [[] for _ in range(texts)]
        self.open = torch.ones(texts, dtype=torch.bool, device=device)

    def advance(self, scores: Tensor, ends: Tensor, *, final: bool) -> tuple[Tensor, Tensor]:
        """Take a step's scores ``[texts, beams, vocabulary]``.

        Returns the tokens ``[texts, beams]`` of the beams that run on, and which beams those were.
        """
        beams, vocabulary = scores.shape[1:]
        total = self._running[:, :, None] + scores
        best, places = total.reshape(len(scores), -1).topk(min(beams, vocabulary), dim=1)
        sources, tokens = places // vocabulary, places % vocabulary
        ending = torch.isin(tokens, ends) | final
        self._finish(best, tokens, sources, ending)
        total[:, :, ends] += NEVER
        running, places = total.reshape(len(scores), -1).topk(beams, dim=1)
        sources, tokens = places // vocabulary, places % vocabulary
        before = self._sequences.gather(
            1, sources[:, :, None].expand(-1, -1, self._sequences.shape[2])
        )
        self._sequences = torch.cat([before, tokens[:, :, None]], dim=2)
        self._running = running
        self._close()
        return tokens, sources

    def _finish(self, best: Tensor, tokens: Tensor, sources: Tensor, ending: Tensor) -> None:
        """Keep what ends among the first ``beams`` candidates, if it is among the best so far."""
        beams = self._settings.beams
        size = (self._sequences.shape[2] + 1) ** self._settings.length_penalty
        ends = ending[:, :beams] & self.open[:, None]
        for text, place in ends.nonzero().tolist():
            source = int(sources[text, place])
            sequence = [*self._sequences[text, source].tolist(), int(tokens[text, place])]
            finished = self._finished[text]
            finished.append(Hypothesis(sequence, float(best[text, place]) / size))
            finished.sort(key=lambda hypothesis: -hypothesis.score)
            del finished[beams:]

    def _close(self) -> None:
        size = self._sequences.shape[2] ** self._settings.length_penalty
        hopes = (self._running[:, 0] / size).tolist()
        for text, finished in enumerate(self._finished):
            full = len(finished) == self._settings.beams
            if full and hopes[text] <= finished[-1].score:
                self.open[text] = False

    def hypotheses(self, text: int) -> list[Hypothesis]:
        """Return a text's finished hypotheses, best first."""
        return self._finished[text]


@dataclass(frozen=True, slots=True)
@checked()
class TopKSampling:
    """``samples`` continuations of each text, every token drawn from the ``top`` most probable.

    The draws of a text are a function of the seed and its key, not of the texts beside it.
    (Nogueira and Lin, 2019, docTTTTTquery: top 10.)
    """

    samples: Annotated[int, Ge(1)] = 20
    top: Annotated[int, Ge(1), "Sample from the N likeliest tokens."] = 10
    temperature: Annotated[float, Gt(0), "Above 1 is more even."] = 1.0
    length: Annotated[int, Ge(1)] = 32

    @property
    def copies(self) -> int:
        """Rows for each text."""
        return self.samples

    def draw(
        self, rows: Continuations, ends: Sequence[int], keys: Sequence[str], seed: int,
        breaks: Sequence[int] = (),
    ) -> list[list[Hypothesis]]:  # fmt: skip
        """Return each text's samples, in the order drawn; scores are sums of log-probabilities.

        ``keys`` are the texts' own, ``ends`` the tokens that finish a sample; ``breaks`` too, and
        they begin none.
        """
        streams = [_stream(seed, key) for key in keys]
        following = rows.first()
        following[:, list(breaks)] = NEVER
        last = torch.tensor([*ends, *breaks], dtype=torch.long)
        count = len(keys) * self.samples
        everyone = torch.arange(count, device=following.device)
        running = torch.ones(count, dtype=torch.bool)
        samples: list[list[int]] = [[] for _ in range(count)]
        scores = torch.zeros(count)
        for _ in range(self.length):
            tokens = self._draw_tokens(following, streams)
            own = following.cpu().gather(1, tokens[:, None])[:, 0]
            scores += torch.where(running, own, 0.0)
            for row in running.nonzero()[:, 0].tolist():
                samples[row].append(int(tokens[row]))
            running &= ~torch.isin(tokens, last)
            if not bool(running.any()) or len(samples[0]) == self.length:
                break
            following = rows.next(tokens.to(following.device), everyone)
        hypotheses = [Hypothesis(*pair) for pair in zip(samples, scores.tolist(), strict=True)]
        return [hypotheses[text * self.samples :][: self.samples] for text in range(len(keys))]

    def _draw_tokens(
        self, following: torch.Tensor, streams: Sequence[torch.Generator]
    ) -> torch.Tensor:
        top, places = following.cpu().topk(min(self.top, following.shape[1]), dim=1)
        chances = torch.softmax(top / self.temperature, dim=1)
        drawn = [
            torch.multinomial(chances[number * self.samples :][: self.samples], 1, generator=stream)
            for number, stream in enumerate(streams)
        ]
        return places.gather(1, torch.cat(drawn))[:, 0]


def _stream(seed: int, key: str) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}\0{key}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))
