"""The base of a config's sections: pydantic models that refuse keys they do not know."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_wrap_validator_function

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.component_types import REFUSED


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
