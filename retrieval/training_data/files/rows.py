"""Sources of training examples, and one row of a file: a query and its documents."""

from __future__ import annotations

import hashlib
import logging
import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.documents.ids import id_text
from sluice.retrieval.training_data.files.columns import NEGATIVE_QUERIES
from sluice.training.negatives.settings import Among, Mining

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.pipelines.stage import Stage
    from sluice.retrieval.runs.run import Run
    from sluice.training import Example


class ExampleSource:
    """Makes training examples of a dataset: a subclass writes ``examples``.

    One that ``changes`` draws new examples in every epoch: its ``examples`` takes ``epoch`` too.
    """

    __slots__ = ()

    @property
    def changes(self) -> bool:
        """Whether an epoch's examples differ from those of the one before."""
        return False

    @property
    def lists(self) -> Any:
        """What it searches the corpus with, as ``negatives.retriever`` names it; None: nothing."""
        return None

    @property
    def paths(self) -> Sequence[Path]:
        """The files it reads, which must exist; they decide what is learnt."""
        return ()

    @property
    def models(self) -> Sequence[str]:
        """The folders or hub ids of the models it opens; they decide what is learnt."""
        return ()

    @property
    def buffer(self) -> int | None:
        """Of how many examples memory holds those that its ``streamed`` reads; None: of all."""
        return None

    @property
    def keeps(self) -> bool:
        """Whether its ``examples`` takes ``folder``, where what took long to make is kept."""
        return False

    def first_rows(self) -> Iterator[Row]:
        """Yield the rows that show before any work whether its files can be read."""
        return iter(())

    def stream(self) -> Iterator[Row] | None:
        """Return the rows as they are in its files; None where examples are made otherwise."""
        return None

    def of_epoch(
        self,
        dataset: Dataset,
        seed: int,
        epoch: int,
        lists: Stage | Run | None = None,
        folder: Path | None = None,
    ) -> list[Example]:
        """Return the examples of an epoch, the same ones in each unless the source changes.

        ``lists`` is what ``self.lists`` names, opened; ``folder`` is for a source that ``keeps``.
        """
        source: Any = self
        further: dict[str, Any] = {"epoch": epoch} if self.changes else {}
        if lists is not None:
            further["lists"] = lists
        if self.keeps:
            further["folder"] = folder
        examples: list[Example] = source.examples(dataset, seed, **further)
        return examples


class _Adapted(ExampleSource):
    """Gives a user's own source, not an ``ExampleSource``, the attributes that it lacks."""

    __slots__ = ("_source", "examples")

    def __init__(self, source: Any) -> None:
        self._source = source
        self.examples = source.examples

    @property
    def changes(self) -> bool:
        """The source's own, else False."""
        return bool(getattr(self._source, "changes", False))

    @property
    def paths(self) -> Sequence[Path]:
        """The source's own, else none."""
        return tuple(getattr(self._source, "paths", ()))


def as_source(source: Any, where: str = "examples") -> ExampleSource:
    """Return a source with every attribute: itself, or an adapter around a user's own.

    That is an object with ``examples(dataset, seed)``, which may have ``changes`` and ``paths``.
    Raises ``ConfigError`` for anything else.
    """
    if isinstance(source, ExampleSource):
        return source
    if not callable(getattr(source, "examples", None)):
        raise ConfigError(
            f"{where}: {type(source).__name__} has no examples; expected an object with "
            "examples(dataset, seed)"
        )
    return _Adapted(source)


NO_SCORE = math.nan


class Named(NamedTuple):
    """A query or a document: its id, its text, or both (None for what the file lacks)."""

    id: str | None
    text: str | None

    @property
    def key(self) -> str:
        """The id, or one made from the text: equal texts have equal ids."""
        if self.id is not None:
            return self.id
        return "text-" + hashlib.blake2b((self.text or "").encode(), digest_size=10).hexdigest()


class Labelled(NamedTuple):
    """A document of a row with its label (0: a negative) and a teacher's score (NaN: none).

    ``answered`` is another query that it answers; empty where none is known.
    """

    document: Named
    label: float
    score: float = NO_SCORE
    answered: str = ""


class Row(NamedTuple):
    """A query with its labelled documents, positives first, and its place in the file.

    ``graded`` rows are parts of a query's list: all rows of one query make one example.
    ``negative_queries`` are texts of queries that its positives do not answer.
    """

    place: str
    query: Named
    documents: tuple[Labelled, ...]
    graded: bool = False
    negative_queries: tuple[str, ...] = ()


