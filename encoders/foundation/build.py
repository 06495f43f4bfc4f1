"""Builds an object from ``{type: name, ...arguments}``; the factory's signature is the schema."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import operator
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.foundation.trust import Allow, refuse_class

# Types in the words of a YAML file.
WORDS = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false",
    list: "a list", tuple: "a list", set: "a list", frozenset: "a list", dict: "keys and values",
    Path: "a file or folder",
}  # fmt: skip
ITEMS = {str: "texts", int: "whole numbers", float: "numbers"}
UNITS = {"SECONDS": "seconds", "MS": "milliseconds"}
NONE = type(None)
BOUNDS = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
FEW = 4  # types that are listed rather than counted
Made = TypeVar("Made", bound=Callable[..., Any])
Table = Mapping[str, str]  # type name -> "module:Class" or "module:Class.method"


class Core(str):
    """The place of a type that most people need: lists of types begin with these."""

    __slots__ = ()


@dataclass(frozen=True)
class Declared:
    """A parameter as ``Annotated[type, notes...]`` declares it: bounds, and texts.

    A text in capitals names the value (``SECONDS``); another is the sentence that says what it is.
    """

    parameter: inspect.Parameter
    hint: Any  # the type alone
    notes: tuple[Any, ...]

    @property
    def sentence(self) -> str:
        """What the parameter is; empty where no note says so."""
        return next((n for n in self.notes if isinstance(n, str) and not n.isupper()), "")

    @property
    def value(self) -> str:
        """The name of its value in help; empty where no note has one."""
        return next((n for n in self.notes if isinstance(n, str) and n.isupper()), "")

    @property
    def options(self) -> tuple[Any, ...]:
        """The types of a union, without None; the type itself where it is none."""
        union = get_origin(self.hint) in (typing.Union, types.UnionType)
        return tuple(o for o in (get_args(self.hint) if union else (self.hint,)) if o is not NONE)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a ``Literal``; none where others are possible."""
        closed = all(get_origin(option) is Literal for option in self.options)
        return tuple(c for option in self.options for c in get_args(option)) if closed else ()

    @functools.cached_property
    def bounds(self) -> dict[str, Any]:
        """The bounds ``ge``, ``gt``, ``le`` and ``lt`` that there are."""
        every = [(name, getattr(note, name, None)) for note in self.notes for name in BOUNDS]
        return {name: bound for name, bound in every if bound is not None}

    @functools.cached_property
    def whole(self) -> bool:
        """Whether a number has to be whole."""
        return int in self.options and float not in self.options

    def fault(self, value: Any) -> str:
        """Return what is wrong with a value, by its choices or bounds; empty where nothing is."""
        if value is None and NONE in get_args(self.hint):
            return ""
        if self.choices:
            near = suggest(str(value), list(map(str, self.choices)))
            known = f"expected one of {', '.join(map(str, self.choices))}{near}"
            return "" if value in self.choices else f"{value!r:.80}; {known}"
        if not self.bounds or any(type(value) is each for each in self.options if each is str):
            return ""
        fits = is_number(value) and (not self.whole or hasattr(value, "__index__"))
        if fits and all(BOUNDS[name](value, bound) for name, bound in self.bounds.items()):
            return ""
        return f"{value!r:.80}; expected {self._expected()}"

    def _expected(self) -> str:
        bounds = {name: _shown(bound) for name, bound in self.bounds.items()}
        kind = UNITS.get(self.value) or ("a whole number" if self.whole else "a number")
        match bounds:
            case {"ge": least, "le": most}:
                return f"{kind}, {least} to {most}"
            case {"ge": least, "lt": most}:
                return f"{kind}, {least} or more and below {most}"
            case {"ge": least}:
                return f"{kind}, {least} or more"
            case {"gt": least, "le": most}:
                return f"{kind} above {least}, up to {most}"
            case {"gt": least, "lt": most}:
                return f"{kind} above {least} and below {most}"
        ((name, bound),) = bounds.items()
        return f"{kind} {'above' if name == 'gt' else 'up to' if name == 'le' else 'below'} {bound}"


