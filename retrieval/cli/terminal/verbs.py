"""Makes a verb of a function, with the arguments, options and checks that several verbs share.

A parameter is declared once, as ``depth: Annotated[int, Ge(1), "Hits of each query."] = 50``: type,
bounds or choices, and the sentence of the help. ``takes`` adds what another function declares.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import typer

from sluice.encoders.foundation.build import Declared, declared, resolve
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import plural as plural
from sluice.retrieval.cli.terminal.printing import columns, fitted

if TYPE_CHECKING:
    from sluice.retrieval.evaluation.table import Table
    from sluice.retrieval.execution.executor import Executor


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


ConfigFile = Annotated[
    Path, "CONFIG", "The experiment's YAML file, or a name of `sluice config list recipes`."
]
Overrides = Annotated[
    list[str] | None, "KEY.PATH=VALUE", "Values that replace those of the file, as output=runs/x."
]
Rebuild = Annotated[
    bool,
    "Remove first what was made from another dataset, runs and results too, and "
    "rebuild also retrievers whose documents were added, updated or deleted since: "
    "all that is then lost.",
]
DatasetName = Annotated[
    str, "DATASET", "A BEIR folder, an ir_datasets id, hf:owner/name, pydocs, ..."
]
Measures = Annotated[
    list[str] | None,
    "MEASURE",
    "Measures such as nDCG@10, R@100, RR@10, AP: repeat it, or separate by commas.",
]
Queries = Annotated[
    Path | None, "A file of queries: JSON lines, TREC topics, tsv, csv, or one query a line."
]
Allow = Annotated[
    list[str] | None,
    "WHAT",
    "Permissions for code and services that the folder refers to: import "
    "MODULE:CLASS, reach a server (its URL, or http for any; URL=VARIABLE sends the "
    "key in that environment variable), fetch models and data from the hub (hub), "
    "write below a PATH, or have links there; may be repeated.",
    Shown("nothing"),
]
DOCUMENTS = "For documents"  # a heading of options
Links = Annotated[
    list[str] | None,
    "PATH",
    "Follow links in a folder of documents that lead out of it, below PATH; may be repeated.",
    Shown("none"),
]
PERSISTENCE = Shown(names=("-p", "--persistence"))
Json = Annotated[bool, "Print JSON."]
Plan = Annotated[bool, "Carry out the first task only; say what the others will take, and stop."]
ExecutorName = Annotated[
    str,
    "EXECUTOR",
    "Who carries out the tasks: local, processes, ray, or one with settings as YAML, "
    "such as '{type: processes, workers: 4}'.",
]

Form = Annotated[
    Literal["text", "markdown", "csv", "latex", "html", "json"],
    "Print as text, markdown, csv, latex, html or json.",
]


class Columns(NamedTuple):
    """The columns of a table of documents, which verbs that read one take."""

    id: Annotated[
        str | None, "COLUMN", "The ids' column; row numbers the rows.", Shown(panel=DOCUMENTS)
    ] = None
    text: Annotated[
        list[str] | None, "COLUMN", "The text's column; may be repeated.", Shown(panel=DOCUMENTS)
    ] = None
    title: Annotated[str | None, "COLUMN", "The titles' column.", Shown(panel=DOCUMENTS)] = None
    metadata: Annotated[
        list[str] | None,
        "COLUMN",
        "A column to keep for --where; may be repeated.",
        Shown("all others", panel=DOCUMENTS),
    ] = None


COLUMNS = "sluice.retrieval.cli.terminal.verbs:Columns"


def allowed(what: Sequence[str] | None) -> list[str]:
    """Return the values of ``--allow``; classes named there are found in the current folder too."""
    from sluice.retrieval.config.reading import find_own_modules

    words = list(what or ())
    find_own_modules({"allow": words}, None)
    return words


def executor_of(text: str) -> Executor:
    """Return the executor that ``--executor`` names; ``ConfigError`` for an unknown one."""
    from sluice.encoders.foundation.bounded_input import yaml_value
    from sluice.retrieval.config.components import make_executor

    spec = yaml_value(text, "--executor")
    return make_executor(spec if isinstance(spec, dict) else {"type": text})


def split_measures(texts: Sequence[str] | None, default: Sequence[str] = ()) -> list[str]:
    """Return the measures of ``-m A -m B,C``; a comma inside parentheses does not separate."""
    from sluice.retrieval.evaluation.measures import measure_names

    return measure_names(texts or ()) or list(default)


def split_overrides(words: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Separate names from ``key.path=value`` overrides, keeping the order of each."""
    names = [word for word in words or () if "=" not in word]
    return names, [word for word in words or () if "=" in word]


def refuse_options(reason: str, **options: object) -> None:
    """Raise ``ConfigError`` for an option that is set although it has no effect here."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: is {reason}")


def parse_numbers(text: str, option: str, example: str) -> list[float]:
    """Return the numbers of ``text``, which commas separate."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{option}: {text!r}; expected numbers separated by commas, as in {example}"
        ) from None


def show_table(table: Table, form: str) -> str:
    """Return a table in the form that ``--format`` names."""
    if form == "json":
        return json.dumps(table.to_dict(), indent=2, ensure_ascii=False)
    if form == "text" and sys.stdout.isatty():
        return fitted(table, columns())[0]
    return (str(table) if form == "text" else str(getattr(table, f"to_{form}")())).rstrip("\n")
