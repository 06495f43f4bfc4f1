"""The sections of a YAML file, and what each key means: editors show the descriptions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.config.component_types import (
    REFUSED,
    AsSection as AsSection,
    DatasetName,
    Encoder,
    ExecutorSpec,
    IndexSpec,
    LaunchSpec,
    Measures,
    Ranker,
    Scorer,
    Section as Section,
)
from sluice.retrieval.config.output_names import expanded_output
from sluice.retrieval.config.reading import (  # most of the project reads configs from here
    ConfigSource as ConfigSource,
    checked as checked,
    config_of as config_of,
    find_own_modules as find_own_modules,
    load_config as load_config,
    load_values as load_values,
    named_file as named_file,
)
from sluice.retrieval.config.training_section import (
    DevSection as DevSection,
    FreezeSection as FreezeSection,
    TrainingSection as TrainingSection,
)
from sluice.retrieval.config.variants import VariantsSection as VariantsSection
from sluice.retrieval.evaluation.comparison import Correction, SignificanceTest, Test
from sluice.retrieval.retrievers.corpus.encoding import Encoding
from sluice.retrieval.retrievers.corpus.passages import Passages
from sluice.retrieval.retrievers.shards.store import MOST

TESTING = SignificanceTest()  # its defaults are the config's


@dataclass(frozen=True, slots=True)
class CachedEncoding(Encoding):
    """How an experiment encodes a corpus; vectors are cached by default."""

    cache: bool | str | Path | None = True


class PruneSection(Section):
    """Leaves documents of low quality out of the index."""

    scores: str | None = Field(
        default=None,
        description="The file of quality scores that `sluice fit quality` writes; or give model.",
    )
    model: str | None = Field(
        default=None,
        description="A model of documents' quality, which scores them before they are encoded: a "
        "name under train (examples: {type: quality}), a folder, or a language model.",
    )
    share: float = Field(
        ge=0, lt=1, description="The share of documents left out: those with the lowest scores."
    )

    @model_validator(mode="after")
    def _either(self) -> PruneSection:
        if (self.scores is None) == (self.model is None):
            raise PydanticCustomError(
                REFUSED, "expected either scores, a file, or model, which makes them"
            )
        return self


class RetrieverSection(Section):
    """An encoder, and the index that its vectors go to."""

    encoder: Encoder = Field(description="What turns texts into vectors.")
    index: IndexSpec | None = Field(
        default=None,
        description="What holds and searches the vectors; left out, flat for dense vectors and "
        "inverted for sparse ones.",
    )
    encoding: Annotated[CachedEncoding, AsSection()] | None = Field(
        default=None, description="How the corpus is encoded and stored."
    )
    passages: Annotated[Passages, AsSection()] | None = Field(
        default=None, description="Cuts long documents, so that all of their text is read."
    )
    prune: PruneSection | None = Field(
        default=None, description="Leaves documents of low quality out of the index."
    )
    shards: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Parts the collection over so many folders, each a retriever's, whose results "
        "together are those of the whole.",
    )
    shard_size: int | None = Field(
        default=None, ge=1, description="The documents of a shard, in place of shards."
    )
    search: dict[str, Any] = Field(
        default_factory=dict,
        description="Search parameters of the index, such as alpha or nprobe, and of shards "
        "partial, deadline_ms and hedge_ms; changing them does not rebuild it.",
    )

    @property
    def as_built(self) -> RetrieverSection:
        """The section of what lies in the retriever's folder: without ``search``."""
        return self.model_copy(update={"search": {}})

    @property
    def sharded(self) -> bool:
        """Whether the collection is split over several folders."""
        return self.shards is not None or self.shard_size is not None

    @model_validator(mode="after")
    def _one_way_to_part(self) -> RetrieverSection:
        if self.shards is not None and self.shard_size is not None:
            raise PydanticCustomError(
                REFUSED, "expected either shards, their number, or shard_size, the documents of one"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _of_encoder(cls, value: Any) -> Any:
        """Read ``bm25: bm25`` as a retriever of that encoder, ``dense: NAME`` of that model."""
        if isinstance(value, dict) and "encoder" not in value and {"type", "model"} & value.keys():
            raise PydanticCustomError(
                REFUSED, "keys of an encoder; write them one level below: encoder: {...}"
            )
        return {"encoder": value} if isinstance(value, str) else value


class EvaluateSection(Section):
    """What is measured, on which split, against which baseline."""

    measures: Measures = Field(
        default=["nDCG@10", "R@100"],
        min_length=1,
        description="Measures such as nDCG@10, R@100, RR@10, AP: `sluice config list measures`.",
    )
    baseline: str | None = Field(
        default=None, description="The pipeline that the others are compared with."
    )
    split: str = Field(default="test", description="The split that is evaluated on.")
    test: Test = Field(
        default=TESTING.test, description="The significance test of differences to the baseline."
    )
    correction: Correction = Field(
        default=TESTING.correction, description="The correction for testing several pipelines."
    )
    alpha: float = Field(
        default=TESTING.alpha, gt=0, lt=1, description="The level of significance."
    )
    latency_queries: int = Field(
        default=200, ge=0, description="Queries that are timed one at a time; 0 times none."
    )
    report: bool = Field(
        default=True, description="Whether the command line ends with the page report.html."
    )

    @property
    def testing(self) -> SignificanceTest:
        """How differences to the baseline are tested."""
        return SignificanceTest(self.test, self.correction, self.alpha)


class RankerSection(Section):
    """``sluice fit ranker``: a ranker learnt from features, that reranks ``candidates``."""

    candidates: str = Field(description="The pipeline or retriever whose results are reranked.")
    stages: list[str] = Field(
        default_factory=list,
        description="Retrievers or pipelines whose scores and ranks are features.",
    )
    depth: int = Field(default=200, ge=1, description="Candidates of each query.")
    model: Ranker = Field(
        default="auto",
        description="The model: auto, linear, lightgbm, or one of these with its settings.",
    )
    features: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Patterns of the features to use, such as dense.*; left out, all of them.",
    )
    split: str = Field(default="train", description="The split that the ranker learns from.")
    language: str = Field(
        default="en", description="The language of the texts, for the features of words."
    )
    output: str | None = Field(
        default=None, description="The ranker's folder; left out, OUTPUT/ranker."
    )


