"""Makes training examples: judgements or files, mined negatives, a teacher's scores.

They are made before training, and again during it where negatives are refreshed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.config.component_types import MINED
from sluice.retrieval.config.sections import TrainingSection
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.source import Qrels
from sluice.retrieval.execution.executor import LOCAL, Executor
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.candidate_lists import (
    NOT_OPENED,
    RANDOM,
    SELF,
    Sources,
    listed,
)
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.example_sources import (
    file_examples,
    searched_with,
    source_of,
    streamed_examples,
)
from sluice.retrieval.training_data.mining import mine_negatives, mining_of, random_lists
from sluice.retrieval.training_data.teachers.distillation import taught

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example, ExampleStream, MinedNegatives
    from sluice.training.negatives.false_negatives import Judge


ENOUGH = 2  # queries kept of a document: one of them may be the example's own


class AnsweredQueries:
    """The first queries that each document answers, by its id and by its text."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[tuple[str, str]]] = {}
        self._by_text: dict[str, list[tuple[str, str]]] = {}

    def add(self, examples: Iterable[Example]) -> None:
        """Note the queries that the examples' positives answer."""
        for example in examples:
            named = example.query.id, example.query.text
            for document, label in zip(example.documents, example.labels, strict=True):
                if label > 0:
                    _note(self._by_id.setdefault(document.id, []), named)
                    _note(self._by_text.setdefault(same_text_key(document.text), []), named)

    def add_judgements(self, dataset: Dataset) -> None:
        """Note the queries of a split that its relevant documents answer."""
        if dataset.split is None:
            return
        for query, grades in dataset.qrels.items():
            text = dataset.queries.get(query)
            for document, grade in grades.items():
                if text is not None and grade > 0:
                    _note(self._by_id.setdefault(document, []), (query, text))

    def other_query(self, example: Example, place: int) -> str:
        """Return another query that one of an example's documents answers; empty without one."""
        document = example.documents[place]
        known = self._by_id.get(document.id, [])
        known = [*known, *self._by_text.get(same_text_key(document.text), [])]
        own = same_text_key(example.query.text)
        for query, text in known:
            if query != example.query.id and same_text_key(text) != own:
                return text
        return ""


def _note(queries: list[tuple[str, str]], named: tuple[str, str]) -> None:
    if len(queries) < ENOUGH and named not in queries:
        queries.append(named)


def with_answered(
    examples: Sequence[Example], dataset: Dataset, files: Sequence[str], seed: int, where: str
) -> list[Example]:
    """Return the examples with a query for every negative that is known to answer one.

    Looked for in what the examples bring, then in their positives, the dataset's judgements and the
    ``files`` of pairs, in this order.
    """
    known = AnsweredQueries()
    known.add(examples)
    known.add_judgements(dataset)
    if files:
        known.add(file_examples({"type": "file", "file": list(files)}, dataset, seed, where=where))
    extended = []
    for example in examples:
        own = example.answered or ("",) * len(example.documents)
        answered = tuple(
            text or ("" if label > 0 else known.other_query(example, place))
            for place, (text, label) in enumerate(zip(own, example.labels, strict=True))
        )
        extended.append(replace(example, answered=answered if any(answered) else ()))
    return extended


log = logging.getLogger("sluice")

Source = Callable[[Any, str], Stage | Run]  # `negatives.retriever` and its key path -> lists
OpenJudge = Callable[[Any, str], "Judge"]


