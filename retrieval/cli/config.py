"""Write, check and look up YAML files.

An editor that knows the schema completes keys and marks errors while you write: each file that
`sluice config init` makes names it in its first line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import Command, ConfigFile, Overrides, Shown, plural


def _offered(ctx: typer.Context, beginning: str) -> list[str]:
    """Return what a shell offers after a beginning: the usual names, else all that fit."""
    from sluice.retrieval.config.schema.catalogue import core, entries, kinds
    from sluice.retrieval.planning.drafts import jobs

    if "job" in ctx.params:
        few, names = list(jobs(core=True)), list(jobs())
    elif (kind := ctx.params.get("kind")) is not None:
        few, names = core(kind), list(entries(kind))
    else:
        few = names = kinds()
    usual = [name for name in few if name.startswith(beginning)]
    return usual or [name for name in names if name.startswith(beginning)]


def init(
    job: Annotated[
        list[str] | None,
        "A job or a recipe: sluice config init --list has them.",
        Shown(offer=_offered),
    ] = None,
    *,
    dataset: Annotated[str | None, "NAME", "The dataset to fill it from."] = None,
    documents: Annotated[
        str | None, "PATH", "A file or folder of documents to fill it from."
    ] = None,
    pairs: Annotated[str | None, "FILE", "A file of training pairs to fill it from."] = None,
    queries: Annotated[
        str | None, "FILE", "Queries about the documents: TREC topics, a table, or lines."
    ] = None,
    qrels: Annotated[
        list[str] | None,
        "FILE",
        "Judgements of the queries; SPLIT=FILE, repeated, where there are several splits.",
    ] = None,
    id: Annotated[str | None, "COLUMN", "The column of the documents' ids."] = None,
    text: Annotated[list[str] | None, "COLUMN", "The text's column; may be repeated."] = None,
    title: Annotated[str | None, "COLUMN", "The titles' column."] = None,
    output: Annotated[Path | None, "The YAML file to write.", Shown("JOB.yaml")] = None,
    list_: Annotated[bool, "List the jobs and recipes."] = False,
    all_: Annotated[bool, "List every recipe."] = False,
    sample: Annotated[
        bool, "Write the small sample files beside it that it names; without JOB every one."
    ] = False,
) -> None:
    """Write a commented YAML file for a job.

    The data is looked at: its splits, the number of documents and how long they and the queries
    are, from which lengths and passages follow. A recipe is copied as it is. An existing file is
    left alone. Sample files have the names and the form of what recipes and documentation read:
    catalogue.jsonl, queries.jsonl, dev.tsv, test.tsv, clicks.jsonl, concepts.txt.

    Examples:
      sluice config init --list
      sluice config init hybrid --dataset pydocs
      sluice config init train dense --pairs pairs.csv --output my.yaml
      sluice config init production-hybrid --sample
      sluice config init evaluate --documents docs.csv --queries topics.tsv --qrels qrels.txt
    """
    from sluice.retrieval.planning.drafts import draft, jobs

    if sample and not job:
        _say_samples(Path())
        return
    if list_ or all_ or not job:
        _print(jobs(), jobs(core=True), all_, "sluice config init --all")
        return
    file = output or Path("-".join(job) + ".yaml")
    if file.exists():
        raise ConfigError(f"{file}: exists and is left alone; name another file with --output")
    columns = {"id": id, "text": text, "title": title}
    own = {
        "columns": {key: value for key, value in columns.items() if value},
        "queries": queries,
        "qrels": _splits(qrels or []),
    }
    drafted = draft(
        " ".join(job), file, dataset=dataset, documents=documents, pairs=pairs,
        own={key: value for key, value in own.items() if value},
    )  # fmt: skip
    from sluice.encoders.foundation.disk.files import write_text

    if sample:
        _say_samples(file.parent, drafted)
    write_text(file, drafted)
    echo(f"{file}: written; look it through, then: sluice config check {file}")


def _say_samples(folder: Path, drafted: str | None = None) -> None:
    """Write the sample files that a text names, or all; say which."""
    from sluice.retrieval.planning.samples import write_samples

    written = write_samples(folder, drafted)
    echo("".join(f"{file}: written\n" for file in written) or "sample files: all there already")


def _splits(qrels: list[str]) -> str | dict[str, str]:
    """Return files of judgements as a config names them: one file, or a mapping by split."""
    if len(qrels) == 1 and "=" not in qrels[0]:
        return qrels[0]
    named = dict(each.split("=", 1) for each in qrels if "=" in each)
    if len(named) < len(qrels):
        raise ConfigError("--qrels: expected SPLIT=FILE for each of several splits, as dev=dev.txt")
    return named


def check(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    fast: Annotated[bool, "Load no model and measure nothing."] = False,
) -> None:
    """Check a YAML file, and say what it would do.

    Every problem is listed, not the first alone. Without one: the steps, which of them are done
    already, and about how long the others take on this machine when it is idle, with how much
    memory and disk space. Models are loaded and read a few texts to measure that; --fast lists the
    steps without. Nothing is written. The exit code is 2 where there is a problem.

    Examples:
      sluice config check quickstart
      sluice config check experiment.yaml dataset=scifact --fast
    """
    from sluice.retrieval.config.reading import load_values
    from sluice.retrieval.config.yaml_file import recipe_or_file
    from sluice.retrieval.planning.problems import problems

    file = recipe_or_file(config)
    values = load_values(file, overrides or [])
    faults = problems(values, file)
    if faults:
        echo(f"{file}: {plural(len(faults), 'problem')}", err=True)
        for each in faults:
            echo(f"  {each}", err=True)
        raise typer.Exit(2)
    from sluice.retrieval.planning.plan import plan

    steps = plan(values, file, measure=not fast)  # reads the data, and so may find a problem
    echo(f"{file}: no problem\n{steps}")


def list_names(
    kind: Annotated[
        str | None,
        "losses, encoders, rerankers, indexes, stages, measures, examples, negatives, "
        "tunings, rankers, teachers, executors, launchers, datasets or recipes.",
        Shown(offer=_offered),
    ] = None,
    name: Annotated[str | None, "Show the arguments of this one.", Shown(offer=_offered)] = None,
    *,
    all_: Annotated[bool, "List every name, not the usual ones alone."] = False,
) -> None:
    """List what a YAML file may name.

    Without KIND: the kinds, and the names most people need; --all lists every name. With NAME,
    which may be a module:Class of your own: its arguments, their types and defaults.

    Examples:
      sluice config list losses
      sluice config list losses --all
      sluice config list losses info_nce
    """
    from sluice.retrieval.config.schema.catalogue import core, entries, entry, kinds, shown

    if kind is None:
        width = max(map(len, kinds()))
        for each in kinds():
            every, few = list(entries(each)), core(each)
            names = sorted(every, key=lambda name: name not in few) if all_ else few
            more = f" and {len(every) - len(names)} more" if len(names) < len(every) else ""
            echo(f"{each.ljust(width)}  {', '.join(names)}{more}")
        return
    if name is not None:
        echo(shown(entry(kind, name), kind))
        return
    lines = entries(kind)
    _print(lines, core(kind), all_, f"sluice config list {kind} --all")


def _print(lines: Mapping[str, str], few: Collection[str], every: bool, more: str) -> None:
    """Print the lines of ``few`` names, then the others or the command that prints them."""
    names = sorted(lines if every else few, key=lambda name: name not in few)
    width = max(map(len, names))
    for name in names:
        echo(f"{name.ljust(width)}  {lines[name]}".rstrip())
    if len(names) < len(lines):
        echo(f"and {len(lines) - len(names)} more: {more}")


def schema(
    *, output: Annotated[Path | None, "The file to write.", Shown("print it")] = None
) -> None:
    """Print the JSON schema of experiment files.

    Name it in the first line of a YAML file for editors with a YAML language server:
    `# yaml-language-server: $schema=sluice.schema.json`.

    Example:
      sluice config schema --output sluice.schema.json
    """
    from sluice.retrieval.config.yaml_file import SCHEMA, configs

    text = (configs() / SCHEMA).read_text(encoding="utf-8")
    if output is None:
        echo(text, nl=False)
        return
    from sluice.encoders.foundation.disk.files import write_text

    write_text(output, text)
    echo(f"{output}: the schema of experiment files")


COMMANDS: dict[str, Command] = {"init": init, "check": check, "list": list_names, "schema": schema}
