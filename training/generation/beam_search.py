"""Diverse beam search: groups of beams, each kept away from the tokens of the groups before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from sluice.encoders.foundation.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from sluice.training.generation.continuations import Continuations

NEVER = -1e9  # the score of what must not be chosen


class Hypothesis(NamedTuple):
    """Generated token ids, with the end token if it came, and their score."""

    tokens: list[int]
    score: float


@dataclass(frozen=True, slots=True)
class DiverseBeams:
    """``groups`` of ``beams`` each; one group is plain beam search.

    At every step the groups choose in turn: from the log-probability of a token group g takes away
    ``penalty`` times the number of beams of earlier groups that chose the same token at this step
    (the Hamming diversity), and the difference stays in the beam's sum. A finished hypothesis is
    scored by its sum over its length to the power ``length_penalty``, at most ``length`` tokens; a
    text is done when none of its running beams could still beat its worst finished one.
    (Vijayakumar et al., 2018, algorithm 1.)
    """

    groups: int = 4
    beams: int = 2
    penalty: float = 1.0
    length: int = 32
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in ("groups", "beams", "length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)}, expected 1 or more")
        if self.penalty < 0:
            raise ConfigError(f"penalty: {self.penalty}, expected 0 or more")

    @property
    def copies(self) -> int:
        """Rows for each text."""
        return self.groups * self.beams

    def search(self, rows: Continuations, ends: Sequence[int]) -> list[list[Hypothesis]]:
        """Return each text's hypotheses, group by group, the best of each group first.

        ``ends`` are the tokens that finish a hypothesis.
        """
        following = rows.first()
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
                token, source = group.advance(lowered, ends, last=step == self.length - 1)
                chosen.scatter_add_(1, token, torch.ones_like(token, dtype=chosen.dtype))
                tokens.append(token)
                sources.append(source + offsets + number * self.beams)
            if not any(bool(group.open.any()) for group in groups) or step == self.length - 1:
                break
            following = rows.next(
                torch.cat(tokens, dim=1).reshape(-1), torch.cat(sources, dim=1).reshape(-1)
            )
        return [
            [found for group in groups for found in group.hypotheses(text)] for text in range(texts)
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

    def advance(self, scores: Tensor, ends: Sequence[int], *, last: bool) -> tuple[Tensor, Tensor]:
        """Take a step's scores ``[texts, beams, vocabulary]``.

        Returns the tokens ``[texts, beams]`` of the beams that run on, and which beams those were.
        """
        beams, vocabulary = scores.shape[1:]
        total = (self._running[:, :, None] + scores).reshape(len(scores), -1)
        # Beside each beam's continuation there may be one per end token, which does not run on.
        wide = min(max(2, 1 + len(ends)) * beams, total.shape[1])
        best, places = total.topk(wide, dim=1)
        sources, tokens = places // vocabulary, places % vocabulary
        ending = torch.zeros_like(tokens, dtype=torch.bool)
        for end in ends:
            ending |= tokens == end
        ending |= last
        self._finish(best, tokens, sources, ending)
        running, kept = (best + ending * NEVER).topk(beams, dim=1)
        tokens, sources = tokens.gather(1, kept), sources.gather(1, kept)
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
            finished.sort(key=lambda found: -found.score)
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