def labelled_row(
    place: str,
    query: Named,
    positives: Sequence[Named],
    negatives: Sequence[Named],
    scores: Sequence[float] = (),
    answered: Sequence[str] = (),
) -> Row:
    """Return the row of positives and negatives; ``scores`` are one for each, in that order.

    ``answered`` are queries that the negatives answer, one each or none. Raises ``DataError`` for a
    row without positive, or with another number of scores or queries.
    """
    if not positives:
        raise DataError(
            f"{place}: no positive; every row needs a document that answers its query: add one, or "
            "remove the row"
        )
    scores = scores or [NO_SCORE] * (len(positives) + len(negatives))
    if len(scores) != len(positives) + len(negatives):
        raise DataError(
            f"{place}: {len(scores)} scores for {len(positives)} positives and {len(negatives)} "
            "negatives; expected one for each document"
        )
    if answered and len(answered) != len(negatives):
        raise DataError(
            f"{place}: {len(answered)} neg_queries for {len(negatives)} negatives; expected one "
            "for each, empty where a negative answers none"
        )
    labels = [1.0] * len(positives) + [0.0] * len(negatives)
    texts = [*[""] * len(positives), *(answered or [""] * len(negatives))]
    documents = zip([*positives, *negatives], labels, scores, texts, strict=True)
    return Row(place, query, tuple(Labelled(*one) for one in documents))


def field_of(
    place: str, value: Mapping[str, Any], names: Sequence[str], what: str, *, needed: bool = True
) -> Any:
    """Return the value of the first of the fields ``names``; None without one, if not needed."""
    for name in names:
        if value.get(name) is not None:
            return value[name]
    if not needed:
        return None
    near = suggest(names[0], [key for key in value if key not in names])
    raise DataError(
        f"{place}: no {what}: fields are {', '.join(list(value)[:8])}; expected "
        f"{' or '.join(repr(name) for name in names[:3])}{near}"
    )


def text_of(place: str, value: Any, what: str) -> str:
    """Return a text that is not blank; ``DataError`` for anything else."""
    if not isinstance(value, str):
        raise DataError(f"{place}: {what} is {value!r:.60}, expected a text")
    if not value.strip():
        raise DataError(f"{place}: {what} is empty; fill it in, or remove the row")
    return value


def texts_of(place: str, value: Any, what: str) -> list[str]:
    """Return a list of texts that are not blank; one text is a list of it."""
    if isinstance(value, str):
        return [text_of(place, value, what)]
    if not isinstance(value, Sequence):
        raise DataError(f"{place}: {what} is {value!r:.60}, expected a list of texts")
    return [text_of(place, text, f"{what}[{n}]") for n, text in enumerate(value)]


def id_of(place: str, value: Any, what: str) -> str:
    """Return an id as a text without white space around it; whole numbers are written out."""
    return id_text(f"{place}: {what}", value.strip() if isinstance(value, str) else value)


def list_of(place: str, value: Any, what: str) -> Sequence[Any]:
    """Return a list; what is missing is an empty one."""
    if value is None:
        return []
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise DataError(f"{place}: {what} is {value!r:.60}, expected a list")
    return value


def ids_of(place: str, value: Any, what: str) -> list[str]:
    """Return a list of ids."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"{place}: {what} is {value!r:.60}, expected a list of ids")
    return [id_of(place, name, f"{what}[{n}]") for n, name in enumerate(value)]


def number_of(place: str, value: Any, what: str) -> float:
    """Return a finite number, given as one or written as text."""
    try:
        if isinstance(value, bool):
            value = int(value)
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{place}: {what} is {value!r:.60}, expected a finite number")
    return number


def numbers_of(place: str, value: Any, what: str) -> list[float]:
    """Return a list of finite numbers; None is an empty list, one number a list of it."""
    if value is None:
        return []
    if not isinstance(value, Sequence) or isinstance(value, str):
        value = [value]
    return [number_of(place, number, f"{what}[{n}]") for n, number in enumerate(value)]


def joined(ids: Sequence[str], texts: Sequence[str], place: str, what: str) -> list[Named]:
    """Return named texts; without ids the texts alone."""
    if not ids:
        return [Named(None, text) for text in texts]
    if len(ids) != len(texts):
        raise DataError(
            f"{place}: {len(ids)} ids for {len(texts)} texts of {what}; expected one for each"
        )
    return [Named(name, text) for name, text in zip(ids, texts, strict=True)]


def check_limits(ratio: float | None, margin: float | None, positive_score: Among) -> None:
    """Raise ``ConfigError`` for a limit that is not a number, or a choice without limits."""
    if ratio is not None and not 0 < ratio < math.inf:
        raise ConfigError(f"max_positive_ratio: {ratio}, expected above 0 (0.95 is usual)")
    if margin is not None and not math.isfinite(margin):
        raise ConfigError(f"margin: {margin}, expected a finite number")
    if ratio is None and margin is None and positive_score != "lowest":
        raise ConfigError(
            f"positive_score: {positive_score!r} is for max_positive_ratio and margin, of which "
            "there is none; set one, or leave it out"
        )


def limits_of(ratio: float | None, margin: float | None, positive_score: Among) -> Mining:
    """Return the limits as mining has them."""
    return Mining(max_positive_ratio=ratio, margin=margin, positives=positive_score)


def below_limits(row: Row, negatives: Sequence[Labelled], limits: Mining) -> list[Labelled] | None:
    """Return the negatives below the limits; None where the row lacks a score."""
    scores = [one.score for one in row.documents if one.label > 0]
    if any(map(math.isnan, [*scores, *(one.score for one in negatives)])):
        return None
    positive = limits.reference(scores)
    highest = min(positive - (a + b * abs(positive)) for _, a, b in limits.margins)
    return [one for one in negatives if one.score < highest]


log = logging.getLogger("sluice")

DESCRIPTIONS: Final = "descriptions"  # the format of files of descriptions that fit, or do not
GOOD: Final = ("good", "descriptions")
BAD: Final = ("bad", "misfits")
DESCRIBED: Final = ("sentence", "text", "document", "passage")
DOCUMENT_ID: Final = ("_id", "doc_id", "document_id", "docid", "id")


def with_negative_queries(row: Row, value: Mapping[str, Any]) -> Row:
    """Return a row with the ``negative_queries`` of its record, one text or a list."""
    own = value.get(NEGATIVE_QUERIES)
    if own is None or own in ("", []):
        return row
    return row._replace(negative_queries=tuple(texts_of(row.place, own, NEGATIVE_QUERIES)))


def described(place: str, value: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for each description of ``{sentence, good: [...], bad: [...]}`` that is good."""
    text = text_of(place, field_of(place, value, DESCRIBED, "sentence"), "the sentence")
    good = texts_of(place, field_of(place, value, GOOD, "good descriptions"), "good")
    own = field_of(place, value, BAD, "bad descriptions", needed=False)
    bad = () if own is None else tuple(texts_of(place, own, "bad"))
    if not good:
        raise DataError(f"{place}: no good description; add one, or remove the row")
    name = field_of(place, value, DOCUMENT_ID, "id", needed=False)
    document = Named(None if name is None else id_of(place, name, "the id"), text)
    for description in good:
        yield Row(place, Named(None, description), (Labelled(document, 1.0),), negative_queries=bad)


