"""Tells functions apart: by name, source text, and the values that they hold."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Iterable
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from sluice.encoders.foundation.errors import ConfigError

PLAIN = (type(None), bool, int, float, complex, str, bytes)  # their repr says all of them


class _Own:
    """A class as Python writes it: an object of one no larger holds nothing beside its dict."""


def name_of(function: Any) -> str:
    """Return the qualified name of a function, of a partial's function, or of an object's type."""
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


def identity_of(function: Any) -> str:
    """Return a text that is another for a function that returns something else, if possible.

    It has the name and source, and what the function holds: arguments of a partial, values of a
    closure, defaults, attributes of a method's object. ``ConfigError`` where such a value is not
    made of numbers, texts, arrays, collections and plain objects. Globals are not looked at.
    """
    return _Reader(name_of(function)).function(function)


class _Reader:
    """Reads what one function holds; ``name`` is the function's in errors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open: list[Any] = []  # what is being read, for those that hold themselves

    def function(self, function: Any) -> str:
        inner = function.func if isinstance(function, functools.partial) else function
        held = self.held(function)
        return _source_of(inner) + (f"\nholds {held}" if held else "")

    def held(self, function: Any) -> str:
        """Return what a function holds beside its code, empty for nothing."""
        if isinstance(function, functools.partial):
            parts = [self.held(function.func), *self.some(function.args, function.keywords)]
        elif isinstance(function, MethodType):
            owner = function.__self__
            inner = self.held(function.__func__)
            parts = [inner, "" if isinstance(owner, type) else self.attributes(owner)]
        elif isinstance(function, FunctionType):
            cells = [_content(cell) for cell in function.__closure__ or ()]
            defaults = function.__kwdefaults__ or {}
            parts = self.some(cells, function.__defaults__ or (), defaults)
        elif hasattr(function, "__wrapped__"):  # as functools.cache makes them
            parts = [self.held(function.__wrapped__)]
        elif isinstance(function, BuiltinFunctionType):  # one of a module holds nothing
            owner = function.__self__
            parts = [] if isinstance(owner, type | ModuleType | None) else [self.value(owner)]
        elif isinstance(function, type) or not hasattr(function, "__dict__"):
            parts = [] if hasattr(function, "__qualname__") else [self.value(function)]
        else:
            parts = [self.attributes(function)]
        return "; ".join(part for part in parts if part)

    def some(self, *collections: Any) -> list[str]:
        return [self.value(each) for each in collections if each]

    def attributes(self, thing: Any) -> str:
        """Return an object's attributes, empty for none."""
        size = type(thing).__basicsize__, type(thing).__itemsize__
        if size != (_Own.__basicsize__, _Own.__itemsize__):
            raise self.refused(thing)
        return self.value(vars(thing)) if vars(thing) else ""

    def value(self, value: Any) -> str:
        """Return any value as text; ``ConfigError`` for one that text cannot tell from others."""
        if type(value) in PLAIN:
            return repr(value)
        if isinstance(value, type | ModuleType):
            room = "" if isinstance(value, ModuleType) else f"{value.__module__}."
            return f"{room}{value.__name__ if not room else value.__qualname__}"
        if isinstance(value, PurePath | Enum | np.dtype):
            return f"{type(value).__name__} {value}"
        if any(value is each for each in self.open):
            return "itself"
        self.open.append(value)
        try:
            return self.compound(value)
        finally:
            self.open.pop()

    def compound(self, value: Any) -> str:
        kind = type(value)
        if kind in (list, tuple):
            return f"{kind.__name__}({self.joined(map(self.value, value))})"
        if kind in (set, frozenset):
            return f"{kind.__name__}({self.joined(sorted(map(self.value, value)))})"
        if kind is dict:
            return f"dict({self.joined(f'{self.value(k)}: {self.value(value[k])}' for k in value)})"
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            return f"array({value.dtype}, {value.shape}, {digest})"
        if isinstance(value, FunctionType | MethodType | BuiltinFunctionType | functools.partial):
            return self.function(value)
        if hasattr(value, "__dict__"):
            return f"{kind.__module__}.{kind.__qualname__}({self.attributes(value)})"
        raise self.refused(value)

    def joined(self, texts: Iterable[str]) -> str:
        return ", ".join(texts)

    def refused(self, value: Any) -> ConfigError:
        kind = type(value)
        return ConfigError(
            f"{self.name}: holds a {kind.__module__}.{kind.__qualname__}, by which it cannot be "
            "told from another function. Name the model and its version: "
            "FunctionEncoder(FUNCTION, name='...')"
        )


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _source_of(inner: Any) -> str:
    """Return a function's name and source text; without a source the code of the interpreter."""
    target = inner if hasattr(inner, "__qualname__") else type(inner)
    try:
        source = inspect.getsource(target)
    except (OSError, TypeError):
        code = getattr(inner, "__code__", None)
        source = "" if code is None else hashlib.sha256(_code(code)).hexdigest()
    return f"{getattr(target, '__module__', '')}.{name_of(inner)}\n{source}"


def _code(code: CodeType) -> bytes:
    """Return the instructions with the names and constants that they use."""
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code + repr((code.co_names, constants)).encode()