class ExperimentConfig(Section):
    """An experiment: `sluice run`, `index` and `evaluate` take the same file and do their part."""

    dataset: DatasetName = Field(
        description="The collection: a name, a folder, or own files by key: `sluice config list "
        "datasets`."
    )
    seed: int = Field(default=13, description="The seed of everything that is drawn.")
    output: str = Field(
        default="runs/experiment", description="The folder of models, retrievers, runs and results."
    )
    train: dict[str, TrainingSection] = Field(
        default_factory=dict,
        description="Models to train, by name; the names can be used as `model` below.",
    )
    retrievers: dict[str, RetrieverSection] = Field(
        default_factory=dict, description="Retrievers, by name."
    )
    rerankers: dict[str, Scorer] = Field(default_factory=dict, description="Rerankers, by name.")
    pipelines: dict[str, str] = Field(
        default_factory=dict,
        description="Pipelines by name: names with | (fuse), % (cut), >> (then), and calls such as "
        "weighted(a, b, weights=[1, 2]): `sluice config list stages`. Left out, every retriever "
        "is one.",
    )
    evaluate: EvaluateSection = Field(
        default_factory=EvaluateSection, description="What is measured, and against what."
    )
    variants: VariantsSection | None = Field(
        default=None,
        description="Evaluates other forms of a retriever, such as fewer dimensions or binary "
        "codes, without encoding the corpus again: its name, or some forms of it.",
        json_schema_extra={"anyOf": [{"$ref": "#/$defs/VariantsSection"}, {"type": "string"}]},
    )
    ranker: RankerSection | None = Field(
        default=None, description="What `sluice fit ranker` learns."
    )
    executor: ExecutorSpec = Field(
        default={"type": "local"},
        description="What encodes corpora, fills shards, evaluates the datasets of a suite, mines "
        "negatives, asks teachers and scores pairs for tuning: local (this process), processes, or "
        "ray.",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_trained(cls, values: Any) -> Any:
        """Read ``dense: dense-ft`` as a retriever whose model is the one trained by that name."""
        trained, retrievers = values.get("train"), values.get("retrievers")
        if not isinstance(trained, dict) or not isinstance(retrievers, dict):
            return values
        found = {}
        for name, each in retrievers.items():
            own = trained.get(each) if isinstance(each, str) else None
            spec = own.get("encoder") if isinstance(own, dict) else None
            kind = spec.get("type") if isinstance(spec, dict) else None
            found[name] = {"encoder": {"type": kind, "model": each}} if kind else each
        return {**values, "retrievers": found}

    @model_validator(mode="after")
    def _with_variants(self) -> ExperimentConfig:
        """Add a retriever for each variant, evaluated beside the full form, the baseline."""
        if self.variants is None:
            return self
        full, known = self.variants.retriever, self.retrievers
        try:
            if full not in known:
                raise ConfigError(f"retriever: no retriever {full!r}{suggest(full, known)}")
            parts = self.variants.parts(known[full].encoder, known[full].index)
            added = {
                f"{full}-{n}": known[full].model_copy(update=each) for n, each in parts.items()
            }
            for name, made in added.items():
                if known.setdefault(name, made) != made:
                    raise ConfigError(f"forms: {name} is another retriever's name; rename one")
        except ConfigError as error:
            raise PydanticCustomError(REFUSED, "variants.{error}", {"error": str(error)}) from None
        if self.pipelines:
            self.pipelines = {**{name: name for name in (full, *added)}, **self.pipelines}
        if self.evaluate.baseline is None:
            self.evaluate = self.evaluate.model_copy(update={"baseline": full})
        return self

    @model_validator(mode="after")
    def _named_output(self) -> ExperimentConfig:
        return _with_output(self)


class BudgetSection(Section):
    """The most that one query may cost, or the share of the best result that is enough."""

    p50_ms: float | None = Field(
        default=None, gt=0, description="The most milliseconds of a query, the median."
    )
    p95_ms: float | None = Field(
        default=None, gt=0, description="The most milliseconds of a query, the 95th percentile."
    )
    price: float | None = Field(
        default=None, ge=0, description="The highest price of a query, in the unit of tune.prices."
    )
    share_of_best: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Asks for the cheapest pipeline that reaches this share of the best.",
    )


