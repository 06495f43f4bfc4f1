"""The types a config's components may have, as pydantic checks them and editors complete them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

from sluice.encoders.table import ENCODERS, RERANKERS, TUNINGS
from sluice.indexing.table import INDEXES
from sluice.retrieval.pipelines.table import SCORERS
from sluice.training.losses import LOSSES

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

    ``default`` is the type of a component that does not say.
    """

    def __init__(
        self, names: Iterable[str], *, default: str = "", read: Callable[[str], Any] | None = None
    ) -> None:
        self.names = sorted(names)
        self.default = default
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
        return {"anyOf": [name if not self.default else {"type": "string"}, mapping]}

    def _as_mapping(self, value: Any) -> Any:
        if isinstance(value, str) and value:
            return self._read(value)
        if not isinstance(value, dict):
            raise PydanticCustomError(REFUSED, "{value}; expected a type's name or {form}", {
                "value": f"{value!r:.60}", "form": "{type: name, ...}",
            })  # fmt: skip
        return value


def _examples(text: str) -> dict[str, Any]:
    """Read ``examples: pairs.csv`` as the file it names."""
    return {"type": text} if text in EXAMPLES or ":" in text else {"type": "file", "file": text}


Encoder = Annotated[dict[str, Any], ComponentType(ENCODERS)]
TrainedEncoder = Annotated[dict[str, Any], ComponentType([*ENCODERS, *RERANKERS])]
Examples = Annotated[dict[str, Any], ComponentType(EXAMPLES, default="file", read=_examples)]
IndexSpec = Annotated[dict[str, Any], ComponentType(INDEXES)]
Loss = Annotated[dict[str, Any], ComponentType(LOSSES)]
Negatives = Annotated[dict[str, Any], ComponentType(NEGATIVES)]
Scorer = Annotated[dict[str, Any], ComponentType(SCORERS)]
Tuning = Annotated[dict[str, Any], ComponentType(TUNINGS)]
