"""The examples of one training: judgements or files, mined negatives, a teacher's scores.

Made once before training, and again while it goes on where negatives are refreshed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.files import write_json
from sluice.encoders.foundation.same_text import same_text_key
from sluice.retrieval.config.sections import TrainingSection
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.source import Places, Qrels
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.candidate_lists import SELF, Sources, listed
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.example_sources import file_examples, source_of
from sluice.retrieval.training_data.mining import mine_negatives
from sluice.retrieval.training_data.teachers.distillation import taught

if TYPE_CHECKING:
    from sluice.retrieval.datasets import source as datasets_source
    from sluice.retrieval.documents.document import Document
    from sluice.training import Example, MinedNegatives
    from sluice.training.negatives.judge import Judge

log = logging.getLogger("sluice")

Source = Callable[[Any, str], Stage | Run]  # `negatives.retriever` and where it stands -> lists
OpenJudge = Callable[[Any, str], "Judge"]


class TrainingExamples:
    """Makes a training's examples, at its start and at every refresh.

    ``source`` and ``judge`` open what ``negatives`` names, ``model`` maps names of models trained
    in the experiment to folders. With ``answered`` each document brings another query that it
    answers, where the judgements have one. Reports and provenance go to ``work_path``.
    """

    def __init__(
        self,
        section: TrainingSection,
        train: Dataset,
        *,
        seed: int,
        work_path: Path,
        where: str,
        source: Source,
        judge: OpenJudge,
        model: Callable[[str], str],
        answered: bool = False,
    ) -> None:
        self.section = section
        self.train = train
        self.seed = seed
        self.work_path = work_path
        self.where = where
        self.model = model
        self.answered = answered
        self._texts: dict[str, str] = {}
        self._judge: Judge | None = None
        self._lists: Stage | Run | None = None
        negatives = section.negatives or {}
        named = negatives.get("retriever")
        self.mined = negatives.get("type") == "mined"
        self.asks_self = SELF in listed(named)
        self._others = [each for each in listed(named) if each != SELF] if self.mined else []
        self._source = source
        if self.mined and negatives.get("judge") is not None:
            self._judge = judge(negatives["judge"], f"{where}negatives.judge")

    @property
    def lists(self) -> Stage | Run | None:
        """The lists that negatives are mined from, the trained encoder's own left out.

        Opened when first asked for: a corpus may have to be indexed.
        """
        if self._lists is None and self._others:
            named = self._others if len(self._others) > 1 else self._others[0]
            self._lists = self._source(named, f"{self.where}negatives.retriever")
        return self._lists

    def make(self, encoder: Any, step: int = 0) -> list[Example]:
        """Return the examples for training from ``step`` on, with the encoder as it is now.

        Raises ``DataError`` when no query has a positive with a text.
        """
        source = source_of(self.section)
        examples = (
            self._judged(encoder, step) if source is None else self._given(source, encoder, step)
        )
        if not examples:
            raise DataError(f"{self.train.name}: no training query has a relevant document's text")
        if self.section.teacher is not None:
            teacher = self.section.teacher
            where = f"{self.where}teacher"
            folder = self.work_path if step == 0 else self.work_path / f"teacher-{step}"
            examples = taught(examples, teacher, work_path=folder, model=self.model, where=where)
        return examples

    def _given(self, spec: Mapping[str, Any], encoder: Any, step: int) -> list[Example]:
        """Examples of a section ``examples``, with negatives mined for their queries, if any."""
        place = f"{self.where}examples"
        examples = file_examples(spec, self.train, self.seed, epoch=step, where=place)
        if not self.mined:
            return examples
        mined = self._mine(encoder, step, dataset_of_examples(examples, self.train))
        texts = self._read({doc for found in mined.negatives.values() for doc in found})
        return list(mined.consistent(with_negatives(examples, mined.negatives, texts)))

    def _judged(self, encoder: Any, step: int) -> list[Example]:
        from sluice.training import pair_examples

        train = self.train
        mined = self._mine(encoder, step, train) if self.mined else None
        negatives: Mapping[str, Sequence[str]] = {} if mined is None else mined.negatives
        qrels = {query: grades for query, grades in train.qrels.items() if query in train.queries}
        wanted = {doc for grades in qrels.values() for doc, grade in grades.items() if grade > 0}
        wanted.update(doc for found in negatives.values() for doc in found)
        texts = self._read(wanted)
        absent = wanted - texts.keys()
        if absent:
            log.warning(
                "%s: %d documents named by qrels or negatives are not in the corpus (%s)",
                train.name, len(absent), ", ".join(sorted(absent)[:3]),
            )  # fmt: skip
            qrels = {q: {d: g for d, g in each.items() if d in texts} for q, each in qrels.items()}
            negatives = {q: [d for d in found if d in texts] for q, found in negatives.items()}
        made = pair_examples(
            train.queries,
            qrels,
            texts,
            negatives,
            each=self.section.positives,
            labels=self.section.labels,
            answered=_answered(qrels) if self.answered else None,
            seed=self.seed,
        )
        return list(made if mined is None else mined.consistent(made))

    def _mine(self, encoder: Any, step: int, asked: Dataset) -> MinedNegatives:
        from sluice.training.negatives.provenance_file import write_provenance

        lists = self.lists
        if self.asks_self:
            own = Retriever.build(encoder, self.train.corpus, name=SELF)
            parts = [] if lists is None else list(_parts(lists))
            lists = Sources([*parts, (SELF, own)]) if parts else own
        if lists is None:  # checked before: a section without a retriever is refused
            raise DataError(f"{self.where}negatives: no lists to mine from")
        spec = {k: v for k, v in (self.section.negatives or {}).items() if k != "refresh"}
        mined = mine_negatives(lists, asked, spec, seed=self.seed + step, judge=self._judge)
        suffix = f"-{step}" if step else ""
        log.info("mined negatives: %s", mined.report)
        write_json(self.work_path / f"mining{suffix}.json", mined.report.as_dict())
        write_provenance(self.work_path / f"negatives{suffix}.parquet", mined)
        return mined

    def _read(self, wanted: set[str]) -> dict[str, str]:
        """Read texts that were not read before: the corpus is a stream."""
        if not wanted <= self._texts.keys():
            self._texts |= {d.id: d.full_text for d in self.train.corpus if d.id in wanted}
        return {doc: text for doc, text in self._texts.items() if doc in wanted}


def _parts(lists: Stage | Run) -> Sequence[tuple[str, Stage | Run]]:
    return list(lists.parts.items()) if isinstance(lists, Sources) else [(lists.name, lists)]


def _answered(qrels: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """For each document the first query that it is relevant to."""
    found: dict[str, str] = {}
    for query, grades in qrels.items():
        for doc, grade in grades.items():
            if grade > 0:
                found.setdefault(doc, query)
    return found


SPLIT = "train"


class _ExampleQueries:
    """Another source's corpus with the queries and positives of examples as its train split."""

    def __init__(self, source: datasets_source.Source, examples: Iterable[Example]) -> None:
        self._source = source
        self.name = source.name
        self._queries: dict[str, str] = {}
        self._qrels: Qrels = {}
        for example in examples:
            query = example.query.id
            self._queries[query] = example.query.text
            self._qrels.setdefault(query, {}).update(dict.fromkeys(sorted(example.relevant), 1))

    def splits(self) -> list[str]:
        return [SPLIT]

    def places(self, split: str) -> Places:
        place = "the training file"
        return Places(self._source.places(split).corpus, place, place)

    def documents(self) -> Iterator[Document]:
        return self._source.documents()

    def document_count(self) -> int | None:
        return self._source.document_count()

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        return self._queries.items()

    def qrels(self, split: str) -> Qrels:
        return self._qrels


