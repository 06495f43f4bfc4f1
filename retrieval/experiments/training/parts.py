"""The datasets of a training run: the splits, examples and dev evaluation of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import encoder_of, prompted
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.config.components import make_loss
from sluice.retrieval.config.output_names import short_name
from sluice.retrieval.config.sections import TrainingSection
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.execution.executor import LOCAL, Executor, unplanned
from sluice.retrieval.experiments.training.dev_evaluation import (
    PAIR_DEPTH,
    Evaluate,
    dev_depth,
    dev_evaluation,
)
from sluice.retrieval.retrievers.candidate_lists import run_on
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.training_data.example_sources import refuse_unlearnable
from sluice.retrieval.training_data.examples import OpenJudge, Source, TrainingExamples
from sluice.retrieval.training_data.own_pairs import TrainingData, training_data
from sluice.training.batches.stream import Examples, ExampleStream, by_source, collected
from sluice.training.losses.base import compares_own, taught_by_batch, type_name
from sluice.training.protocol import DevMeasures, PairEncoder

if TYPE_CHECKING:
    from sluice.training import Example
    from sluice.training.losses.base import LossBase

FOLDER = "datasets"  # in the work folder: what each of several datasets has


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """A dataset to train on, and what opens ranked lists over its corpus.

    ``open_dataset`` returns None where the examples bring all texts. ``name`` tells several apart.
    ``executor`` mines negatives and asks the teacher.
    """

    open_dataset: Callable[[], Dataset | None]
    source: Source
    name: str = ""
    executor: Executor = LOCAL


@dataclass(frozen=True, slots=True)
class Part:
    """What is trained on of one collection, and what makes its examples."""

    name: str
    data: TrainingData
    maker: TrainingExamples
    with_dataset: bool
    prompts: Mapping[str, str] = field(default_factory=dict)

    def view(self, encoder: Any) -> Any:
        """Return the encoder of this collection's texts: its expert, with its prompts."""
        return prompted(encoder_of(encoder, self.name), self.prompts)


def names_of(datasets: Sequence[str | Mapping[str, Any]]) -> list[str]:
    """Return a short name for each dataset, every one another: ``scifact``, ``scifact-2``."""
    names: list[str] = []
    for dataset in datasets:
        name = plain = short_name(dataset)
        number = 1
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


def opened_parts(
    section: TrainingSection,
    collections: Sequence[TrainingSet],
    *,
    seed: int,
    work_path: Path,
    where: str,
    judge: OpenJudge,
    model: Callable[[str], str],
    loss: LossBase,
) -> list[Part]:
    """Open the splits of every collection, and what makes its examples, for its loss."""
    from sluice.training.losses.composed.by_source import loss_of

    parts = []
    for each in collections:
        own, its = section.of(each.name), loss_of(loss, each.name)
        dataset = each.open_dataset()
        folder = work_path / FOLDER / each.name if len(collections) > 1 else work_path
        data = training_data(own, dataset, seed, where, each.source, folder)
        maker = TrainingExamples(
            own, data.train, seed=seed, where=where, source=each.source, judge=judge,
            model=model, answered="answered" in its.wants,
            scored=its.needs_teacher or not taught_by_batch(its), read=data.examples,
            left_out=data.left_out, work_path=folder, executor=each.executor,
        )  # fmt: skip
        prompts = (section.dataset_prompts or {}).get(each.name, {})
        parts.append(Part(each.name, data, maker, dataset is not None, prompts))
    return parts


def corpus_texts(parts: Sequence[Part]) -> Iterator[str]:
    """Yield the texts of every document of every corpus."""
    return (document.full_text for part in parts for document in part.data.train.corpus)


def made_examples(parts: Sequence[Part], encoder: Any, step: int = 0) -> Examples:
    """Return the examples of all parts for training from ``step`` on.

    Of several parts each example has its dataset as ``source``, and before its ids, which may be
    another document's elsewhere.
    """
    with unplanned():  # a model is trained before what is planned with it
        if len(parts) == 1:
            return collected(parts[0].maker.make(encoder, step))
        made: dict[str, Any] = {}
        for part in parts:
            own, named = part.maker.make(part.view(encoder), step), partial(_of, part.name)
            made[part.name] = (
                own.each(named, part.name)
                if isinstance(own, ExampleStream)
                else [named(each) for each in own]
            )
        return collected(made)


def _of(name: str, example: Example) -> Example:
    from sluice.training import Text

    return replace(
        example,
        query=Text(f"{name}/{example.query.id}", example.query.text),
        documents=tuple(Text(f"{name}/{each.id}", each.text) for each in example.documents),
        relevant=frozenset(f"{name}/{each}" for each in example.relevant),
        source=name,
    )