class TrainingExamples:
    """Makes the examples of one run, at its start and at every refresh.

    ``source`` and ``judge`` open what ``negatives`` names, ``model`` maps names of models trained
    in the experiment to folders. With ``answered`` each document comes with another query that it
    answers, where the judgements have one. Without ``scored`` the section's teacher scores
    nothing here. ``read`` are the section's examples where they have been read already; pairs of
    the documents ``left_out`` are not trained on. Reports and provenance go to ``work_path``.
    ``executor`` mines, and asks the teacher.
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
        scored: bool = True,
        read: Sequence[Example] = (),
        left_out: frozenset[str] = frozenset(),
        executor: Executor = LOCAL,
    ) -> None:
        self.section = section
        self.train = train
        self.seed = seed
        self.work_path = work_path
        self.where = where
        self.model = model
        self.answered = answered
        self.scored = scored
        self.read = list(read)
        self.left_out = left_out
        self.executor = executor
        self._texts: dict[str, str] = {}
        self._judge: Judge | None = None
        self._lists: Stage | Run | None = None
        negatives = section.negatives or {}
        retrievers = listed(negatives.get("retriever"))
        self.mined = negatives.get("type") == MINED
        self.asks_self = SELF in retrievers
        self._retrievers = retrievers if self.mined else []
        self._others = [each for each in self._retrievers if each not in NOT_OPENED]
        self._source = source
        if self.mined and negatives.get("judge") is not None:
            self._judge = judge(negatives["judge"], f"{where}negatives.judge")

    @property
    def lists(self) -> Stage | Run | None:
        """The lists that negatives are mined from, without the trained encoder's own.

        Opened on first use: a corpus may have to be indexed.
        """
        if self._lists is None and self._others:
            names = self._others if len(self._others) > 1 else self._others[0]
            self._lists = self._source(names, f"{self.where}negatives.retriever")
        return self._lists

    @property
    def dev_lists(self) -> Stage | Run | None:
        """What a cross-encoder reranks on dev: the lists of negatives, or those of the examples."""
        named = searched_with(self.section.examples)
        if self._others or named is None:
            return self.lists
        return self._source(named, f"{self.where}examples.retriever")

    def make(self, encoder: Any, step: int = 0) -> list[Example] | ExampleStream:
        """Return the examples for training from ``step`` on, with the encoder as it is now.

        Raises ``DataError`` when no query has a positive with a text.
        """
        spec = source_of(self.section)
        stream = streamed_examples(spec, self.train, self.seed, f"{self.where}examples")
        if stream is not None:
            return stream
        if spec is None:
            examples = self._from_judgements(encoder, step)
        else:
            examples = self._from_section(spec, encoder, step)
        if not examples:
            raise DataError(
                f"{self.train.name}: the corpus has no text of a relevant document for any "
                "training query"
            )
        if self.answered:
            files = [] if self.section.answered is None else listed(self.section.answered)
            where = f"{self.where}answered"
            examples = with_answered(examples, self.train, files, self.seed, where)
        teacher = self.section.teacher
        if teacher is not None and self.scored:
            where = f"{self.where}teacher"
            folder = self.work_path if step == 0 else self.work_path / f"teacher-{step}"
            examples = taught(
                examples, teacher, work_path=folder, model=self.model, corpus=self.corpus_texts,
                where=where, executor=self.executor,
            )  # fmt: skip
        return examples

    def _from_section(self, spec: Mapping[str, Any], encoder: Any, step: int) -> list[Example]:
        """Examples of a section ``examples``, with negatives mined for their queries, if any."""
        where = f"{self.where}examples"
        examples = self.read or [
            example
            for example in file_examples(
                spec,
                self.train,
                self.seed,
                epoch=step,
                where=where,
                open_lists=self._source,
                folder=self.work_path,
            )
            if example.relevant.isdisjoint(self.left_out)
        ]
        if not self.mined:
            return examples
        mined = self._mine(encoder, step, dataset_of_examples(examples, self.train))
        texts = self._read({doc for docs in mined.negatives.values() for doc in docs})
        return list(mined.consistent(with_negatives(examples, mined.negatives, texts)))

    def _from_judgements(self, encoder: Any, step: int) -> list[Example]:
        from sluice.training import pair_examples

        train = self.train
        mined = self._mine(encoder, step, train) if self.mined else None
        negatives: Mapping[str, Sequence[str]] = {} if mined is None else mined.negatives
        qrels = {query: grades for query, grades in train.qrels.items() if query in train.queries}
        needed = {doc for grades in qrels.values() for doc, grade in grades.items() if grade > 0}
        needed.update(doc for docs in negatives.values() for doc in docs)
        texts = self._read(needed)
        absent = needed - texts.keys()
        if absent:
            log.warning(
                "%s: left out %d of %d documents named by qrels or negatives: not in the corpus "
                "(%s)", train.name, len(absent), len(needed), ", ".join(sorted(absent)[:3]),
            )  # fmt: skip
            qrels = {q: {d: g for d, g in each.items() if d in texts} for q, each in qrels.items()}
            negatives = {q: [d for d in docs if d in texts] for q, docs in negatives.items()}
        examples = pair_examples(
            train.queries,
            qrels,
            texts,
            negatives,
            each=self.section.positives,
            labels=self.section.labels,
            answered=_answered(qrels) if self.answered else None,
            seed=self.seed,
        )
        return list(examples if mined is None else mined.consistent(examples))

    def _mine(self, encoder: Any, step: int, dataset: Dataset) -> MinedNegatives:
        from sluice.training.batches.processes import rank
        from sluice.training.negatives.report import write_provenance

        lists = self._all_lists(encoder, step, dataset)
        spec = {k: v for k, v in (self.section.negatives or {}).items() if k != "refresh"}
        suffix = f"-{step}" if step else ""
        number = rank()  # under torchrun each process mines: the first with the executor
        mined = mine_negatives(
            lists, dataset, spec, seed=self.seed + step, judge=self._judge,
            work=self.work_path / f"mining{suffix}.{number or ''}parts",
            executor=LOCAL if number else self.executor,
        )  # fmt: skip
        log.info("mined negatives: %s", mined.report)
        write_json(self.work_path / f"mining{suffix}.json", mined.report.as_dict())
        write_provenance(self.work_path / f"negatives{suffix}.parquet", mined)
        return mined

    def _all_lists(self, encoder: Any, step: int, dataset: Dataset) -> Stage | Run:
        """Return the lists of every retriever named, those of the encoder itself as it is now."""
        lists = self.lists
        added: list[tuple[str, Stage | Run]] = []
        if self.asks_self:
            added.append((SELF, Retriever.build(encoder, self.train.corpus, name=SELF)))
        negatives = self.section.negatives or {}
        if RANDOM in self._retrievers:
            plain = {key: value for key, value in negatives.items() if key != "refresh"}
            mining = mining_of(plain, f"{self.where}negatives")
            added.append((RANDOM, random_lists(dataset, mining, self.seed + step)))
        parts = [] if lists is None else [(lists.name, lists)]
        if isinstance(lists, Sources):
            parts = list(lists.parts.items())
        if negatives.get("shares") is None:
            parts += added
        else:  # in the order of their shares
            for place, name in enumerate(self._retrievers):
                parts[place:place] = [one for one in added if one[0] == name]
        if not parts:  # checked before: a section without a retriever is refused
            raise DataError(f"{self.where}negatives: no lists to mine from")
        return parts[0][1] if len(parts) == 1 else Sources(parts)

    def corpus_texts(self) -> Iterator[str]:
        """Stream the texts of all documents."""
        return (document.full_text for document in self.train.corpus)

    def _read(self, ids: set[str]) -> dict[str, str]:
        """Return documents' texts; the corpus is streamed again only for new ones."""
        if not ids <= self._texts.keys():
            self._texts |= {d.id: d.full_text for d in self.train.corpus if d.id in ids}
        return {doc: text for doc, text in self._texts.items() if doc in ids}


