"""Makes a verb of a function: arguments before the ``*`` of its signature, options behind it.

A parameter is declared once, as ``depth: Annotated[int, Ge(1), "Hits of each query."] = 50``: type,
bounds or choices, and the sentence of the help. ``takes`` adds what another function declares.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import typer

from sluice.encoders.foundation.build import Declared, declared, resolve
from sluice.encoders.foundation.errors import ConfigError

Command = Callable[..., None]
POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
BORROWED = inspect.Parameter.VAR_KEYWORD  # what gets the values of other functions' options
PLAIN = (bool, int, float, Path, str)
METAVARS: Mapping[Any, str] = {int: "N", float: "X", Path: "FILE"}
NAMES = {  # of options that are not named as their parameter
    "measure": ("-m", "--measure"), "as_json": ("--json",), "form": ("--format",),
}  # fmt: skip


class Shown(NamedTuple):
    """How the help shows a parameter: a default in words, a heading of its own, other names.

    ``offer`` returns what a shell completes a beginning to.
    """

    default: str | None = None
    panel: str | None = None
    names: tuple[str, ...] | None = None
    offer: Callable[..., Any] | None = None


def takes(
    *targets: str, without: str = "", panels: Mapping[str, str] | None = None, **shown: Shown
) -> Callable[[Command], Command]:
    """Add what each ``module:function`` declares to a verb, which gets by ``**`` what is set.

    These are the parameters that have a sentence, less those of the verb's own and ``without``
    (names, separated by spaces). ``panels`` puts names, the verb's own too, under headings of the
    help; ``shown`` says how the help shows a parameter.
    """

    def added(command: Command) -> Command:
        notes = {name: [note] for name, note in shown.items()}
        for title, names in (panels or {}).items():
            for name in names.split():
                notes.setdefault(name, []).append(Shown(panel=title))
        command.__dict__["takes"] = (targets, without.split(), notes)
        return command

    return added


def with_options(command: Command) -> Command:
    """Return a verb as typer takes it, its parameters described by ``typer.Argument`` and so on."""
    targets, without, notes = command.__dict__.get("takes", ((), (), {}))
    every = declared(command).items()
    own = {name: each for name, each in every if each.parameter.kind is not BORROWED}
    left_out = {*own, *without}
    borrowed: dict[str, Declared] = {}
    for target in targets:
        for name, each in declared(resolve(target)).items():
            if each.sentence and name not in left_out:
                borrowed.setdefault(name, each)
    offered = {
        name: replace(each, notes=(*each.notes, *notes.get(name, ())))
        for name, each in {**borrowed, **own}.items()
    }
    arguments = [name for name, each in own.items() if each.parameter.kind is POSITIONAL]
    parameters = [_parameter(name, each, unset=name in borrowed) for name, each in offered.items()]

    def call(**values: Any) -> None:
        for name, each in offered.items():
            if each.choices and values[name] is not None and (fault := each.fault(values[name])):
                place = command.__name__ if name in arguments else _names(name, _shown(each))[-1]
                raise ConfigError(f"{place}: {fault}")
        unset = [name for name in borrowed if values[name] is None or values[name] is False]
        command(**{name: value for name, value in values.items() if name not in unset})

    call.__dict__["__signature__"] = inspect.Signature(parameters)
    return call


def picked(values: Mapping[str, Any], make: Callable[..., Any]) -> dict[str, Any]:
    """Return those of a verb's ``values`` that a function declares, where it takes several."""
    return {name: value for name, value in values.items() if name in declared(make)}


def _parameter(name: str, each: Declared, unset: bool) -> inspect.Parameter:
    """Return a parameter for typer; ``unset`` leaves its default to the function it belongs to."""
    default, shown, (kind, several) = each.parameter.default, _shown(each), _kind(each)
    text = shown.default
    if unset and default is not inspect.Parameter.empty:
        hidden = default is None or default is False or default == ()
        hidden = hidden or "\n" in str(default)  # as a prompt has
        text = text or (None if hidden else str(default))
        default = False if kind is bool else None
    metavar = each.value or METAVARS.get(kind, name.strip("_").upper())
    described: dict[str, Any] = {
        "help": each.sentence, "metavar": None if kind is bool else metavar,
        "show_default": text or True, "rich_help_panel": shown.panel,
        "autocompletion": shown.offer,
    }  # fmt: skip
    if kind is int:
        described["min"] = each.bounds.get("ge")
    info = typer.Option(*_names(name, shown), **described)
    if each.parameter.kind is POSITIONAL and not unset:
        info = typer.Argument(**described)
    hint = list[kind] if several else kind  # type: ignore[valid-type]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default,
        annotation=Annotated[hint | None if default is None else hint, info],
    )  # fmt: skip


def _kind(each: Declared) -> tuple[Any, bool]:
    """Return the type of a parameter's value, and whether there may be several."""
    if each.choices:
        return str, False
    for option in each.options:
        if option in PLAIN:
            return option, False
    return next(i for option in each.options for i in get_args(option) if i in PLAIN), True


def _shown(each: Declared) -> Shown:
    """Return what the notes say of the help, the first where two say the same."""
    notes = [note for note in each.notes if isinstance(note, Shown)]
    fields = zip(*notes, strict=True) if notes else ()
    return Shown(*(next(filter(None, values), None) for values in fields))


def _names(name: str, shown: Shown) -> tuple[str, ...]:
    plain = name.strip("_").replace("_", "-")
    usual = NAMES.get(name, (f"-{plain}" if len(plain) == 1 else f"--{plain}",))
    return shown.names or usual
