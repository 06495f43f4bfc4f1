"""``examples: {type: generated}``: queries that a language model writes; soft prompts for it."""

from __future__ import annotations

import hashlib
import heapq
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.encoders.model_files.locate import model_folder
from sluice.retrieval.config.file_keys import path_contents
from sluice.retrieval.datasets.source import find_split
from sluice.retrieval.training_data.files.examples import FileExamples
from sluice.retrieval.training_data.files.rows import ExampleSource
from sluice.retrieval.training_data.written.query_generation import generate_queries

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example
    from sluice.training.generation.query_generation import ModelGenerator
    from sluice.training.generation.query_prompt import PromptTuning, SoftPrompt


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
    from sluice.training.generation.query_prompt import FACTS, Shot, SoftPrompt

    if (folder / FACTS).exists():
        return SoftPrompt.load(folder)
    state = folder.with_name(f"{folder.name}.state")
    shown = [Shot(pair.text, pair.query_text) for pair in pairs]
    cut = len(shown) - held_out(len(shown))
    soft = learn_prompt(tuning, generator, shown[:cut], shown[cut:], seed=seed, state=state)
    soft.save(folder)
    state.unlink(missing_ok=True)
    return soft


log = logging.getLogger("sluice")

PAIRS = 50
LENGTH = 32
# Settings of a soft prompt, which do nothing without one.
OF_PROMPT = ("tokens", "text", "shots", "choices", "epochs", "learning_rate", "batch", "patience")


