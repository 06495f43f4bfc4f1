"""Cross-fitting: negatives from a first stage that never saw the queries they are mined for.

A retriever that was trained on the same queries ranks their relevant documents higher than it will
those of new ones, so a reranker learns from lists that are too good. With ``folds`` each part of
the training queries is searched by a first stage whose models were trained without it.
(Chernozhukov et al., 2018, "Double/debiased machine learning", call it cross-fitting.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.datasets.dataset import Dataset, training_splits
from sluice.retrieval.datasets.source import Places, Qrels, Source
from sluice.retrieval.documents.document import Document
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.runs.queries import Queries, like
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.ltr.reranker import query_folds

if TYPE_CHECKING:
    from sluice.retrieval.config.sections import ExperimentConfig, TrainingSection
    from sluice.retrieval.experiments.reuse import Dependencies

FOLDS = "folds"  # the key of a section ``negatives``, and the folder of what they are made by


class WithoutQueries:
    """Another source whose ``train`` lacks the judgements of some queries."""

    def __init__(self, source: Source, without: Iterable[str]) -> None:
        self._source, self._without = source, frozenset(without)
        self.name = source.name

    def splits(self) -> list[str]:
        """Return the other source's splits."""
        return self._source.splits()

    def places(self, split: str) -> Places:
        """Return the other source's places."""
        return self._source.places(split)

    def documents(self) -> Iterator[Document]:
        """Stream the corpus."""
        return self._source.documents()

    def document_count(self) -> int | None:
        """Return the other source's count."""
        return self._source.document_count()

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        """Stream the other source's queries."""
        return self._source.queries(split)

    def qrels(self, split: str) -> Qrels:
        """Return the split's judgements; those of ``train`` lack the queries."""
        qrels = self._source.qrels(split)
        if split != "train":
            return qrels
        return {name: judged for name, judged in qrels.items() if name not in self._without}


class FoldedLists(Stage):
    """Ranks each query by the stage of its fold, those of no fold by ``whole``."""

    def __init__(self, whole: Stage, folds: Sequence[Stage], fold: Mapping[str, int]) -> None:
        self._whole, self._folds, self._fold = whole, folds, fold
        self.name = whole.name

    @property
    def documents(self) -> Texts | None:
        """The store of ``whole``."""
        return self._whole.documents

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Return a ranking for each query, best first."""
        ranked: dict[str, Any] = {}
        for place, stage in enumerate([*self._folds, self._whole]):
            own = place if stage is not self._whole else None
            some = {q: text for q, text in queries.items() if self._fold.get(q) == own}
            if some:
                ranked |= stage.run(like(queries, some), given, k)
        return Run({query: ranked[query] for query in queries if query in ranked}, name=self.name)


def folds_of(section: TrainingSection) -> int:
    """Return into how many folds the queries of a training run are parted; 0: none."""
    return int((section.negatives or {}).get(FOLDS, 0))


def check_folds(config: ExperimentConfig, needs: Dependencies) -> None:
    """Raise ``ConfigError`` where ``folds`` could not change what is mined."""
    for name, section in config.train.items():
        named = (section.negatives or {}).get("retriever")
        kind = "pipelines" if str(named) in config.pipelines else "retrievers"
        if not folds_of(section) or (
            str(named) in getattr(config, kind)
            and any(node.startswith("train.") for node in needs.closure(f"{kind}.{named}"))
        ):
            continue
        raise ConfigError(
            f"train.{name}.negatives.{FOLDS}: {named!r:.60} has no model that learns from the same "
            f"queries; name one pipeline or retriever that has, or leave {FOLDS} out"
        )


def folded_lists(
    whole: Stage, data: Dataset, folds: int, seed: int, searched: Callable[[int, Dataset], Stage]
) -> FoldedLists:
    """Return the lists that negatives are mined from, by folds of the training queries of ``data``.

    Queries with a relevant document in common share a fold (``query_folds``). ``searched`` returns
    the first stage of a fold, given its number and what its models may be trained on.
    """
    train = training_splits(data, seed)[0]
    parted = query_folds(train.queries, train.qrels, folds, seed)
    stages = []
    for number in range(folds):
        out = [query for query, fold in parted.fold.items() if fold == number]
        rest = Dataset(
            WithoutQueries(train.source, out), None,
            ignore_identical_ids=train.ignore_identical_ids, level=train.level,
        )  # fmt: skip
        stages.append(searched(number, rest))
    return FoldedLists(whole, stages, parted.fold)
