"""The types a config's components may have, as pydantic checks them and editors complete them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

from sluice.encoders.foundation.errors import suggest
from sluice.encoders.table import ENCODERS, RERANKERS, TUNINGS
from sluice.indexing.table import INDEXES
from sluice.retrieval.pipelines.table import SCORERS
from sluice.training.losses import LOSSES

OWN_TYPE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # module:Class
REFUSED = "refused"  # the type of a fault whose message needs no words of pydantic's

EXAMPLES: Final = {
    "bfs": "sluice.retrieval.training_data.files.corpus_examples:BodyExamples",
    "file": "sluice.retrieval.training_data.files.examples:FileExamples",
    "ict": "sluice.retrieval.training_data.files.corpus_examples:ClozeExamples",
    "texts": "sluice.retrieval.training_data.files.corpus_examples:TextExamples",
}
NEGATIVES: Final = ("live", "mined")


class ComponentType:
    """``{type: name, ...arguments}`` of some types, or a name alone; ``module:Class`` is one too.

    ``default`` is the type of a component that does not say. ``read`` makes the mapping of a name;
    with ``lists`` it is given lists of texts too.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        default: str = "",
        read: Callable[[Any], Any] | None = None,
        lists: bool = False,
    ) -> None:
        self.names = sorted(names)
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
        """Return the JSON schema: the names, and mappings with one of them as ``type``."""
        name: JsonSchemaValue = {
            "anyOf": [{"enum": self.names}, {"type": "string", "pattern": ":"}]
        }
        mapping: JsonSchemaValue = {"type": "object", "properties": {"type": name}}
        if not self.default:
            mapping["required"] = ["type"]
        options: list[JsonSchemaValue] = [name if not self.default else {"type": "string"}]
        if self.lists:
            options.append({"type": "array", "items": {"type": "string"}, "minItems": 1})
        return {"anyOf": [*options, mapping]}

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
    """Read ``encoder: bm25`` as that type; any other name may be a model's, which is none."""
    known = sorted({*ENCODERS, *RERANKERS})
    if ":" in name or name in known or suggest(name, known):
        return {"type": name}
    form = "{value}; expected one of {known}, or a model with its type: {model}"
    raise PydanticCustomError(REFUSED, form, {
        "value": f"{name!r:.60}", "known": ", ".join(known),
        "model": f"{{type: dense, model: {name}}}",
    })  # fmt: skip


Encoder = Annotated[dict[str, Any], ComponentType(ENCODERS, read=_encoder)]
TrainedEncoder = Annotated[dict[str, Any], ComponentType([*ENCODERS, *RERANKERS], read=_encoder)]
Examples = Annotated[
    dict[str, Any], ComponentType(EXAMPLES, default="file", read=_examples, lists=True)
]
IndexSpec = Annotated[dict[str, Any], ComponentType(INDEXES)]
Loss = Annotated[dict[str, Any], ComponentType(LOSSES)]
Negatives = Annotated[dict[str, Any], ComponentType(NEGATIVES)]
Scorer = Annotated[dict[str, Any], ComponentType(SCORERS)]
Tuning = Annotated[dict[str, Any], ComponentType(TUNINGS)]