@dataclass(frozen=True, slots=True)
class GeneratedExamples(ExampleSource):
    """SPTAR: queries of a language model with a soft prompt learnt on a few judgements.

    Of the train split's judgements ``pairs`` are drawn by seed, a query and its best document each.
    A soft prompt is learnt on four fifths of them with the frozen ``model``, and chosen by the
    rest (see ``sluice.training.generation.query_prompt``); the model then writes ``queries``
    queries for each of ``documents`` other documents, drawn by seed. One is kept where BM25 finds
    its document among the first ``consistency``; null keeps all. With ``judgements`` the pairs are
    learnt too. ``pairs: 0`` writes without a soft prompt. What is learnt and written is kept beside
    the training run, and a killed one continues from there.
    (Peng et al. 2023, arXiv 2307.08303.)
    """

    model: Annotated[
        str, "The language model that writes: a decoder, or an encoder with a decoder."
    ]
    pairs: Annotated[
        int,
        "Judgements of the train split that a soft prompt is learnt on, drawn by seed; 0: "
        "none, and no soft prompt.",
    ] = PAIRS
    documents: Annotated[
        int | None, "Documents that queries are written for, drawn by seed; left out, all."
    ] = None
    queries: Annotated[int, "Queries written for each document."] = 1
    consistency: Annotated[
        int | None,
        "Keeps a query if BM25 ranks its document among the first so many; null: keeps all.",
    ] = 30
    judgements: Annotated[
        bool | None, "Whether the pairs are learnt beside the queries; left out, they are."
    ] = None
    prompt: Annotated[
        str | None,
        "The text around a document, with {text} for it; left out, 'Document: {text}' and "
        "'Query:' with a soft prompt.",
    ] = None
    document_length: Annotated[
        int | None,
        "Most tokens of a document; left out, as many as the model has room for, up to 384.",
    ] = None
    length: Annotated[int, "Most tokens of a query."] = LENGTH
    tokens: Annotated[int | None, "Vectors of the soft prompt; left out, 50."] = None
    text: Annotated[str | None, "The text whose embeddings the soft prompt begins as."] = None
    shots: Annotated[int | None, "Example pairs shown before each document; left out, 2."] = None
    choices: Annotated[
        int | None, "Groups of examples of which the held-out pairs choose one; left out, 10."
    ] = None
    epochs: Annotated[int | None, "Most epochs over the pairs; left out, 100."] = None
    learning_rate: Annotated[
        float | None, "Of the soft prompt, falling linearly; left out, 0.03."
    ] = None
    batch: Annotated[int | None, "Pairs in a step; left out, 1."] = None
    patience: Annotated[
        int | None, "Epochs without a lower loss of the held-out pairs before it ends; left out, 5."
    ] = None
    device: Annotated[str, "Where the language model runs: cpu, cuda, ..."] = "cpu"

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"model: {self.model!r}; expected a language model's folder or id")
        if self.pairs != 0:
            whole_number(self.pairs, "pairs", 5)  # a fifth is held out
        for name in ("documents", "queries", "consistency"):
            if name == "queries" or getattr(self, name) is not None:
                whole_number(getattr(self, name), name, 1)
        self.tuning()  # checks the soft prompt's settings, and those it has in common
        if self.prompt is not None and "{text}" not in self.prompt:
            raise ConfigError(f"prompt: {self.prompt!r}; expected {{text}} where the document goes")
        for name in () if self.pairs else (*OF_PROMPT, "judgements"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"{name}: is of the judgements that a soft prompt is learnt on, and pairs: 0 "
                    "takes none; leave it out"
                )
        shots = 2 if self.shots is None else self.shots
        if self.pairs and self.pairs - held_out(self.pairs) <= shots:
            raise ConfigError(
                f"shots: {shots} examples beside each of {self.pairs - held_out(self.pairs)} pairs "
                "that are learnt from; lower shots, or raise pairs"
            )
        if self.choices is not None and shots == 0:
            raise ConfigError(
                "choices: with shots: 0 the prompt has no examples to choose; leave it out"
            )

    @property
    def models(self) -> Sequence[str]:
        """The language model."""
        return (self.model,)

    @property
    def keeps(self) -> bool:
        """It keeps the soft prompt and the queries."""
        return True

    def tuning(self) -> PromptTuning:
        """Return the settings of the soft prompt."""
        from sluice.training.generation.query_prompt import PromptTuning

        own = {name: getattr(self, name) for name in (*OF_PROMPT, "prompt", "document_length")}
        options = {name: value for name, value in own.items() if value is not None}
        return PromptTuning(**options, length=self.length)

    def examples(self, dataset: Dataset, seed: int, folder: Path | None) -> list[Example]:
        """Return the examples: the pairs, then the queries written; ``DataError`` for none.

        ``dataset`` is the train split; ``folder`` keeps the soft prompt and the queries.
        """
        if folder is None:
            raise ConfigError("examples: generated queries need a folder to be kept in")
        pairs = self._pairs(dataset, seed)
        known = {pair.document for pair in pairs}
        chosen, contents = drawn_documents(dataset, self.documents, known, seed)
        settings = {name: getattr(self, name) for name in self.__dataclass_fields__}
        del settings["judgements"]  # which decides what is learnt from, not what is written
        key = fingerprint_of(self._model_contents(), settings, seed, pairs, contents)[:12]
        output = folder / f"generated-{key}.jsonl"
        if output.exists():
            log.info("%s: the queries are written already", output)
        else:
            self._write(dataset, pairs, chosen, seed, output)
        if output.stat().st_size == 0:
            raise DataError(
                f"examples: BM25 finds the document of none of the written queries among its first "
                f"{self.consistency}; raise consistency, or take a larger model ({output} is empty)"
            )
        written = FileExamples(str(output)).examples(dataset, seed)
        own = [] if self.judgements is False else [pair.example() for pair in pairs]
        return [*own, *written]

    def _model_contents(self) -> str | None:
        return path_contents(str(model_folder(self.model)))

    def _pairs(self, dataset: Dataset, seed: int) -> list[Labelled]:
        if not self.pairs:
            return []
        if dataset.split is None:
            if find_split("train", dataset.splits) is None:
                raise DataError(
                    f"{dataset.name}: examples.pairs: it has no train split to take judgements "
                    "from; pairs: 0 writes queries without a soft prompt"
                )
            dataset = dataset.with_split("train")
        return labelled_pairs(dataset, self.pairs, seed)

    def _write(
        self,
        dataset: Dataset,
        pairs: Sequence[Labelled],
        chosen: frozenset[str],
        seed: int,
        output: Path,
    ) -> None:
        """Learn the prompt and write the queries."""
        from sluice.training.generation.decoding import DiverseBeams
        from sluice.training.generation.query_generation import ModelGenerator

        by = DiverseBeams(groups=self.queries, beams=1, length=self.length)
        options: dict[str, Any] = {"by": by, "seed": seed, "device": self.device}
        output.parent.mkdir(parents=True, exist_ok=True)
        if pairs:
            generator = ModelGenerator.from_pretrained(self.model, **options)
            tuning, steps = self.tuning(), len(pairs) - held_out(len(pairs))
            key = fingerprint_of(self._model_contents(), repr(tuning), seed, pairs)[:12]
            where = output.with_name(f"prompt-{key}")
            log.info(
                "examples: a soft prompt is learnt from %s in up to %s of %s each, then %s for %s",
                plural(steps, "pair"), plural(tuning.epochs, "epoch"),
                plural(-(-steps // tuning.batch), "step"), plural(self.queries, "query"),
                plural(len(chosen), "document"),
            )  # fmt: skip
            soft = learnt_prompt(generator, tuning, pairs, where, seed=seed)
            generator = ModelGenerator(
                generator.model, generator.tokenizer, soft=soft, name=self.model, **options
            )
        else:
            options |= {"prompt": self.prompt, "document_length": self.document_length}
            generator = ModelGenerator.from_pretrained(self.model, **options)
        report = generate_queries(
            generator, dataset, output, consistency=self.consistency, only=chosen
        )
        log.info("examples: %s", report)


def drawn_documents(
    dataset: Dataset, count: int | None, known: set[str], seed: int
) -> tuple[frozenset[str], str]:
    """Return ids of ``count`` documents that have a text and are not ``known``, drawn by seed.

    Also a hash of their texts and of the number of all, which decides what is written for them.
    """

    def drawn() -> Iterator[tuple[bytes, str, bytes]]:
        for document in dataset.corpus:
            if document.id not in known and document.full_text.strip():
                by = hashlib.blake2b(f"{seed}\0{document.id}".encode(), digest_size=8).digest()
                text = hashlib.blake2b(document.full_text.encode("utf-8", "surrogatepass"))
                yield by, document.id, text.digest()

    least = sorted(drawn()) if count is None else heapq.nsmallest(count, drawn())
    if not least:
        raise DataError(
            f"{dataset.name}: no document with a text is left to write queries for beside those of "
            "the pairs; lower pairs"
        )
    contents = hashlib.blake2b(b"".join(text for _, _, text in least)).hexdigest()
    return frozenset(name for _, name, _ in least), contents
