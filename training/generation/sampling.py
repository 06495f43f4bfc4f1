"""Sampling from the k most probable tokens, each text by a random stream of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.generation.beam_search import Hypothesis

if TYPE_CHECKING:
    from sluice.training.generation.continuations import Continuations


@dataclass(frozen=True, slots=True)
class TopKSampling:
    """``samples`` continuations of each text, every token drawn from the ``top`` most probable.

    The draws of a text are a function of the seed and its key, not of the texts beside it.
    (Nogueira and Lin, 2019, docTTTTTquery: top 10.)
    """

    samples: int = 20
    top: int = 10
    temperature: float = 1.0
    length: int = 32

    def __post_init__(self) -> None:
        for name in ("samples", "top", "length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)}, expected 1 or more")
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature: {self.temperature}, expected a number above 0")

    @property
    def copies(self) -> int:
        """Rows for each text."""
        return self.samples

    def draw(
        self, rows: Continuations, ends: Sequence[int], keys: Sequence[str], seed: int
    ) -> list[list[Hypothesis]]:
        """Return each text's samples, in the order drawn; scores are sums of log-probabilities.

        ``keys`` are the texts' own, ``ends`` the tokens that finish a sample.
        """
        streams = [_stream(seed, key) for key in keys]
        following = rows.first()
        count = len(keys) * self.samples
        everyone = torch.arange(count, device=following.device)
        running = torch.ones(count, dtype=torch.bool)
        found: list[list[int]] = [[] for _ in range(count)]
        scores = torch.zeros(count)
        for _ in range(self.length):
            tokens = self._drawn(following, streams)
            own = following.cpu().gather(1, tokens[:, None])[:, 0]
            scores += torch.where(running, own, 0.0)
            for row in running.nonzero()[:, 0].tolist():
                found[row].append(int(tokens[row]))
            running &= ~torch.isin(tokens, torch.tensor(list(ends), dtype=tokens.dtype))
            if not bool(running.any()) or len(found[0]) == self.length:
                break
            following = rows.next(tokens.to(following.device), everyone)
        made = [Hypothesis(*pair) for pair in zip(found, scores.tolist(), strict=True)]
        return [made[text * self.samples :][: self.samples] for text in range(len(keys))]

    def _drawn(self, following: torch.Tensor, streams: Sequence[torch.Generator]) -> torch.Tensor:
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
