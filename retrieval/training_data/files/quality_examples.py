"""Documents without a query, told apart by how much of the queries is theirs: ``type: quality``."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.input.bounded import Reservoir
from sluice.retrieval.retrievers.quality.scores import MOST, query_shares
from sluice.retrieval.training_data.files.rows import ExampleSource

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example


@dataclass(frozen=True, slots=True)
@checked("quality.")
class QualityExamples(ExampleSource):
    """A document beside others that matter less, all without a query: what a quality model learns.

    With the labels ``share`` each train query shares one unit among its relevant documents; a
    document's label is what it gets, as a share of the largest. With ``any`` it is 1 for a
    document relevant to some train query, 0 for the others. Each document with a label above 0 is
    the first of an example, and ``negatives`` documents with a smaller one are drawn anew in every
    epoch. At most 50,000 documents without a label are drawn from. (Chang et al. 2024, Neural
    Passage Quality Estimation for Static Pruning, arXiv 2407.12170, who drop the query from the
    triples of MS MARCO.)
    """

    changes: ClassVar[bool] = True  # new negatives in every epoch

    labels: Annotated[
        Literal["share", "any"],
        "A document's label: its share of the train queries, or any (relevant to some).",
    ] = "share"
    negatives: Annotated[
        int, Ge(1), "Documents that matter less beside each, drawn again in every epoch."
    ] = 1

    def examples(self, dataset: Dataset, seed: int, epoch: int = 0) -> list[Example]:
        """Return the examples of an epoch; ``DataError`` where nothing tells documents apart."""
        from sluice.training import Example
        from sluice.training.example import Text

        if dataset.split is None:
            raise DataError(
                f"{dataset.name}: no train split, and examples of type quality learn from its "
                "judgements; fit quality by length, itn, unigram or perplexity without any"
            )
        texts, labels = self._documents(dataset, seed)
        order = sorted(texts, key=lambda name: (labels.get(name, 0.0), name))
        values = [labels.get(name, 0.0) for name in order]
        draw = random.Random(f"quality {seed} {epoch}")
        made = []
        for name in order:
            below = bisect_left(values, labels.get(name, 0.0))
            if below == 0:
                continue
            others = [order[draw.randrange(below)] for _ in range(self.negatives)]
            documents = [name, *dict.fromkeys(others)]
            made.append(
                Example(
                    Text(f"quality of {name}", ""),
                    tuple(Text(each, texts[each]) for each in documents),
                    tuple(labels.get(each, 0.0) for each in documents),
                    frozenset({name}),
                )
            )
        if not made:
            raise DataError(
                f"{dataset.name}: all {len(texts):,} documents are as relevant to train queries, "
                "so that nothing tells them apart (with labels: share they differ by what queries "
                "find in them)"
            )
        draw.shuffle(made)
        return made

    def _documents(self, dataset: Dataset, seed: int) -> tuple[dict[str, str], Mapping[str, float]]:
        """Return the texts that are learnt from, and the labels above 0 by document."""
        shares = query_shares(dataset.qrels)
        top = max(shares.values(), default=1.0)
        labels = {
            name: 1.0 if self.labels == "any" else share / top for name, share in shares.items()
        }
        others = Reservoir[tuple[str, str]](MOST, random.Random(f"quality {seed}"))
        texts = {}
        for document in dataset.corpus:
            if not document.full_text.strip():
                continue
            if document.id in labels:
                texts[document.id] = document.full_text
            else:
                others.add((document.id, document.full_text))
        if not texts:
            raise DataError(
                f"{dataset.name}: the corpus has no text of a document relevant to a train query"
            )
        return texts | dict(others.items), labels
