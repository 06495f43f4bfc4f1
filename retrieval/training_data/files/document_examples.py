"""Examples made from the fields of documents or from their quality: ``fields``, ``quality``."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from annotated_types import Ge

from sluice.encoders.foundation.bounded_input import Reservoir, same_text_key
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.retrievers.quality.scores import MOST, query_shares
from sluice.retrieval.training_data.files.rows import ExampleSource

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.documents.document import Document
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
        from sluice.training.protocol import Text

        if dataset.split is None:
            raise DataError(
                f"{dataset.name}: no train split, and examples of type quality learn from its "
                "judgements; fit quality by length, itn, unigram or perplexity without any"
            )
        texts, labels = self._documents(dataset, seed)
        order = sorted(texts, key=lambda name: (labels.get(name, 0.0), name))
        values = [labels.get(name, 0.0) for name in order]
        draw = random.Random(f"quality {seed} {epoch}")
        examples = []
        for name in order:
            below = bisect_left(values, labels.get(name, 0.0))
            if below == 0:
                continue
            others = [order[draw.randrange(below)] for _ in range(self.negatives)]
            documents = [name, *dict.fromkeys(others)]
            examples.append(
                Example(
                    Text(f"quality of {name}", ""),
                    tuple(Text(each, texts[each]) for each in documents),
                    tuple(labels.get(each, 0.0) for each in documents),
                    frozenset({name}),
                )
            )
        if not examples:
            raise DataError(
                f"{dataset.name}: all {len(texts):,} documents are as relevant to train queries, "
                "so that nothing tells them apart (with labels: share they differ by what queries "
                "find in them)"
            )
        draw.shuffle(examples)
        return examples

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


SIDES = ("query", "positive")
Parts = Sequence[Sequence[str]]  # of one side: for each field its texts


class _Pair(NamedTuple):
    """A document's two sides, and the keys by which theirs are the same as another's."""

    id: str
    query: str
    positive: str


@dataclass(frozen=True, slots=True)
@checked("fields.")
class FieldExamples(ExampleSource):
    """Pairs of what stands together in a document: some of its fields, and others.

    A side is its fields' texts in order, joined by spaces; the items of a list by commas. Fields
    are ``title``, ``text``, and the texts and lists of texts in the metadata. With ``least`` above
    1 an item of the positive side stays if so many documents have it beside the same query, and a
    document without any left is left out. Documents with the same query, or the same positive,
    never count as each other's negatives. (VacancySBERT: titles of vacancies and their skills,
    mined by how often they occur together.) ``documents`` is a limit, the corpus' first.
    """

    query: Annotated[
        str | list[str],
        "The field that is the query, or several, joined: title, text, metadata keys.",
    ]
    positive: Annotated[str | list[str], "The field that is the document, or several, joined."]
    least: Annotated[
        int, Ge(1), "Documents that an item of the positive must have beside the same query, 1."
    ] = 1
    documents: Annotated[int | None, Ge(1)] = None

    def __post_init__(self) -> None:
        chosen = [name for side in SIDES for name in self._names(side)]
        for name in chosen:
            if chosen.count(name) > 1:
                raise ConfigError(f"fields: {name!r} is named twice; a side would hold the other's")

    def _names(self, side: str) -> list[str]:
        named = self.query if side == "query" else self.positive
        names = [named] if isinstance(named, str) else list(named)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"fields.{side}: {named!r}; expected the name of a field, or several")
        return names

    def examples(self, dataset: Dataset, seed: int) -> list[Example]:
        """Return one example for each document that has both sides, in the corpus' order.

        Raises ``DataError`` for a field that no document has, or where none has both sides.
        """
        from sluice.training import Example
        from sluice.training.protocol import Text

        pairs = self._pairs(dataset)
        alike: list[dict[str, set[str]]] = []
        for place in (1, 2):
            groups: dict[str, set[str]] = defaultdict(set)
            for pair in pairs:
                groups[same_text_key(pair[place])].add(pair.id)
            alike.append(groups)
        return [
            Example(
                Text(f"{pair.id}-asked", pair.query),
                (Text(pair.id, pair.positive),),
                relevant=frozenset(
                    alike[0][same_text_key(pair.query)] | alike[1][same_text_key(pair.positive)]
                ),
            )
            for pair in pairs
        ]

    def _pairs(self, dataset: Dataset) -> list[_Pair]:
        read: list[tuple[str, str, Parts]] = []
        seen: Counter[str] = Counter()
        count = 0
        for document in islice(dataset.corpus, self.documents):
            count += 1
            fields = fields_of(document)
            seen.update(fields.keys())
            sides = {side: [fields.get(name, ()) for name in self._names(side)] for side in SIDES}
            read.append((document.id, joined(sides["query"]), sides["positive"]))
        for name in (name for side in SIDES for name in self._names(side)):
            if not seen[name]:
                known = sorted(seen)
                raise DataError(
                    f"{dataset.name}: none of {plural(count, 'document')} has a field {name!r}; "
                    f"fields: {', '.join(known) or 'none'}{suggest(name, known)}"
                )
        together = Counter(
            (same_text_key(query), key)
            for _, query, parts in read
            for key in {same_text_key(item) for items in parts for item in items}
        )
        pairs = []
        for doc_id, query, parts in read:
            whole = [
                [i for i in items if together[same_text_key(query), same_text_key(i)] >= self.least]
                for items in parts
            ]
            positive = joined(whole)
            if query and positive:
                pairs.append(_Pair(doc_id, query, positive))
        if not pairs:
            often = f", {self.least} times together" if self.least > 1 else ""
            raise DataError(
                f"{dataset.name}: none of {plural(count, 'document')} has both sides{often}: "
                f"{', '.join(self._names('query'))}; and {', '.join(self._names('positive'))}"
            )
        return pairs


def fields_of(document: Document) -> Mapping[str, Sequence[str]]:
    """Return the texts of each field of a document that has any, blank ones left out."""
    fields: dict[str, Iterable[object]] = {
        name: [value] if isinstance(value, str) else value
        for name, value in document.metadata.items()
        if isinstance(value, str | list | tuple)
    }
    fields |= {"title": [document.title], "text": [document.text]}
    texts = {name: [str(each).strip() for each in values] for name, values in fields.items()}
    return {name: [each for each in items if each] for name, items in texts.items() if any(items)}


def joined(parts: Parts) -> str:
    """Return a side's text: fields joined by spaces, the items of one by commas."""
    return " ".join(", ".join(items) for items in parts if items)