def dataset_of_examples(examples: Iterable[Example], dataset: Dataset) -> Dataset:
    """Return the examples' queries and positives as a train split over the dataset's corpus."""
    source = _ExampleQueries(dataset.source, examples)
    train = Dataset(source, SPLIT, ignore_identical_ids=dataset.ignore_identical_ids)
    train.corpus = dataset.corpus
    return train


def with_negatives(
    examples: Iterable[Example], negatives: Mapping[str, Sequence[str]], texts: Mapping[str, str]
) -> list[Example]:
    """Return the examples with mined negatives behind their own.

    Left out are documents without a text, those that an example has already, those relevant to its
    query, and those whose text is that of one of its positives. They have no teacher's score.
    """
    from sluice.training import Text

    made = []
    for example in examples:
        labelled = list(zip(example.documents, example.labels, strict=True))
        known = {document.id for document, _ in labelled} | example.relevant
        same = {same_text_key(document.text) for document, label in labelled if label > 0}
        found = [
            Text(name, texts[name])
            for name in dict.fromkeys(negatives.get(example.query.id, ()))
            if name in texts and name not in known and same_text_key(texts[name]) not in same
        ]
        made.append(
            replace(
                example,
                documents=(*example.documents, *found),
                labels=(*example.labels, *[0.0] * len(found)),
                scores=(*example.scores, *[float("nan")] * len(found)) if example.scores else (),
                answered=(*example.answered, *[""] * len(found)) if example.answered else (),
            )
        )
    return made
