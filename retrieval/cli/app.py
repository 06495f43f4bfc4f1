"""Registers the verbs of ``sluice`` under their headings and formats their help."""

from __future__ import annotations

import functools
import inspect
import logging
import platform
import sys
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sluice.retrieval.cli import config, experiment, files
from sluice.retrieval.cli.measuring import diagnose, gate, judging, results, score
from sluice.retrieval.cli.searching import changes, search, serve
from sluice.retrieval.cli.terminal.printing import LogFormatter, echo
from sluice.retrieval.cli.terminal.verbs import Command, with_options
from sluice.retrieval.cli.training import model, stages, training_data

EXPERIMENTS = "Experiments, from a YAML file"
SEARCH = "Search"
MEASURE = "Measure"
TRAINING = "Training data, fitting and models"
FILES = "Data and files"

HEADINGS: dict[str, dict[str, Command]] = {
    EXPERIMENTS: experiment.COMMANDS,
    SEARCH: search.COMMANDS | changes.COMMANDS | serve.COMMANDS,
    MEASURE: score.COMMANDS | gate.COMMANDS,
    TRAINING: training_data.COMMANDS,
    FILES: files.COMMANDS,
}
# A verb with sub-verbs: its heading, its help and these.
GROUPS: dict[str, tuple[str, str, dict[str, Command]]] = {
    "diagnose": (MEASURE, diagnose.__doc__ or "", diagnose.COMMANDS),
    "plot": (MEASURE, results.PLOT, results.PLOT_COMMANDS),
    "labels": (MEASURE, judging.__doc__ or "", judging.COMMANDS),
    "teach": (TRAINING, training_data.TEACH, training_data.TEACH_COMMANDS),
    "fit": (TRAINING, stages.FIT, stages.COMMANDS),
    "model": (TRAINING, model.__doc__ or "", model.COMMANDS),
    "data": (FILES, files.DATA, files.DATA_COMMANDS),
    "config": (EXPERIMENTS, config.__doc__ or "", config.COMMANDS),
}

DEFAULTS = {"data": "describe"}  # of a verb with sub-verbs, the one of words that begin with none
SHOWN_PACKAGES = ("torch", "transformers", "numpy", "faiss-cpu", "numba")  # by --version
FIRST_LINE = 45  # characters of a verb's first line, which fits into the list of verbs
NAMES_WIDTH = 26  # columns for an option's name; a longer one has its help on the next line


