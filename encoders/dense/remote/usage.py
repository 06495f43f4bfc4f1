"""Counts what a server was asked, and what that costs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Usage:
    """What was asked since the object was made; ``cost`` is in the currency of the prices.

    Tokens and searches are as the server counts them: 0 where it does not say. Safe in threads.
    """

    per_million_tokens: float = 0.0
    per_thousand_searches: float = 0.0
    requests: int = 0
    texts: int = 0
    tokens: int = 0
    searches: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, texts: int, tokens: int, searches: int = 0) -> None:
        """Count one request that was answered."""
        with self._lock:
            self.requests += 1
            self.texts += texts
            self.tokens += tokens
            self.searches += searches

    @property
    def cost(self) -> float:
        """What it cost so far."""
        tokens = self.tokens * self.per_million_tokens / 1e6
        return tokens + self.searches * self.per_thousand_searches / 1e3

    def __str__(self) -> str:
        parts = [f"{self.requests:,} requests", f"{self.texts:,} texts"]
        parts += [f"{self.tokens:,} tokens"] if self.tokens else []
        parts += [f"{self.searches:,} searches"] if self.searches else []
        priced = self.per_million_tokens or self.per_thousand_searches
        return ", ".join([*parts, f"cost {self.cost:.6g}"] if priced else parts)
