"""Arguments, options and checks that several verbs share."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import plural as plural
from sluice.retrieval.cli.terminal.messages import columns
from sluice.retrieval.cli.terminal.verbs import Shown

if TYPE_CHECKING:
    from sluice.retrieval.evaluation.table import Table
    from sluice.retrieval.execution.executor import Executor


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


COLUMNS = "sluice.retrieval.cli.terminal.options:Columns"


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
        from sluice.retrieval.cli.terminal.printing import fitted

        return fitted(table, columns())[0]
    return (str(table) if form == "text" else str(getattr(table, f"to_{form}")())).rstrip("\n")
