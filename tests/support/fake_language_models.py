"""Language models of known mind, which look at a prompt's texts only."""

from collections.abc import Callable, Sequence

import numpy as np

from sluice.encoders.rerankers.language_model import Prompt


class FakeModel:
    """Answers by a function from a prompt to probabilities, or to what it writes."""

    fingerprint = "fake"

    def __init__(
        self,
        chances: Callable[[Prompt], Sequence[float]] | None = None,
        writes: Callable[[Prompt], str] | None = None,
    ) -> None:
        self.chances, self.writes = chances, writes
        self.asked: list[Prompt] = []
        self.calls = 0

    def answers(self, prompts: Sequence[Prompt], choices: Sequence[str]) -> np.ndarray:
        self.asked += prompts
        self.calls += 1
        assert self.chances is not None
        with np.errstate(divide="ignore"):
            found = np.log(np.array([self.chances(prompt) for prompt in prompts], float))
        assert found.shape == (len(prompts), len(choices))
        return found

    def completions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[str]:
        self.asked += prompts
        self.calls += 1
        assert self.writes is not None
        return [self.writes(prompt) for prompt in prompts]


class Echo:
    """Writes a prompt's first text backwards, or what ``lines`` has for it; can be pickled."""

    fingerprint = "echo"

    def __init__(self, lines: dict[str, str] | None = None) -> None:
        self.lines = lines
        self.asked: list[str] = []

    def completions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[str]:
        self.asked += [prompt.text for prompt in prompts]
        texts = [prompt.slots[-1] for prompt in prompts]
        if self.lines is None:
            return [" ".join(text.split()[::-1]) for text in texts]
        return [self.lines.get(text, "") for text in texts]


def worth(text: str) -> int:
    """The number that a made-up document begins with: its true worth."""
    return int(text.split()[0])


def oracle(prompt: Prompt) -> str:
    """The right order of the documents in a listwise prompt of one query slot before and behind."""
    shown = [worth(slot) for slot in prompt.slots[1:-1]]
    order = sorted(range(len(shown)), key=lambda place: -shown[place])
    return " > ".join(f"[{place + 1}]" for place in order)


def comparator(prompt: Prompt) -> tuple[float, float]:
    """A sure answer to which of two documents is worth more."""
    _, one, other = prompt.slots
    return (1.0, 0.0) if worth(one) > worth(other) else (0.0, 1.0)


class Numbered:
    """Documents ``0`` to ``n - 1`` whose worth is what ``worths`` says."""

    def __init__(self, worths: Sequence[int]) -> None:
        self.worths = worths

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        return [f"{self.worths[int(doc)]} is what document {doc} is worth" for doc in document_ids]