def loss_in(section: TrainingSection, where: str) -> LossBase:
    """Return the loss of a section, or where datasets have their own, one by dataset."""
    if not any(own.loss for own in (section.by_dataset or {}).values()):
        return make_loss(section.loss, where=f"{where}loss")
    from sluice.training.losses.composed.by_source import BySource

    names = names_of(section.datasets or [])
    return BySource({
        name: make_loss(section.of(name).loss, where=f"{where}by_dataset.{name}.loss")
        for name in names
    })  # fmt: skip


def check_learnable(examples: Examples, encoder: Any, loss: LossBase, where: str) -> None:
    """Raise ``DataError`` where a loss tells apart documents of one query, and none has several."""
    from sluice.training.losses.composed.by_source import loss_of

    for source, own in by_source(examples).items():
        its = loss_of(loss, source)
        if isinstance(encoder, PairEncoder) or compares_own(its):
            alone = f"{type_name(its)} learns from each query's own documents"
            across = "across_queries" in its.wants
            refuse_unlearnable(own, alone, f"{where}examples", across=across)


def evaluation_of(
    parts: Sequence[Part], section: TrainingSection, *, seed: int, reranks: bool, where: str
) -> Evaluate:
    """Return the dev evaluation of the parts: of several their mean, then each one's measures.

    The mean is over the parts that are ``judged``, where some are. ``reranks``: a cross-encoder is
    trained, which reranks what the negatives' retriever finds, or without one the examples'.
    """
    if section.evaluate is None:
        raise ConfigError(f"{where}evaluate: missing; there is nothing to evaluate by")
    evaluations: dict[str, Evaluate] = {}
    for part in parts:
        candidates = None
        if reranks:
            lists = _by_words(part.data.dev) if part.data.held_out else part.maker.dev_lists
            if lists is None:
                raise ConfigError(
                    f"{where}evaluate: a reranker reranks what a retriever finds; "
                    "give negatives or examples.retriever, or leave evaluate out"
                )
            depth = max(PAIR_DEPTH, dev_depth(section.evaluate))
            candidates = run_on(lists, part.data.dev, depth)
        evaluations[part.name] = _seen_by(part, dev_evaluation(
            part.data.dev,
            section.evaluate,
            seed=seed,
            candidates=candidates,
            bfloat16=bool(section.trainer.get("bf16")) and "dtype" not in section.encoder,
        ))  # fmt: skip
    if len(parts) == 1:
        return evaluations[parts[0].name]
    over = [part.name for part in parts if judged(part, section)]
    return mean_evaluation(evaluations, over or list(evaluations))


def _seen_by(part: Part, evaluate: Evaluate) -> Evaluate:
    """Return an evaluation by the encoder of a part's texts."""
    return evaluate if not part.prompts else lambda e: evaluate(prompted(e, part.prompts))


def judged(part: Part, section: TrainingSection) -> bool:
    """Return whether a part's dev queries may choose the model.

    Those that are made from the corpus may only where ``evaluate.by`` says so: a model can get
    better at them and worse at real ones (docs/training.md).
    """
    by = None if section.evaluate is None else section.evaluate.by
    return by == "examples" or not part.data.left_out


def mean_evaluation(evaluations: Mapping[str, Evaluate], over: Sequence[str]) -> Evaluate:
    """Return an evaluation of the means ``over`` some of the evaluations, and each one's own.

    The measure ``nDCG@10`` of a dataset is ``nDCG@10 NAME``. Every query's value, where all know
    theirs, is weighed so that their mean is that of the datasets.
    """

    def measured(encoder: Any) -> Mapping[str, float]:
        each = {name: evaluate(encoder_of(encoder, name)) for name, evaluate in evaluations.items()}
        first = each[over[0]]
        means = {measure: fmean(each[name][measure] for name in over) for measure in first}
        own = {
            f"{measure} {name}": values[measure]
            for measure in first
            for name, values in each.items()
        }
        chosen = [each[name] for name in over]
        known = [values.by_query for values in chosen if isinstance(values, DevMeasures)]
        if len(known) < len(over):
            return {**means, **own}
        queries = sum(map(len, known))
        weighed = [
            value * queries / (len(values) * len(known)) for values in known for value in values
        ]
        return DevMeasures({**means, **own}, weighed)

    return measured


def _by_words(dev: Dataset) -> Retriever:
    """Return BM25 over a corpus in memory, which finds what a cross-encoder reranks."""
    from sluice.encoders.lexical.bm25 import BM25Encoder

    return Retriever.build(BM25Encoder(), dev.corpus)


def judged_by(parts: Sequence[Part]) -> str:
    """Return what chooses the model, in words: whose judgements, or examples held out."""
    said = []
    for part in parts:
        dev, count = part.data.dev, plural(len(part.data.dev.queries), "query")
        if part.data.left_out:
            said.append(f"{count} made from held-out documents of {dev.name}, without judgements")
        elif part.data.held_out:
            said.append(f"{count} held out of the examples of {dev.name}")
        else:
            said.append(f"judgements of {count} of {dev.name}")
    return "; ".join(said)
