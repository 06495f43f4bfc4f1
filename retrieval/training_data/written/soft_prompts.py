"""Soft prompts learnt on a few judgements of a dataset, kept so that a killed call continues."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.numbers import plural

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example
    from sluice.training.generation.prompt_tuning import PromptTuning
    from sluice.training.generation.query_generation import ModelGenerator
    from sluice.training.generation.soft_prompt import SoftPrompt

SPARE = 4  # judged queries looked at for each pair, since some have no document with a text


class Labelled(NamedTuple):
    """A judged query and its best document, with texts; ``relevant`` are the ids of all."""

    query: str
    query_text: str
    document: str
    text: str
    relevant: tuple[str, ...]

    def example(self) -> Example:
        """Return the pair as a training example."""
        from sluice.training import Example, Text

        return Example(
            Text(self.query, self.query_text),
            (Text(self.document, self.text),),
            relevant=frozenset(self.relevant),
        )


def labelled_pairs(dataset: Dataset, count: int, seed: int) -> list[Labelled]:
    """Return ``count`` judged queries with their best document, drawn by seed.

    The best has the highest grade, and of several the lowest id. ``DataError`` where the split has
    fewer with texts.
    """
    judged = {
        query: best
        for query, grades in dataset.qrels.items()
        if dataset.queries.get(query, "").strip() and (best := _best(grades))
    }
    order = sorted(judged, key=lambda query: hashlib.blake2b(f"{seed}\0{query}".encode()).digest())
    order = order[: SPARE * count]
    needed = {judged[query] for query in order}
    texts = {each.id: each.full_text for each in dataset.corpus if each.id in needed}
    usable = [query for query in order if texts.get(judged[query], "").strip()]
    if len(usable) < count:
        raise DataError(
            f"{dataset.name}: pairs: {count}, but the train split has "
            f"{plural(len(usable), 'judged query')} whose document has a text; lower pairs"
        )
    return [
        Labelled(
            query, dataset.queries[query], judged[query], texts[judged[query]],
            tuple(sorted(name for name, grade in dataset.qrels[query].items() if grade > 0)),
        )
        for query in usable[:count]
    ]  # fmt: skip


def _best(grades: Mapping[str, int]) -> str | None:
    relevant = [(-grade, name) for name, grade in grades.items() if grade > 0]
    return min(relevant)[1] if relevant else None


def held_out(pairs: int) -> int:
    """Return how many of the pairs choose the prompt: a fifth."""
    return max(1, round(pairs / 5))


def learnt_prompt(
    generator: ModelGenerator,
    tuning: PromptTuning,
    pairs: Sequence[Labelled],
    folder: Path,
    *,
    seed: int,
) -> SoftPrompt:
    """Return the soft prompt in ``folder``, or learn it and write it there.

    The last fifth of the pairs is held out. Beside the folder lies, while it is learnt, the last
    epoch (``.state``), from which a killed call continues.
    """
    from sluice.training.generation.prompt_learner import learn_prompt
    from sluice.training.generation.query_prompt import Shot
    from sluice.training.generation.soft_prompt import FACTS, SoftPrompt

    if (folder / FACTS).exists():
        return SoftPrompt.load(folder)
    state = folder.with_name(f"{folder.name}.state")
    shown = [Shot(pair.text, pair.query_text) for pair in pairs]
    cut = len(shown) - held_out(len(shown))
    soft = learn_prompt(tuning, generator, shown[:cut], shown[cut:], seed=seed, state=state)
    soft.save(folder)
    state.unlink(missing_ok=True)
    return soft
