"""What is declared of an argument (bounds, choices) is checked wherever ``@checked`` stands."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from places import ROOT

from sluice.encoders.foundation.build import BOUNDS, Declared, declared
from sluice.encoders.foundation.errors import ConfigError

ROOMS = ("encoders", "indexing", "training", "retrieval")


def checked_in(module: Any) -> Iterator[Callable[..., Any]]:
    """Yield the functions, methods and classes of a module that check their arguments."""
    own = [each for each in vars(module).values() if inspect.isclass(each)]
    own = [each for each in own if each.__module__ == module.__name__]
    for each in [*vars(module).values(), *(m for kind in own for m in vars(kind).values())]:
        function = getattr(each, "__func__", each)
        code = getattr(function, "__code__", None)
        if code is not None and code.co_qualname == "checked.<locals>.wrapped.<locals>.call":
            yield function
    for each in own:
        check = vars(each).get("__post_init__")
        if check is not None and check.__code__.co_name == "check_fields":
            yield each


def arguments() -> Iterator[tuple[Callable[..., Any], str]]:
    """Yield what checks its arguments, with the name of each that has choices or bounds."""
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            if "@checked(" in (text := file.read_text("utf-8")) or "@checked\n" in text:
                parts = file.relative_to(ROOT).with_suffix("").parts
                module = importlib.import_module(".".join(("sluice", *parts)))
                for make in checked_in(module):
                    for name, each in declared(make).items():
                        if each.choices or each.bounds:
                            yield make, name


def outside(each: Declared) -> Iterator[Any]:
    """Yield values that are none of the choices, or just beyond a bound."""
    if each.choices:
        yield "no such choice"
    for name, bound in each.bounds.items():
        yield bound if name in ("gt", "lt") else bound - 1 if name == "ge" else bound + 1
    if each.bounds:
        yield from (True, math.nan, *([5.5] if each.whole else []))


def inside(each: Declared) -> Any:
    """Return a value that fits."""
    if each.parameter.default is not each.parameter.empty:
        return each.parameter.default
    tried = [*each.choices, *(b + s for b in each.bounds.values() for s in (0, 1, -1, 0.5, -0.5))]
    return next((value for value in tried if not each.fault(value)), None)


def test_what_is_declared_is_checked() -> None:
    seen = list(arguments())
    assert len(seen) > 200
    for make, name in seen:
        every = declared(make)
        for value in outside(every[name]):
            with pytest.raises(ConfigError) as error:
                given(make, every, name, value)
            assert f"{name}: {every[name].fault(value)}" in str(error.value), (make, name)
        for kind, bound in every[name].bounds.items():
            assert bool(every[name].fault(bound)) is not BOUNDS[kind](bound, bound), (make, name)


def given(make: Any, every: dict[str, Declared], name: str, value: Any) -> None:
    """Call with a value, or check the fields of a record that has it."""
    if not inspect.isclass(make):
        make(**{name: value})
    else:
        record = object.__new__(make)
        for other, each in every.items():
            object.__setattr__(record, other, value if other == name else inside(each))
        record.__post_init__()
