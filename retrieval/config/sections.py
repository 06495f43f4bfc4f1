"""The sections of a YAML file; reads and checks them, naming file, key and the nearest name."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic.json_schema import models_json_schema
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_wrap_validator_function

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.config.component_types import (
    REFUSED,
    Encoder,
    Examples,
    IndexSpec,
    Loss,
    Negatives,
    Scorer,
    TrainedEncoder,
    Tuning,
)
from sluice.retrieval.config.dataset_paths import found_beside
from sluice.retrieval.config.output_names import expanded_output
from sluice.retrieval.evaluation.comparison import Correction, SignificanceTest, Test
from sluice.retrieval.retrievers.corpus.encoding import Encoding
from sluice.retrieval.retrievers.corpus.passages import Passages

Component = dict[str, Any]  # {type: name, ...arguments}
ConfigSource = str | Path | Mapping[str, Any]  # a YAML file, or its content

# libyaml's, where it is installed: ten times as fast, and a command waits for it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TESTING = SignificanceTest()  # its defaults are the config's
OWN_TYPE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # module:Class
# What pydantic adds to the place of a fault in a union: the option that did not fit.
OPTIONS = ("str", "bool", "dict", "lax-or-strict", "function-before", "RetrieverSection")
EXPECTED = {  # by pydantic's types of faults
    "bool_type": "true or false",
    "dict_type": "keys and values",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "sequence_str": "a list",
    "string_type": "a text",
    "dataclass_type": "keys and values",
    "model_type": "keys and values",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} in the list",
}


class Section(BaseModel):
    """A part of a config; keys it does not know are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class AsSection:
    """Makes a plain dataclass a section: built from a mapping, strictly.

    What its ``__post_init__`` refuses is a fault at the section's place.
    """

    def __get_pydantic_core_schema__(
        self, source: type, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the dataclass's schema for mappings; the fields stay as strict as a section's."""
        schema = handler(source)
        dataclass_schema: Any = handler.resolve_ref_schema(schema)
        dataclass_schema["strict"] = False  # a strict one takes instances only
        return no_info_wrap_validator_function(_refused, schema)


def _refused(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ConfigError as error:
        raise PydanticCustomError(REFUSED, "{error}", {"error": str(error)}) from None


class DevSection(Section):
    """Dev evaluation while training: every ``every`` steps on a sample of the dev split.

    The corpus is the dev queries' relevant documents and others up to ``documents`` in all.
    Training ends after ``patience`` evaluations without a better first measure.
    """

    measures: list[str] = Field(default=["nDCG@10"], min_length=1)
    every: int | None = Field(default=None, ge=1)
    queries: int = Field(default=200, ge=1)
    documents: int = Field(default=5000, ge=1)
    patience: int | None = Field(default=None, ge=1)


class FreezeSection(Section):
    """Parts that are not trained: the lowest ``layers`` and the ``embeddings``."""

    layers: int = Field(default=0, ge=0)
    embeddings: bool = False


class TrainingSection(Section):
    """One training run: what is trained, with which loss and negatives, for how long.

    ``positives`` is how many positives of its query an example holds, ``labels`` what they are
    labelled (``training.pair_examples``); ``gradient_cache`` how many texts are encoded at a time.
    """

    encoder: TrainedEncoder
    loss: Loss
    examples: Examples | None = None
    negatives: Negatives | None = None
    teacher: str | Component | None = None
    positives: int = Field(default=1, ge=1)
    labels: Literal["binary", "grades", "unit"] = "binary"
    tuning: Tuning | None = None
    freeze: FreezeSection | None = None
    gradient_cache: int | None = Field(default=None, ge=1)
    sparsity: dict[str, Any] | None = None
    evaluate: DevSection | None = None
    trainer: dict[str, Any] = Field(default_factory=dict)
    head_learning_rate: float | None = Field(default=None, gt=0)


@dataclass(frozen=True, slots=True)
class CachedEncoding(Encoding):
    """How an experiment encodes a corpus; vectors are cached by default."""

    cache: bool | str | Path | None = True


class PruneSection(Section):
    """Leaves the ``share`` of documents with the lowest ``scores`` (a file) out of the index.

    ``sluice fit quality`` writes the file, see ``sluice.retrieval.retrievers.quality.scores``.
    """

    scores: str
    share: float = Field(ge=0, lt=1)


class RetrieverSection(Section):
    """An encoder and the index its vectors go to (flat for dense, inverted for sparse).

    ``search`` are the index's search parameters, such as ``alpha`` or ``nprobe``; changing them
    does not rebuild the index.
    """

    encoder: Encoder
    index: IndexSpec | None = None
    encoding: Annotated[CachedEncoding, AsSection()] | None = None
    passages: Annotated[Passages, AsSection()] | None = None
    prune: PruneSection | None = None
    search: dict[str, Any] = Field(default_factory=dict)

    @property
    def as_built(self) -> RetrieverSection:
        """The section of what lies in the retriever's folder: without ``search``."""
        return self.model_copy(update={"search": {}})

    @model_validator(mode="before")
    @classmethod
    def _of_encoder(cls, value: Any) -> Any:
        """Read ``bm25: bm25`` as a retriever of that encoder."""
        return {"encoder": value} if isinstance(value, str) else value


class EvaluateSection(Section):
    """What is measured, on which split, against which baseline; see ``evaluation.comparison``.

    ``report``: whether the command line ends with the page ``report.html``.
    """

    measures: list[str] = Field(default=["nDCG@10", "R@100"], min_length=1)
    baseline: str | None = None
    split: str = "test"
    test: Test = TESTING.test
    correction: Correction = TESTING.correction
    alpha: float = Field(default=TESTING.alpha, gt=0, lt=1)
    latency_queries: int = Field(default=200, ge=0)
    report: bool = True

    @property
    def testing(self) -> SignificanceTest:
        """How differences to the baseline are tested."""
        return SignificanceTest(self.test, self.correction, self.alpha)


class RankerSection(Section):
    """``sluice fit ranker``: a ranker that reranks ``candidates``, see ``ranker_training``.

    ``stages`` are retrievers or pipelines whose scores are features; ``features`` are patterns of
    those to use (``dense.*``). The ranker's folder is ``output``, by default ``<output>/ranker``.
    """

    candidates: str
    stages: list[str] = Field(default_factory=list)
    depth: int = Field(default=200, ge=1)
    model: str | Component = "auto"
    features: list[str] | None = Field(default=None, min_length=1)
    split: str = "train"
    language: str = "en"
    output: str | None = None


class ExperimentConfig(Section):
    """``sluice run``: dataset, training runs, retrievers, rerankers, pipelines, evaluation."""

    dataset: str | dict[str, Any]
    seed: int = 13
    output: str = "runs/experiment"
    train: dict[str, TrainingSection] = Field(default_factory=dict)
    retrievers: dict[str, RetrieverSection] = Field(default_factory=dict)
    rerankers: dict[str, Scorer] = Field(default_factory=dict)
    pipelines: dict[str, str] = Field(default_factory=dict)
    evaluate: EvaluateSection = Field(default_factory=EvaluateSection)
    ranker: RankerSection | None = None

    @model_validator(mode="after")
    def _named_output(self) -> ExperimentConfig:
        return _with_output(self)


class BudgetSection(Section):
    """What one query may cost; ``share_of_best`` asks for the cheapest that reaches this share.

    ``price`` is in the unit of ``tune.prices``.
    """

    p50_ms: float | None = Field(default=None, gt=0)
    p95_ms: float | None = Field(default=None, gt=0)
    price: float | None = Field(default=None, ge=0)
    share_of_best: float | None = Field(default=None, gt=0, le=1)


class TuneSection(Section):
    """What is tried and what it may cost, see ``sluice.retrieval.experiments.tuning.tuner``.

    ``pipelines`` are expressions in which ``{name}`` stands for each value of ``choices.name``;
    without them the retrievers and rerankers are combined as
    ``sluice.retrieval.experiments.tuning.tuner`` says.
    """

    measure: str = "nDCG@10"
    split: str = "dev"
    queries: int = Field(default=300, ge=1)
    timed_queries: int = Field(default=50, ge=3)
    budget: BudgetSection = Field(default_factory=BudgetSection)
    prices: dict[str, float] = Field(default_factory=dict)
    pipelines: list[str] | None = Field(default=None, min_length=1)
    choices: dict[str, list[Any]] = Field(default_factory=dict)


class TuneConfig(ExperimentConfig):
    """``sluice tune``: an experiment, and how to put its parts together."""

    tune: TuneSection = Field(default_factory=TuneSection)


class TrainConfig(TrainingSection):
    """``sluice train``: one training; the model goes to ``<output>/model``."""

    dataset: str | dict[str, Any]
    output: str
    seed: int = 13

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


Config = TypeVar("Config", bound=Section)


def config_of(
    source: ConfigSource, kind: type[Config], overrides: Sequence[str] = ()
) -> tuple[Config, Path | None]:
    """Return the user's config, from a file with overrides or from values, and the file if any.

    Modules that its ``type: module:Class`` name may lie in the current folder or beside the file.
    """
    if isinstance(source, Mapping):
        find_own_modules(source, None)
        return checked(source, kind), None
    file = Path(source)
    values = load_values(file, overrides)
    find_own_modules(values, file)
    with named_file(file):
        return checked(values, kind), file


def find_own_modules(values: Mapping[str, Any], file: Path | None) -> None:
    """Let Python find the modules that a user's own config names: here, and beside the file.

    Never for a saved folder's config, which somebody else may have written. The folders come last
    on ``sys.path``, so that a local file hides no installed package.
    """
    if not any(OWN_TYPE.fullmatch(text) for text in _texts(values)):
        return
    for folder in (Path.cwd(), *([] if file is None else [file.absolute().parent])):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a config's values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def load_config(path: str | Path, kind: type[Config], overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file, apply ``key.path=value`` overrides, and check it.

    Raises ``ConfigError`` that names the file, the key path, the value and the nearest valid name.
    """
    with named_file(path):
        return checked(load_values(path, overrides), kind)


def load_values(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of a YAML file with the overrides, unchecked; errors as above.

    Relative paths of the dataset's files are found from the current folder, or beside the file.
    """
    with named_file(path):
        return found_beside(_overridden(_read(Path(path)), overrides), Path(path))


@contextlib.contextmanager
def named_file(file: str | Path | None) -> Iterator[None]:
    """Put the config file's name before the message of a ``ConfigError`` raised inside."""
    try:
        yield
    except ConfigError as error:
        if file is None or str(error).startswith(f"{file}: "):
            raise
        raise ConfigError(f"{file}: {error}") from error


def checked(values: Mapping[str, Any], kind: type[Config]) -> Config:
    """Return the values as a config of ``kind``, or raise ``ConfigError`` with every fault."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("; ".join(_faults(error.errors(), kind))) from None


def json_schema() -> str:
    """Return the JSON schema of the YAML files, for editors.

    ``sluice evaluate`` takes an experiment over several datasets too.
    """
    kinds = (ExperimentConfig, TrainConfig, TuneConfig)
    names, schema = models_json_schema([(kind, "validation") for kind in kinds], title="Sluice")
    # An experiment and a tuning differ by the section `tune` alone.
    schema["$defs"][TuneConfig.__name__]["required"].append("tune")
    several = {"type": "array", "minItems": 1, "items": {"type": ["string", "object"]}}
    schema["$defs"][ExperimentConfig.__name__]["properties"]["dataset"]["anyOf"].append(several)
    schema["oneOf"] = [names[kind, "validation"] for kind in kinds]
    return json.dumps(schema, indent=2) + "\n"


def _read(file: Path) -> dict[str, Any]:
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), LOADER)
    except FileNotFoundError:
        near = suggest(file.name, [p.name for p in file.parent.glob("*.y*ml")])
        raise ConfigError(f"no such file{near}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read as UTF-8 text ({error})") from None
    except RecursionError:
        raise ConfigError("not valid YAML: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # a ValueError is a date like 2020-13-45
        raise ConfigError(f"not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"expected keys and values, found {type(values).__name__}")
    return values


def _overridden(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or not key:
            raise ConfigError(f"override {override!r}: expected key.path=value")
        *parents, last = key.split(".")
        place = values
        for parent in parents:
            below = place.setdefault(parent, {})
            if not isinstance(below, dict):
                raise ConfigError(f"override {override!r}: {parent} is a value, not a section")
            place = below
        try:
            place[last] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            place[last] = text
    return values


def _faults(items: Iterable[Any], kind: type[Section]) -> list[str]:
    """Return one message for each place: of a union's options, what any of them expects."""
    expected: dict[str, list[str]] = {}
    faults: dict[str, str] = {}
    for item in items:
        parts = map(str, item["loc"])
        path = ".".join(part for part in parts if part.split("[")[0] not in OPTIONS)
        if item["type"] in EXPECTED:
            text = EXPECTED[item["type"]].format(**item.get("ctx", {}))
            expected.setdefault(path, []).append(text)
            faults[path] = f"{item['input']!r:.60}; expected {' or '.join(expected[path])}"
        else:
            faults[path] = _fault(item, kind)
    return [f"{path}: {fault}" if path else fault for path, fault in faults.items()]


def _fault(item: Any, kind: type[Section]) -> str:
    if item["type"] == REFUSED:
        return str(item["msg"])
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _keys_at(kind, item["loc"][:-1])
        near = suggest(str(item["loc"][-1]), known)
        return f"unknown key; known here: {', '.join(known)}{near}"
    if item["type"] == "missing":
        return "missing (required)"
    return f"{item['input']!r:.60}: {item['msg'][0].lower()}{item['msg'][1:]}"


def _keys_at(kind: type[Section], path: Sequence[Any]) -> list[str]:
    """Return the keys of the section that ``path`` leads to."""
    for part in path:
        field = kind.model_fields.get(str(part))
        inner = [field.annotation, *get_args(field.annotation)] if field else []
        for option in inner:
            option = get_args(option)[0] if get_origin(option) is Annotated else option
            if is_dataclass(option):
                return [each.name for each in fields(option)]
            if isinstance(option, type) and issubclass(option, Section):
                kind = option
                break
    return list(kind.model_fields)