def _shown(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


_TRUSTED: ContextVar[bool] = ContextVar("trusted", default=False)


def replaced(record: Any, **changes: Any) -> Any:
    """``dataclasses.replace`` with the program's own values, which no declaration need know."""
    token = _TRUSTED.set(True)
    try:
        return dataclasses.replace(record, **changes)
    finally:
        _TRUSTED.reset(token)


def checked(prefix: str = "") -> Callable[[Made], Made]:
    """Check the arguments of a function, or the fields of a dataclass, by what is declared of them.

    It stands below ``@dataclass``. The ``ConfigError`` is ``key: value; expected ...``, the key
    behind ``prefix``.
    """

    def check(make: Any, values: Mapping[str, Any]) -> None:
        for name, each in _declared(make).items():
            if name in values and (fault := each.fault(values[name])):
                raise ConfigError(f"{prefix}{name}: {fault}")

    def wrapped(make: Any) -> Any:
        if inspect.isclass(make):
            after = getattr(make, "__post_init__", None)

            def check_fields(self: Any) -> None:
                if not _TRUSTED.get():
                    names = self.__dataclass_fields__
                    check(type(self), {name: getattr(self, name, None) for name in names})
                if after is not None:
                    after(self)

            make.__post_init__ = check_fields  # type: ignore[attr-defined]
            return make

        @functools.wraps(make)
        def call(*args: Any, **named: Any) -> Any:
            check(make, {**dict(zip(_declared(make), args, strict=False)), **named})
            return make(*args, **named)

        return call

    return wrapped


@functools.cache
def _declared(function: Callable[..., Any]) -> dict[str, Declared]:
    return declared(function)


def declared(make: Callable[..., Any]) -> dict[str, Declared]:
    """Return the parameters of a function or class, by name, with what is declared of each."""
    hints = declared_hints(make)
    found = {}
    for name, parameter in inspect.signature(make).parameters.items():
        hint, *notes = _unwrapped(hints.get(name, Any))
        found[name] = Declared(parameter, hint, tuple(notes))
    return found


def declared_hints(make: Callable[..., Any]) -> dict[str, Any]:
    """Return type hints by name; those that name what only type checkers import are left out."""
    target: Any = make
    if inspect.isclass(make) and not issubclass(make, tuple):
        target = next(each for each in make.__mro__ if "__init__" in vars(each))
        if "__dataclass_params__" not in vars(target):
            target = target.__init__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError:
        hints = {}
        for owner in reversed(getattr(target, "__mro__", (target,))):
            names = vars(sys.modules[owner.__module__])
            for key, text in inspect.get_annotations(owner).items():
                try:
                    one = types.SimpleNamespace(__annotations__={key: text})
                    hints[key] = typing.get_type_hints(one, names, include_extras=True)[key]
                except NameError:
                    continue
        return hints


def _unwrapped(hint: Any) -> tuple[Any, ...]:
    """Return a type and the notes of its ``Annotated``, or of that of a union's members."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        plain, *others = _unwrapped(inner)
        return (plain, *notes, *others)
    if get_origin(hint) not in (typing.Union, types.UnionType):
        return (hint,)
    parts = [_unwrapped(each) for each in get_args(hint)]
    plain = functools.reduce(operator.or_, (part[0] for part in parts))
    return (plain, *(note for part in parts for note in part[1:]))


def types_listed(table: Table) -> str:
    """Return the types of a table as a message lists them: those marked ``Core``, and a count."""
    core = [name for name, place in table.items() if isinstance(place, Core)]
    rest = len(table) - len(core)
    if not core or rest < FEW:
        return ", ".join(sorted(table, key=lambda name: (name not in core, name)))
    return f"{', '.join(core)} and {rest} more: sluice config list --all"


def resolve(path: str) -> Any:
    """Import ``package.module:Name.attribute`` and return what it names."""
    module, _, name = path.partition(":")
    target = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return target


def type_name(instance: Any, table: Table) -> str:
    """Return the name a table has for an instance's class; ``module:Class`` for any other class."""
    kind = type(instance)
    own = f"{kind.__module__}:{kind.__qualname__}"
    names = (name for name, target in table.items() if f"{target}.".startswith(f"{own}."))
    return next(names, own)


def factory(name: str, table: Table, *, where: str, allow: Allow = None) -> Any:
    """Return the factory of a type name.

    A name with a colon is the user's own ``package.module:Class``. ``allow=None`` accepts any such
    name (in the user's YAML), a collection only its members (in an untrusted saved folder).
    """
    _check_name(name, table, where, allow)
    if name in table:
        return resolve(table[name])
    try:
        chosen = resolve(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        module = name.partition(":")[0].partition(".")[0]
        raise ConfigError(
            f"{where}.type: cannot import {name!r} ({error}); expected MODULE:CLASS of an "
            f"installed package, or of {module}.py here or beside the YAML file"
        ) from error
    if not callable(chosen):
        raise ConfigError(f"{where}.type: {name!r} is a {type(chosen).__name__}, expected a class")
    return chosen


def check_type(spec: Mapping[str, Any], table: Table, *, where: str, allow: Allow = None) -> None:
    """Raise ``ConfigError`` unless the type of a component is built in or allowed; import none."""
    _check_name(_type_of(spec, table, where), table, where, allow)


def _type_of(spec: Mapping[str, Any], table: Table, where: str) -> str:
    if "type" not in spec:
        raise ConfigError(f"{where}: needs 'type', one of {types_listed(table)}")
    return str(spec["type"])


def _check_name(name: str, table: Table, where: str, allow: Allow) -> None:
    if name in table:
        return
    if ":" not in name:
        raise ConfigError(
            f"{where}.type: unknown type {name!r:.80}{suggest(name, table)}; known: "
            f"{types_listed(table)}"
        )
    refuse_class(name, f"{where}.type", allow)


def check_arguments(
    make: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    where: str,
    kind: str,
    given: Collection[str] = (),
) -> None:
    """Raise ``ConfigError`` unless ``arguments`` fit the signature of ``make``.

    ``kind`` names it in messages; ``given`` are the parameters that the caller supplies, which
    YAML may not.
    """
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}.type: {kind} has no signature to check against") from None
    every = declared(make)
    parameters = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in given
    }
    for name, value in arguments.items():
        if name not in parameters:
            raise ConfigError(
                f"{where}.{name}: unknown key; {kind} takes {', '.join(parameters) or 'none'}"
                f"{suggest(name, parameters)}"
            )
        hint = every[name].hint
        if not fits(value, hint):
            raise ConfigError(f"{where}.{name}: {misfit(value, hint)}")
        if fault := every[name].fault(value):
            raise ConfigError(f"{where}.{name}: {fault}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise ConfigError(f"{where}: {kind} needs '{name}'")


def check(
    spec: Mapping[str, Any],
    table: Table,
    *,
    where: str,
    allow: Allow = None,
    given: Collection[str] = (),
) -> tuple[Any, dict[str, Any]]:
    """Return the factory and the checked arguments of ``{type: name, ...arguments}``."""
    kind = _type_of(spec, table, where)
    make = factory(kind, table, where=where, allow=allow)
    arguments = {key: value for key, value in spec.items() if key != "type"}
    check_arguments(make, arguments, where=where, kind=kind, given=given)
    return make, arguments


def build(
    spec: Mapping[str, Any],
    table: Table,
    *,
    where: str,
    allow: Allow = None,
    **given: Any,
) -> Any:
    """Build the object of ``{type: name, ...arguments}``; ``given`` are the caller's arguments."""
    make, arguments = check(spec, table, where=where, allow=allow, given=given)
    try:
        return make(**arguments, **given)
    except ConfigError as error:  # what the signature cannot check, such as a number's range
        raise ConfigError(f"{where}: {error}") from error


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value of YAML is of a type; of a class, which checks it itself, always."""
    origin = get_origin(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (str, bool):
        return isinstance(value, hint)
    if hint is Path:
        return isinstance(value, (str, Path))
    if origin in (list, tuple, set, frozenset) or hint in (list, tuple):
        choices = _choices_of_items(hint)
        return isinstance(value, (list, tuple)) and (
            not choices or all((type(item), item) in choices for item in value)
        )
    if origin is dict or hint is dict:
        return isinstance(value, dict)
    return True  # protocols and classes are checked by the factory itself


def misfit(value: Any, hint: Any) -> str:
    """Return what was found where a value of another type is expected."""
    kinds = [o for o in get_args(hint) or (hint,) if o is not type(None)]
    choices = [c for o in (hint, *kinds) if get_origin(o) is Literal for c in get_args(o)]
    if isinstance(value, str) and choices:
        known = [str(choice) for choice in choices]
        return (
            f"{value!r:.80}; expected one of {', '.join(map(repr, choices))}{suggest(value, known)}"
        )
    if isinstance(value, list | tuple):
        for choices in filter(None, map(_choices_of_items, (hint, *kinds))):
            return f"{value!r:.80}; expected some of {', '.join(repr(each) for _, each in choices)}"
    return f"{value!r:.80}; expected {' or '.join(dict.fromkeys(map(_spelled, kinds)))}"


def _choices_of_items(hint: Any) -> list[tuple[type, Any]]:
    """Return what a list's items are chosen from, with types; nothing where they are of a type."""
    inner = [*get_args(hint), None][0]
    if get_origin(hint) not in (list, tuple, set, frozenset):
        return []
    return [(type(c), c) for c in get_args(inner)] if get_origin(inner) is Literal else []


def _spelled(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(option) for option in get_args(hint))
    plain, inner = get_origin(hint) or hint, [*get_args(hint), None][0]
    if WORDS.get(plain) == "a list" and inner in ITEMS:
        return f"a list of {ITEMS[inner]}"
    return WORDS.get(plain) or str(getattr(plain, "__name__", hint))