class TuneSection(Section):
    """What `sluice tune` tries, and what a query may cost."""

    measure: str = Field(default="nDCG@10", description="What is made as high as possible.")
    split: str = Field(
        default="dev", description="The split to tune on, never the one evaluated on."
    )
    queries: int = Field(default=300, ge=1, description="Queries of the split, at most.")
    timed_queries: int = Field(
        default=50, ge=3, description="Queries that every part is timed with."
    )
    budget: BudgetSection = Field(
        default_factory=BudgetSection, description="What one query may cost."
    )
    prices: dict[str, float] = Field(
        default_factory=dict, description="The price of a pair, by the reranker that scores it."
    )
    pipelines: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Expressions to try, {name} standing for each value of choices.name; left out, "
        "the retrievers and rerankers are combined.",
    )
    choices: dict[str, list[Any]] = Field(
        default_factory=dict, description="Values of the names in braces, by name."
    )


class TuneConfig(ExperimentConfig):
    """`sluice tune`: an experiment, and how to put its parts together."""

    tune: TuneSection = Field(
        default_factory=TuneSection, description="What is tried, and what a query may cost."
    )


class TrainConfig(TrainingSection):
    """`sluice train`: one training run; the model goes to OUTPUT/model."""

    dataset: DatasetName | None = Field(
        default=None,
        description="The collection to train on; left out where examples bring their own texts and "
        "nothing needs a corpus.",
    )
    output: str = Field(description="The folder of the model and of the training run's files.")
    launch: LaunchSpec | None = Field(
        default=None,
        description="Trains in several processes that share each batch: processes of this machine, "
        "or ray, the workers of a cluster; left out, in this process, or in torchrun's.",
    )
    seed: int = Field(default=13, description="The seed of everything that is drawn.")
    executor: ExecutorSpec = Field(
        default={"type": "local"},
        description="What mines negatives, asks the teacher and encodes a corpus that is mined "
        "from: local (this process), processes, or ray.",
    )

    @model_validator(mode="after")
    def _named_output(self) -> TrainConfig:
        return _with_output(self)


Named = TypeVar("Named", ExperimentConfig, TrainConfig)


def _with_output(config: Named) -> Named:
    """Put the dataset's short name where ``output`` says ``{dataset}``."""
    try:
        config.output = expanded_output(config.output, config.dataset)
    except ConfigError as error:
        raise PydanticCustomError(REFUSED, "{error}", {"error": str(error)}) from None
    return config
