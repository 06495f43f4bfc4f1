"""What a config's sections are made of: their base, and the types of components in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import (
    no_info_before_validator_function,
    no_info_wrap_validator_function,
)

from sluice.encoders.foundation.build import Core
from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest
from sluice.encoders.model_files.locate import is_published, local_folder
from sluice.encoders.model_files.registry import named_model
from sluice.encoders.table import ENCODERS, RERANKERS
from sluice.retrieval.evaluation.measures import measure_names
from sluice.retrieval.pipelines.table import SCORERS

COMPONENT = "component"  # the mark of a component in pydantic's JSON schema
OWN_TYPE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # module:Class
REFUSED = "refused"  # the type of a fault whose message needs no words of pydantic's

TEXT: Final = {"type": "string"}
EXAMPLES: Final = {
    "bfs": "sluice.retrieval.training_data.files.corpus_examples:BodyExamples",
    "clicks": "sluice.retrieval.training_data.clicks.examples:ClickExamples",
    "corpus": Core("sluice.retrieval.training_data.files.corpus_mixture:CorpusExamples"),
    "fields": "sluice.retrieval.training_data.files.document_examples:FieldExamples",
    "file": Core("sluice.retrieval.training_data.files.examples:FileExamples"),
    "generated": "sluice.retrieval.training_data.written.generated_examples:GeneratedExamples",
    "ict": "sluice.retrieval.training_data.files.corpus_examples:ClozeExamples",
    "indexing": "sluice.retrieval.training_data.files.corpus_examples:IndexingExamples",
    "quality": "sluice.retrieval.training_data.files.document_examples:QualityExamples",
    "texts": "sluice.retrieval.training_data.files.corpus_examples:TextExamples",
    "wlp": "sluice.retrieval.training_data.files.corpus_examples:LinkedExamples",
}
LIVE, MINED, ENSEMBLE = "live", "mined", "ensemble"  # two kinds of negatives, and a teacher
NEGATIVES: Final = (LIVE, MINED)


class ComponentType:
    """``{type: name, ...arguments}``, or a name alone; ``module:Class`` is one too.

    ``kind`` is what `sluice config list` calls its types, ``default`` the type of a component that
    does not say. ``read`` makes the mapping of a name; with ``lists`` it is given lists of texts
    too.
    """

    def __init__(
        self,
        kind: str,
        *,
        default: str = "",
        read: Callable[[Any], Any] | None = None,
        lists: bool = False,
    ) -> None:
        self.kind = kind
        self.default = default
        self.lists = lists
        self._read = read or (lambda name: {"type": name})

    def __get_pydantic_core_schema__(
        self, source: type, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema of a mapping, which a name alone becomes first."""
        return no_info_before_validator_function(self._as_mapping, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return a mark that ``retrieval.config.schema`` replaces: which kind, and which texts."""
        return {COMPONENT: self.kind, "any_text": bool(self.default), "lists": self.lists}

    def _as_mapping(self, value: Any) -> Any:
        texts = self.lists and isinstance(value, list) and all(isinstance(t, str) for t in value)
        if value and (isinstance(value, str) or texts):
            return self._read(value)
        if not isinstance(value, dict):
            raise PydanticCustomError(REFUSED, "{value}; expected a type's name or {form}", {
                "value": f"{value!r:.60}", "form": "{type: name, ...}",
            })  # fmt: skip
        return value


def _examples(named: str | list[str]) -> dict[str, Any]:
    """Read ``examples: pairs.csv`` as the file it names, and a list as several files."""
    if isinstance(named, str) and (named in EXAMPLES or OWN_TYPE.fullmatch(named)):
        return {"type": named}
    return {"type": "file", "file": named}


def _encoder(name: str) -> dict[str, Any]:
    """Read ``encoder: bm25`` as that type, and any other name as a model's."""
    return _type_or_model(name, {**ENCODERS, **RERANKERS})


def _scorer(name: str) -> dict[str, Any]:
    """Read ``cross: http`` as that type, and any other name as a reranker's model."""
    return _type_or_model(name, SCORERS, scores=True)


def _type_or_model(name: str, types: Mapping[str, str], *, scores: bool = False) -> dict[str, Any]:
    here = "/" in name or is_published(name) or local_folder(name) is not None
    near = "" if here else suggest(name, types)
    if name in types or OWN_TYPE.fullmatch(name) or near:
        return {"type": name}
    try:
        return named_model(name, scores=scores)
    except ModelError as error:
        raise PydanticCustomError(REFUSED, "{error}", {"error": str(error)}) from None


def _measures(named: Any) -> Any:
    """Read ``measures: ndcg@10, map`` as the list it means."""
    return measure_names([named]) if isinstance(named, str) else named


def _teacher(named: Any) -> Any:
    """Read ``teacher: [a, b]`` as the ensemble it means: min-max by query, times 30."""
    if not isinstance(named, list):
        return named
    return {"type": ENSEMBLE, "teachers": named, "normalise": "min-max", "scale": 30.0}


DatasetName = Annotated[str | dict[str, Any], WithJsonSchema({COMPONENT: "dataset"})]
Encoder = Annotated[dict[str, Any], ComponentType("encoders", read=_encoder)]
TrainedEncoder = Annotated[dict[str, Any], ComponentType("trained_encoders", read=_encoder)]
Examples = Annotated[
    dict[str, Any], ComponentType("examples", default="file", read=_examples, lists=True)
]
ExecutorSpec = Annotated[dict[str, Any], ComponentType("executors")]
IndexSpec = Annotated[dict[str, Any], ComponentType("indexes")]
LaunchSpec = Annotated[dict[str, Any], ComponentType("launchers")]
Loss = Annotated[dict[str, Any], ComponentType("losses")]
Measures = Annotated[
    list[str],
    BeforeValidator(_measures),
    WithJsonSchema({"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}]}),
]
Negatives = Annotated[dict[str, Any], ComponentType("negatives")]
Ranker = Annotated[str | dict[str, Any], WithJsonSchema({COMPONENT: "rankers"})]
Scorer = Annotated[dict[str, Any], ComponentType("rerankers", read=_scorer)]
SparsitySettings = Annotated[dict[str, Any], WithJsonSchema({COMPONENT: "sparsity"})]
Teacher = Annotated[
    str | dict[str, Any],
    BeforeValidator(_teacher),
    WithJsonSchema({COMPONENT: "teachers", "lists": True}),
]
TrainerSettings = Annotated[dict[str, Any], WithJsonSchema({COMPONENT: "trainer"})]
Tuning = Annotated[dict[str, Any], ComponentType("tunings")]


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
