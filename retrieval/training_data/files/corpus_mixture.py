"""``examples: {type: corpus}``: pairs of several kinds from the corpus, filtered by a search."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number, plural
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.training_data.files.corpus_examples import passages_of
from sluice.retrieval.training_data.files.rows import ExampleSource

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.runs.run import Ranking, Run
    from sluice.training import Example
    from sluice.training.generation.corpus_pairs import PairMaker
    from sluice.training.generation.inverse_cloze import Passage

log = logging.getLogger("sluice")


CONSISTENT = 10  # hits that a pair's document is among, if the section does not say


class _Query(NamedTuple):
    """A query made from a document, and the text that answers it."""

    id: str
    kind: str
    query: str
    document_id: str
    document: str


@dataclass(frozen=True, slots=True)
@checked("corpus.")
class CorpusExamples(ExampleSource):
    """Pairs from the corpus alone, see ``sluice.training.generation.corpus_pairs.PairMaker``.

    ``titles``, ``sentences``, ``crops`` and ``phrases`` are the shares of the four kinds; where a
    document cannot give the kind that is drawn it gives another one. ``per_document`` queries are
    made of each document, ``documents`` is a limit (the corpus' first).

    ``retriever`` names what searches the corpus with every query: a retriever or pipeline of the
    experiment, an inline {encoder, index}, a folder. ``consistency`` keeps a pair if its document
    is among the first so many hits (with a retriever 10 by default). ``candidates`` adds so many of
    the hits, drawn among the first ``depth``, with the scores of the list for a loss that learns
    from a teacher: from 0 for the last of the list to ``scale`` for its first.
    """

    titles: Annotated[float, "The share of pairs of a title and the text without it."] = 1.0
    sentences: Annotated[
        float, "The share of pairs of a sentence and the rest of its document."
    ] = 1.0
    crops: Annotated[float, "The share of pairs of two spans of words of a document."] = 1.0
    phrases: Annotated[
        float, "The share of pairs of a document's key phrases and the document."
    ] = 1.0
    per_document: Annotated[int, Ge(1), "Queries made from each document."] = 2
    documents: Annotated[int | None, Ge(1)] = None
    retriever: Annotated[
        Any,
        "What searches the corpus with every query: a retriever or pipeline by name, a "
        "folder, an inline {encoder, index}.",
    ] = None
    consistency: Annotated[
        int | None,
        Ge(1),
        "Keeps pairs whose document is among the first so many hits; with a retriever 10.",
    ] = None
    candidates: Annotated[
        int,
        Ge(0),
        "Further hits of each query, with the scores of the list, for losses that learn "
        "from a teacher.",
    ] = 0
    depth: Annotated[int, Ge(1), "Hits that the candidates are drawn from."] = 50
    scale: Annotated[float, "The candidates' highest score, where the lowest is 0."] = 10.0

    def __post_init__(self) -> None:
        for name, share in self._shares().items():
            finite_number(share, f"corpus.{name}", 0)
        if not any(self._shares().values()):
            raise ConfigError("corpus: every share is 0; give titles, sentences, crops or phrases")
        if finite_number(self.scale, "corpus.scale", 0) == 0:
            raise ConfigError("corpus.scale: 0, expected a number above 0")
        if self.retriever is None and (self.consistency is not None or self.candidates):
            name = "candidates" if self.candidates else "consistency"
            raise ConfigError(f"corpus.{name}: looks at hits; add retriever, or leave {name} out")
        for name, usual in (("depth", 50), ("scale", 10.0)):
            if not self.candidates and getattr(self, name) != usual:
                raise ConfigError(f"corpus.{name}: is for candidates; give some, or leave it out")
        least = max(self.candidates + 1, self.consistency or 0)
        if self.candidates and self.depth < least:
            raise ConfigError(
                f"corpus.depth: {self.depth}, expected {least} or more, as candidates and "
                "consistency need"
            )

    @property
    def lists(self) -> Any:
        """What searches the corpus."""
        return self.retriever

    def examples(
        self, dataset: Dataset, seed: int, lists: Stage | Run | None = None
    ) -> list[Example]:
        """Return the examples, document by document; ``DataError`` where none is left."""
        queries = list(self._queries(dataset, seed))
        if not queries:
            raise DataError(f"{dataset.name}: no document of the corpus gives a pair to train on")
        kinds = Counter(each.kind for each in queries)
        log.info(
            "%s: %s from the corpus: %s", dataset.name, plural(len(queries), "pair"),
            ", ".join(f"{kind} {kinds[kind]:,}" for kind in self._shares() if kinds[kind]),
        )  # fmt: skip
        if lists is None:
            return [_example(each) for each in queries]
        return self._candidates(queries, dataset, lists, seed)

    def _shares(self) -> dict[str, float]:
        return {
            "titles": self.titles, "sentences": self.sentences, "crops": self.crops,
            "phrases": self.phrases,
        }  # fmt: skip

    def _queries(self, dataset: Dataset, seed: int) -> Iterator[_Query]:
        from sluice.training.generation.corpus_pairs import PairMaker

        maker = PairMaker.from_passages(passages_of(dataset, self.documents))
        for passage in passages_of(dataset, self.documents):
            known = set[str]()
            for number in range(self.per_document):
                chance = random.Random(f"corpus:{seed}:{number}:{passage.id}")
                query = self._drawn(maker, passage, f"{passage.id}-asked-{number}", chance)
                if query is not None and query.query not in known:
                    known.add(query.query)
                    yield query

    def _drawn(
        self, maker: PairMaker, passage: Passage, name: str, chance: random.Random
    ) -> _Query | None:
        """Draw kinds by their shares, without returning one, until the document gives a pair."""
        shares = {kind: share for kind, share in self._shares().items() if share > 0}
        while shares:
            (kind,) = chance.choices(list(shares), list(shares.values()))
            pair = maker.pair(kind, passage, chance)
            if pair is not None:
                return _Query(name, kind, pair.query, passage.id, pair.document)
            del shares[kind]
        return None

    def _candidates(
        self, queries: Sequence[_Query], dataset: Dataset, lists: Stage | Run, seed: int
    ) -> list[Example]:
        """Return the pairs whose document is found, with candidates of their lists."""
        if not isinstance(lists, Stage):
            raise ConfigError(
                f"examples.retriever: {lists.name} is a run, which has no lists for queries that "
                "are made from the corpus; name a retriever or a pipeline"
            )
        most = CONSISTENT if self.consistency is None else self.consistency
        depth = self.depth if self.candidates else most
        most = min(most, depth)
        run = lists.run({each.id: each.query for each in queries}, None, depth)
        pairs = [
            (each, run[each.id][:depth])
            for each in queries
            if each.id in run and each.document_id in run[each.id].doc_ids[:most]
        ]
        log.info(
            "%s: kept %s of %s pairs, whose document is among the first %d hits of %s",
            dataset.name, f"{len(pairs):,}", f"{len(queries):,}", most, lists.name,
        )  # fmt: skip
        if not pairs:
            raise DataError(
                f"{dataset.name}: of {len(queries):,} queries made from the corpus none finds its "
                f"document among the first {most} hits of {lists.name}; raise consistency"
            )
        if not self.candidates:
            return [_example(each) for each, _ in pairs]
        return self._labelled(pairs, dataset, seed)

    def _labelled(
        self, pairs: Sequence[tuple[_Query, Ranking]], dataset: Dataset, seed: int
    ) -> list[Example]:
        """Return pairs with candidates of their lists, and the lists' scores of all."""
        from sluice.training import Example, Text

        drawn = []
        for query, ranking in pairs:
            scores = self._scaled(ranking)
            others = [doc for doc in ranking.doc_ids if doc != query.document_id]
            chance = random.Random(f"candidates:{seed}:{query.id}")
            chosen = chance.sample(others, min(self.candidates, len(others)))
            drawn.append((query, [(doc, scores[doc]) for doc in (query.document_id, *chosen)]))
        needed = {doc for _, documents in drawn for doc, _ in documents[1:]}
        texts = {d.id: d.full_text for d in dataset.corpus if d.id in needed}
        return [
            Example(
                Text(query.id, query.query),
                (
                    Text(query.document_id, query.document),  # without the query's sentence
                    *(Text(doc, texts[doc]) for doc, _ in documents[1:]),
                ),
                relevant=frozenset({query.document_id}),
                scores=tuple(score for _, score in documents),
            )
            for query, documents in drawn
        ]

    def _scaled(self, ranking: Ranking) -> dict[str, float]:
        """Return a list's scores between 0 and ``scale``; all the same where they do not differ."""
        scores = np.asarray(ranking.scores, np.float64)
        least, spread = scores.min(), scores.max() - scores.min()
        scaled = self.scale * (scores - least) / spread if spread else np.zeros_like(scores)
        return dict(zip(ranking.doc_ids, scaled.tolist(), strict=True))


def _example(query: _Query) -> Example:
    from sluice.training import Example, Text

    return Example(
        Text(query.id, query.query),
        (Text(query.document_id, query.document),),
        relevant=frozenset({query.document_id}),
    )
