"""The types a config's components may have, as pydantic checks them and editors complete them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

COMPONENT = "component"  # the mark of a component in pydantic's JSON schema
REFUSED = "refused"  # the type of a fault whose message needs no words of pydantic's

EXAMPLES: Final = {
    "bfs": "sluice.retrieval.training_data.files.corpus_examples:BodyExamples",
    "file": "sluice.retrieval.training_data.files.examples:FileExamples",
    "ict": "sluice.retrieval.training_data.files.corpus_examples:ClozeExamples",
    "texts": "sluice.retrieval.training_data.files.corpus_examples:TextExamples",
}
NEGATIVES: Final = ("live", "mined")


class ComponentType:
    """``{type: name, ...arguments}``, or a name alone; ``module:Class`` is one too.

    ``kind`` is what `sluice config list` calls its types, ``default`` the type of a component that
    does not say.
    """

    def __init__(
        self, kind: str, *, default: str = "", read: Callable[[str], Any] | None = None
    ) -> None:
        self.kind = kind
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
        """Return a mark that ``retrieval.config.schema`` replaces: which kind, and which texts."""
        return {COMPONENT: self.kind, "any_text": bool(self.default)}

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


DatasetName = Annotated[str | dict[str, Any], WithJsonSchema({COMPONENT: "dataset"})]
Encoder = Annotated[dict[str, Any], ComponentType("encoders")]
TrainedEncoder = Annotated[dict[str, Any], ComponentType("trained_encoders")]
Examples = Annotated[dict[str, Any], ComponentType("examples", default="file", read=_examples)]
IndexSpec = Annotated[dict[str, Any], ComponentType("indexes")]
Loss = Annotated[dict[str, Any], ComponentType("losses")]
Negatives = Annotated[dict[str, Any], ComponentType("negatives")]
Ranker = Annotated[str | dict[str, Any], WithJsonSchema({COMPONENT: "rankers"})]
Scorer = Annotated[dict[str, Any], ComponentType("rerankers")]
SparsitySettings = Annotated[dict[str, Any], WithJsonSchema({COMPONENT: "sparsity"})]
Teacher = Annotated[str | dict[str, Any], WithJsonSchema({COMPONENT: "teachers"})]
TrainerSettings = Annotated[dict[str, Any], WithJsonSchema({COMPONENT: "trainer"})]
Tuning = Annotated[dict[str, Any], ComponentType("tunings")]
