"""The forms in which vectors lie on disk."""

from __future__ import annotations

from typing import Literal, TypeAlias

Store: TypeAlias = Literal["float32", "float16", "int8"]
STORES: tuple[Store, ...] = ("float32", "float16", "int8")
EXACT: Store = "float32"
