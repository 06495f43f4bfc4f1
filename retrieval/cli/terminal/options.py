"""Arguments, options and checks that several verbs share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import plural as plural
from sluice.retrieval.cli.terminal.messages import columns

if TYPE_CHECKING:
    from sluice.retrieval.evaluation.table import Table
    from sluice.retrieval.execution.executor import Executor

Command = Callable[..., None]


def argument(
    metavar: str, help: str, default: str | None = None, offer: Callable[..., Any] | None = None
) -> Any:
    """Describe a positional argument; ``offer`` returns what a shell completes a beginning to.

    ``default`` is as for an option.
    """
    return typer.Argument(
        metavar=metavar, help=help, show_default=default or True, autocompletion=offer
    )


def option(
    metavar: str,
    help: str,
    *names: str,
    default: str | None = None,
    panel: str | None = None,
    min: int | None = None,
) -> Any:
    """Describe an option that takes a value.

    ``names`` replace the one made from the parameter; ``default`` is the text to show where the
    parameter's own default (None) says nothing; ``panel`` is a heading of its own in the help.
    """
    return typer.Option(
        *names, metavar=metavar, help=help, show_default=default or True, rich_help_panel=panel,
        min=min,
    )  # fmt: skip


def flag(help: str, *names: str, panel: str | None = None) -> Any:
    """Describe an option that takes no value."""
    return typer.Option(*names, help=help, rich_help_panel=panel)


ConfigFile = Annotated[
    Path,
    argument("CONFIG", "The experiment's YAML file, or a name of `sluice config list recipes`."),
]
Overrides = Annotated[
    list[str] | None,
    argument("KEY.PATH=VALUE", "Values that replace those of the file, as output=runs/x."),
]
Rebuild = Annotated[
    bool,
    flag(
        "Remove first what was made from another dataset, runs and results too, and rebuild also "
        "retrievers whose documents were added, updated or deleted since: all that is then lost.",
        "--rebuild",
    ),
]
DatasetName = Annotated[
    str, argument("DATASET", "A BEIR folder, an ir_datasets id, hf:owner/name, pydocs, ...")
]
Measures = Annotated[
    list[str] | None,
    option(
        "MEASURE",
        "Measures such as nDCG@10, R@100, RR@10, AP: repeat it, or separate by commas.",
        "-m",
        "--measure",
    ),
]
Queries = Annotated[
    Path | None,
    option("FILE", "A file of queries: JSON lines, TREC topics, tsv, csv, or one query a line."),
]
Allow = Annotated[
    list[str] | None,
    option(
        "WHAT",
        "Permissions for code and services that the folder refers to: import MODULE:CLASS, reach a "
        "server (its URL, or http for any; URL=VARIABLE sends the key in that environment "
        "variable), fetch models and data from the hub (hub), write below a PATH, or have links "
        "there; may be repeated.",
        "--allow",
        default="nothing",
    ),
]
DOCUMENTS = "For documents"  # a heading of options
_column = partial(option, "COLUMN", panel=DOCUMENTS)
IdColumn = Annotated[str | None, _column("The ids' column; row numbers the rows.", "--id")]
TextColumns = Annotated[list[str] | None, _column("The text's column; may be repeated.", "--text")]
TitleColumn = Annotated[str | None, _column("The titles' column.", "--title")]
MetadataColumns = Annotated[
    list[str] | None,
    _column("A column to keep for --where; may be repeated.", "--metadata", default="all others"),
]
Links = Annotated[
    list[str] | None,
    option(
        "PATH",
        "Follow links in a folder of documents that lead out of it, below PATH; may be repeated.",
        "--allow",
        default="none",
    ),
]
Json = Annotated[bool, flag("Print JSON.", "--json")]

Plan = Annotated[
    bool,
    flag("Carry out the first task only; say what the others will take, and stop.", "--plan"),
]
ExecutorName = Annotated[
    str,
    option(
        "EXECUTOR",
        "Who carries out the tasks: local, processes, ray, or one with settings as YAML, such as "
        "'{type: processes, workers: 4}'.",
        "--executor",
    ),
]

FORMS = ("text", "markdown", "csv", "latex", "html", "json")
Form = Annotated[
    str, option("FORM", "Print as text, markdown, csv, latex, html or json.", "--format")
]


def named_columns(**columns: Any) -> dict[str, Any]:
    """Return the columns of documents that were named, by their part."""
    return {part: value for part, value in columns.items() if value is not None}


def allowed(what: Sequence[str] | None) -> list[str]:
    """Return the values of ``--allow``; classes named there are found in the current folder too."""
    from sluice.retrieval.config.reading import find_own_modules

    words = list(what or ())
    find_own_modules({"allow": words}, None)
    return words


def executor_of(text: str) -> Executor:
    """Return the executor that ``--executor`` names; ``ConfigError`` for an unknown one."""
    import yaml

    from sluice.encoders.foundation.input.plain_yaml import load_yaml
    from sluice.retrieval.config.components import make_executor

    try:
        spec: Any = load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--executor: {text!r:.200} is not YAML ({error})") from None
    return make_executor(spec if isinstance(spec, dict) else {"type": text})


def split_measures(texts: Sequence[str] | None, default: Sequence[str] = ()) -> list[str]:
    """Return the measures of ``-m A -m B,C``; a comma inside parentheses does not separate."""
    from sluice.retrieval.evaluation.measures import measure_names

    return measure_names(texts or ()) or list(default)


def split_overrides(words: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Separate names from ``key.path=value`` overrides, keeping the order of each."""
    names = [word for word in words or () if "=" not in word]
    return names, [word for word in words or () if "=" in word]


def check_choice(value: str, option: str, known: Collection[str]) -> None:
    """Raise ``ConfigError`` for a value of ``option`` that is not among ``known``."""
    if value not in known:
        raise ConfigError(
            f"{option}: {value!r}; expected one of {', '.join(known)}{suggest(value, known)}"
        )


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
    """Return a table in one of ``FORMS``."""
    if form == "json":
        return json.dumps(table.to_dict(), indent=2, ensure_ascii=False)
    if form == "text" and sys.stdout.isatty():
        from sluice.retrieval.cli.terminal.table import fitted

        return fitted(table, columns())[0]
    return (str(table) if form == "text" else str(getattr(table, f"to_{form}")())).rstrip("\n")