def is_described(keys: Collection[str]) -> bool:
    """Return whether a record with these fields has descriptions."""
    return bool({*keys} & {*GOOD}) and bool({*keys} & {*BAD}) and bool({*keys} & {*DESCRIBED})


def without_right_ones(
    rows: Sequence[Row], dataset: Dataset, tested: Collection[str], limit: int | None, where: str
) -> list[Row]:
    """Return the rows without negative queries that one of their positives does answer.

    Those are queries of the rows or of the dataset's split. Those ``tested``, by the keys of their
    texts, are left out too; both are counted in a warning. With a ``limit`` of 0 rows have none.
    ``ConfigError`` for a limit where no row has any.
    """
    if not any(row.negative_queries for row in rows):
        if limit is not None:
            raise ConfigError(
                f"{NEGATIVE_QUERIES}: {limit} does nothing: no row of {where} has any; leave it out"
            )
        return list(rows)
    if limit == 0:
        return [row._replace(negative_queries=()) for row in rows]
    right = _right(rows, dataset)
    remaining, answered, held_out = [], 0, 0
    for row in rows:
        own = {same_text_key(row.query.text or "")}
        for one in row.documents:
            if one.label > 0:
                own |= right[one.document.key] | right[same_text_key(one.document.text or "")]
        distinct = {same_text_key(text): text for text in reversed(row.negative_queries)}
        held_out += sum(key in tested for key in distinct)
        answered += sum(key in own for key in distinct if key not in tested)
        names = [text for key, text in distinct.items() if key not in own and key not in tested]
        remaining.append(row._replace(negative_queries=tuple(reversed(names))))
    for count, why in ((answered, "a positive answers"), (held_out, "are dev or test queries")):
        if count:
            log.warning("%s: left out %s negative_queries that %s", where, f"{count:,}", why)
    return remaining


def _right(rows: Sequence[Row], dataset: Dataset) -> dict[str, set[str]]:
    """Return by the key of a document's id, and of its text, its queries' texts' keys."""
    right: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        for one in row.documents:
            if one.label > 0:
                key = same_text_key(row.query.text or "")
                right[one.document.key].add(key)
                right[same_text_key(one.document.text or "")].add(key)
    for query, grades in dataset.qrels.items() if dataset.split is not None else ():
        for document, grade in grades.items():
            if grade > 0 and query in dataset.queries:
                right[document].add(same_text_key(dataset.queries[query]))
    return right


def drawn(row: Row, limit: int | None, key: str) -> tuple[str, ...]:
    """Return a row's negative queries, at most ``limit`` of them, drawn by ``key``."""
    own = row.negative_queries
    if limit is None or len(own) <= limit:
        return own
    places = sorted(random.Random(f"misfits:{key}").sample(range(len(own)), limit))
    return tuple(own[place] for place in places)