def _answered(qrels: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Return for each document the first query that it is relevant to."""
    queries: dict[str, str] = {}
    for query, grades in qrels.items():
        for doc, grade in grades.items():
            if grade > 0:
                queries.setdefault(doc, query)
    return queries


def dataset_of_examples(examples: Iterable[Example], dataset: Dataset) -> Dataset:
    """Return the examples' queries and positives as a train split over the dataset's corpus."""
    queries: dict[str, str] = {}
    qrels: Qrels = {}
    for example in examples:
        queries[example.query.id] = example.query.text
        positives = dict.fromkeys(sorted(example.relevant), 1)
        qrels.setdefault(example.query.id, {}).update(positives)
    train = Dataset.from_memory((), queries, qrels, name=dataset.name, split="train")
    train.ignore_identical_ids = dataset.ignore_identical_ids
    train.corpus = dataset.corpus
    return train


def with_negatives(
    examples: Iterable[Example], negatives: Mapping[str, Sequence[str]], texts: Mapping[str, str]
) -> list[Example]:
    """Return the examples with mined negatives after their own.

    Left out are documents without a text, those that an example has already, those relevant to its
    query, and those with the text of one of its positives. Mined ones have no teacher's score.
    """
    from sluice.training import Text

    extended = []
    for example in examples:
        labelled = list(zip(example.documents, example.labels, strict=True))
        known = {document.id for document, _ in labelled} | example.relevant
        same = {same_text_key(document.text) for document, label in labelled if label > 0}
        mined = [
            Text(name, texts[name])
            for name in dict.fromkeys(negatives.get(example.query.id, ()))
            if name in texts and name not in known and same_text_key(texts[name]) not in same
        ]
        extended.append(
            replace(
                example,
                documents=(*example.documents, *mined),
                labels=(*example.labels, *[0.0] * len(mined)),
                scores=(*example.scores, *[float("nan")] * len(mined)) if example.scores else (),
                answered=(*example.answered, *[""] * len(mined)) if example.answered else (),
            )
        )
    return extended