class Verb(TyperCommand):
    """A verb whose help is plain text: upper-case metavars, and defaults in one style.

    Its parameters are looked up when they are needed, so that the list of verbs stays fast.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._function: Command = self.__dict__.pop("callback").function
        del self.__dict__["params"]

    @functools.cached_property
    def _typed(self) -> Any:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command()(with_options(self._function))
        return typer.main.get_command(single)

    @functools.cached_property
    def params(self) -> Any:  # type: ignore[override]
        """The arguments and options."""
        return self._typed.params

    @functools.cached_property
    def callback(self) -> Any:  # type: ignore[override]
        """What the verb does."""
        return self._typed.callback

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the verb; explain ``--output x`` for a key of the YAML file."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            name = getattr(error, "option_name", None)  # NoSuchOption has it
            takes_overrides = any(each.name == "overrides" for each in self.params)
            arguments = [_usage_name(each) for each in self.params if _is_argument(each)]
            word = str(name).removeprefix("--").upper()
            if isinstance(name, str) and word in (each.strip("[].") for each in arguments):
                error.remedy = f"{word} is a plain word, without {name}"  # type: ignore[attr-defined]
            elif isinstance(name, str) and name.startswith("--") and takes_overrides:
                key = name.removeprefix("--").replace("-", "_")
                error.remedy = f"for a key of the file, write {key}=VALUE behind it"  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line after the verb: options, then arguments in order."""
        arguments = [_usage_name(each) for each in self.params if _is_argument(each)]
        return ["[OPTIONS]", *arguments]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options."""
        _write_parameters(self.get_params(ctx), formatter)


class Verbs(TyperGroup):
    """Verbs, or the sub-verbs of one, listed under the headings they were registered with."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the group's name; the first may be left out where one is usual."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [*filter(None, [DEFAULTS.get(ctx.info_name)]), *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line after the group's name."""
        return ["[OPTIONS]", "VERB", "..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs by heading, and after them the options."""
        self.format_commands(ctx, formatter)
        _write_parameters(self.get_params(ctx), formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each verb with the first line of its help, under its heading."""
        width = max(map(len, self.commands))
        headings: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None)
            title = heading if isinstance(heading, str) else "Verbs"
            row = (name.ljust(width), first_line(command.help or ""))
            headings.setdefault(title, []).append(row)
        for title, rows in headings.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def first_line(text: str) -> str:
    """Return the first line of a verb's help."""
    return text.partition("\n")[0]


def _help(command: Command) -> str:
    """Return a verb's docstring, its examples marked to stay one on each line."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(f"\b\n{part}" if part.startswith("Example") else part for part in paragraphs)


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _usage_name(parameter: Any) -> str:
    name = str(parameter.metavar) + ("..." if parameter.nargs != 1 else "")
    return name if parameter.required else f"[{name}]"


def _write_parameters(parameters: list[Any], formatter: Any) -> None:
    """Write the arguments, the options, and the options that have a heading of their own."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        panel = getattr(parameter, "rich_help_panel", None)
        usual = "Arguments" if _is_argument(parameter) else "Options"
        title = panel if isinstance(panel, str) else usual
        sections.setdefault(title, []).append((_name(parameter), _description(parameter)))
    first = [title for title in ("Arguments", "Options") if title in sections]
    for title in [*first, *(title for title in sections if title not in first)]:
        with formatter.section(title):
            formatter.write_dl(sections[title], col_max=NAMES_WIDTH)


def _name(parameter: Any) -> str:
    if _is_argument(parameter):
        return str(parameter.metavar) + ("..." if parameter.nargs != 1 else "")
    name = ", ".join(sorted(parameter.opts, key=len))
    return f"{name} {parameter.metavar}" if parameter.metavar else name


def _description(parameter: Any) -> str:
    notes = list(_notes(parameter))
    return " ".join([parameter.help or "", *(f"[{note}]" for note in notes)]).strip()


def _notes(parameter: Any) -> Iterator[str]:
    if parameter.required and not _is_argument(parameter):
        yield "required"
    shown, default = parameter.show_default, parameter.default
    if isinstance(shown, str):
        yield f"default: {shown}"
    elif isinstance(default, str | int | float) and not isinstance(default, bool):
        yield f"default: {default}"


app = typer.Typer(
    name="sluice",
    cls=Verbs,
    help="""Dense and sparse neural retrieval: train, index, rerank, evaluate.

\b
Start here:
  sluice run quickstart
  sluice config init

\b
A YAML file describes an experiment. Add KEY=VALUE to override a setting:
  sluice run quickstart output=runs/mine seed=1

`sluice VERB -h` has the options of a verb and examples.""",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _add(owner: typer.Typer, name: str, command: Command, heading: str) -> None:
    def verb() -> None: ...

    verb.__dict__["function"] = command
    owner.command(name, cls=Verb, help=_help(command), rich_help_panel=heading)(verb)


def _register() -> None:
    """Register every verb under its heading, in the order of the help."""
    for heading, commands in HEADINGS.items():
        for name, command in commands.items():
            _add(app, name, command, heading)
    for name, (heading, doc, commands) in GROUPS.items():
        group = typer.Typer(cls=Verbs, no_args_is_help=True, rich_markup_mode=None)
        for verb, command in commands.items():
            _add(group, verb, command, "Verbs")
        app.add_typer(group, name=name, help=inspect.cleandoc(doc), rich_help_panel=heading)


def _show_version(wanted: bool) -> None:
    if wanted:
        echo(f"sluice {version('sluice-ir')}")
        echo(f"python {platform.python_version()}")
        for name in SHOWN_PACKAGES:
            echo(f"{name} {version(name)}")
        raise typer.Exit


def version(name: str) -> str:
    """Return the version of an installed distribution, which is not imported."""
    from importlib.metadata import PackageNotFoundError, version as version_of

    try:
        return version_of(name)
    except PackageNotFoundError:
        return "unknown (not installed)"


@app.callback()
def _settings(
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Show warnings and errors only."),
    _version: bool = typer.Option(
        False, "--version", help="Show versions and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("sluice").setLevel(logging.WARNING if quiet else logging.INFO)


_register()
