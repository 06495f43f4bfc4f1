"""The facts of a training run that its rules are about, computed once from a parsed section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.encoders.dense.experts.names import checked_experts
from sluice.encoders.foundation.build import resolve
from sluice.encoders.table import KNOWN, MATCHING, WAYS, TuningTraits
from sluice.encoders.transformer.from_scratch import is_untrained
from sluice.encoders.tuning.learning import refused_tuning
from sluice.retrieval.config.components import START_KEY, towers_in
from sluice.retrieval.config.sections import TrainConfig, TrainingSection
from sluice.retrieval.experiments.training.parts import names_of
from sluice.retrieval.retrievers.candidate_lists import listed
from sluice.retrieval.training_data.example_sources import searched_with
from sluice.retrieval.training_data.own_pairs import OF_CORPUS
from sluice.training.negatives.settings import Mining
from sluice.training.rules import Fault, TrainingFacts, first_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(TrainingFacts):
    """The facts of a training run that a config describes: its section, and what was made of it.

    ``mining`` is what ``negatives`` of type mined describes. Without a dataset, as ``with_dataset``
    says, a cross-encoder is evaluated over its examples' documents.
    ``part``: it is the part of one of several datasets, with what that has of its own.
    """

    section: TrainingSection
    mining: Mining | None
    with_dataset: bool
    part: bool = False

    @property
    def encoder(self) -> Mapping[str, Any]:
        """The component of the encoder."""
        return self.section.encoder

    @property
    def alone(self) -> bool:
        """Whether it is a config of its own, and no part of an experiment."""
        return isinstance(self.section, TrainConfig)

    @property
    def untrained(self) -> bool:
        """Whether training begins with random weights."""
        return is_untrained(self.encoder.get(START_KEY))

    @property
    def towers(self) -> Mapping[str, Mapping[str, Any]]:
        """The components of separate towers, by side; those of a folder are not known."""
        return towers_in(self.encoder)

    @property
    def two_towers(self) -> bool:
        """Whether the sides are encoded by separate towers, here or in a folder."""
        known = KNOWN.get(str(self.encoder.get("type")))
        return known is not None and bool(known.sides)

    @property
    def frozen(self) -> str:
        """Which tower is frozen."""
        return str(self.encoder.get("freeze", "none"))

    @property
    def differentiable(self) -> bool:
        """Whether a ranker over token vectors could train these."""
        return bool(
            resolve(MATCHING[self.kind].removesuffix(".from_pretrained")).head.differentiable
        )

    @property
    def tuning(self) -> str:
        """The type of tuning; empty where all parameters are tuned."""
        return str((self.section.tuning or {}).get("type", ""))

    @property
    def way(self) -> TuningTraits:
        """What is known of that way of tuning."""
        return WAYS.get(self.tuning, TuningTraits(""))

    @property
    def refused_tuning(self) -> str:
        """Why the encoder does not take this tuning; empty if it does."""
        return refused_tuning(self.kind, self.tuning)

    @property
    def negatives(self) -> Mapping[str, Any]:
        """The section ``negatives``; empty without."""
        return self.section.negatives or {}

    @property
    def retrievers(self) -> list[Any]:
        """What the negatives are mined from; empty without."""
        named = self.negatives.get("retriever")
        return [] if named is None else listed(named)

    @property
    def refreshed(self) -> bool:
        """Whether mined negatives are mined again."""
        return self.mining is not None and self.negatives.get("refresh") is not None

    @property
    def examples(self) -> str:
        """The type of the examples; empty where they are the dataset's judgements."""
        spec = self.section.examples
        return "" if spec is None else str(spec.get("type", "file"))

    @property
    def examples_or_missing(self) -> str:
        """The type of the examples, in words."""
        return self.examples or "missing"

    @property
    def own_examples(self) -> Mapping[str, Any]:
        """The section ``examples``; empty without."""
        return self.section.examples or {}

    @property
    def of_corpus(self) -> list[str]:
        """The types of examples that are made from a corpus."""
        return OF_CORPUS

    @property
    def of_judgements(self) -> Fault:
        """The first setting of examples made from judgements that is not at its default."""
        usual = (("positives", 1), ("labels", "binary"))
        return first_of({"key": key} for key, value in usual if getattr(self.section, key) != value)

    @property
    def searched(self) -> Any:
        """What the examples are searched with; None: nothing."""
        return searched_with(self.section.examples)

    @property
    def datasets(self) -> list[str]:
        """The short names of the datasets that are listed."""
        return names_of(self.section.datasets or [])

    @property
    def experts(self) -> tuple[str, ...]:
        """The datasets that the encoder to train has experts for."""
        named = self.encoder.get("experts") if self.learning.experts else None
        return () if named is None else checked_experts(named, self.encoder.get("gate_learns"))[0]

    @property
    def count(self) -> int:
        """How many experts there are."""
        return len(self.experts)

    @property
    def reranks(self) -> bool:
        """Whether dev queries are measured by reranking what a retriever finds."""
        reranker = bool(self.learns & {"scores", "rankings"})
        return reranker and self.section.evaluate is not None and self.with_dataset

    @property
    def penalty_of_queries(self) -> Fault:
        """The first key of ``sparsity`` that is about queries."""
        return self.first_set("query", "target_query_terms", of=self.section.sparsity or {})

    def first_set(self, *keys: str, of: Mapping[str, Any] | None = None) -> Fault:
        """Return the first of the keys that the section, or a part of it, has a value for."""
        values = dict(self.section) if of is None else of
        return first_of({"key": key} for key in keys if values.get(key) is not None)
