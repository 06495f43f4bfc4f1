"""What workers and their parent say to each other, over one pipe for each worker."""

from __future__ import annotations

from typing import NamedTuple


class Opened(NamedTuple):
    """A worker has opened the folder; it listens after its first ``Refresh``."""


class Listening(NamedTuple):
    """A worker answers requests."""


class Failed(NamedTuple):
    """A worker cannot start: the error of a setting or of the folder."""

    message: str


class Ask(NamedTuple):
    """A worker's question: the number of a state, or, without one, that all serve the newest."""

    ticket: int
    state: str | None = None


class Answer(NamedTuple):
    """The parent's answer to ``Ask``: a state's number, or how many do not serve the newest."""

    ticket: int
    number: int = 0


class Refresh(NamedTuple):
    """Serve the folder's newest state now."""

    ticket: int


class Refreshed(NamedTuple):
    """A worker has done what ``Refresh`` asked; ``served``: the newest state is served now."""

    ticket: int
    served: bool


FromWorker = Opened | Listening | Failed | Ask | Refreshed
ToWorker = Answer | Refresh
