"""The verb that searches: one query, a file of them, or of their vectors."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError, SluiceError
from sluice.retrieval.cli.searching.opening import Pipeline, Searched, opened
from sluice.retrieval.cli.terminal.hits import print_hits
from sluice.retrieval.cli.terminal.messages import echo
from sluice.retrieval.cli.terminal.options import Allow, Queries, allowed, plural, refuse_options
from sluice.retrieval.cli.terminal.verbs import Command, Shown

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.stage import Stage


def search(
    path: Searched,
    query: Annotated[str | None, "One query; if left out, they are asked for, or read."] = None,
    *,
    queries: Queries = None,
    vectors: Annotated[
        Path | None,
        'A file of query vectors: JSON lines {"id", "vector": {token: weight}}; for a '
        "dense index .npy, .parquet, .safetensors, or JSON lines with embeddings.",
    ] = None,
    output: Annotated[
        Path | None, "RUN", "The TREC run to write, for --queries and --vectors; .gz compresses."
    ] = None,
    k: Annotated[
        int | None, Ge(1), "Documents for each query.", Shown("10, with --vectors 1000")
    ] = None,
    pipeline: Pipeline = None,
    where: Annotated[
        list[str] | None,
        "CONDITION",
        "Only documents whose metadata match KEY=VALUE, or KEY and VALUE with !=, >=, >, "
        "<=, < between them; if repeated, all must hold.",
    ] = None,
    param: Annotated[
        list[str] | None,
        "NAME=VALUE",
        "A search parameter of the retriever's index, such as alpha=0.9 or nprobe=32; repeatable.",
    ] = None,
    as_json: Annotated[bool, "Print hits as JSON lines."] = False,
    allow: Allow = None,
) -> None:
    """Search with one query or a file of them.

    Without a query, a terminal asks for one after another, and from elsewhere each line of the
    input is one. A file of queries, or of their vectors, produces a TREC run.

    A value of --where is read as JSON if it is valid JSON (2020, true, null for none, ["en","de"]
    for any of them), else as text. Put text that looks like a number in double quotes:
    'code="007"'.

    Examples:
      sluice search runs/x/retrievers/bm25 "who found gold in the river"
      sluice search runs/x/retrievers/bm25 "gold" --where lang=en --where 'year>=2020'
      sluice search runs/x/retrievers/bm25 "gold" --param alpha=0.9
      sluice search runs/x "a question" --pipeline cascade
      sluice search runs/x
      sluice search runs/x/retrievers/bm25 --queries q.jsonl -k 1000 --output run.trec
      sluice search runs/imported --vectors queries.npy --output run.trec
    """
    if sum(source is not None for source in (query, queries, vectors)) > 1:
        raise ConfigError("search: give one of QUERY, --queries FILE and --vectors FILE, not two")
    if (queries is not None or vectors is not None) and output is None:
        source = "--queries" if vectors is None else "--vectors"
        raise ConfigError(f"search: {source} needs --output, the run file to write")
    if vectors is not None:
        refuse_options("not for --vectors", pipeline=pipeline, where=where)
        depth = 1000 if k is None else k
        params = parse_params(param or ())
        _search_vectors(path, vectors, Path(str(output)), depth, params, allowed(allow))
        return
    if queries is None:
        refuse_options("for --queries and --vectors", output=output)
        _load_numpy_for_one_query()
    from sluice.retrieval.retrievers.retriever import Retriever

    k = 10 if k is None else k
    stage, name = opened(path, pipeline, allowed(allow), quick=queries is None)
    if param:
        if not isinstance(stage, Retriever):
            raise ConfigError(
                f"--param: {name!r} is a pipeline; set the parameters of its retrievers in the "
                "YAML file, under retrievers.NAME.search"
            )
        stage.params = {**stage.params, **parse_params(param)}
    if where:
        from sluice.retrieval.documents.where import parse_where

        stage = stage.filtered(parse_where(where))
    if queries is not None and output is not None:
        from sluice.retrieval.datasets.beir import read_queries

        texts = dict(read_queries(queries))
        run = stage.run(texts, None, k).top(k)
        run.name = name or path.name
        run.save(output)
        echo(f"{output}: {plural(len(run), 'query')}")
    elif query is not None:
        print_hits(stage.search(query, k), query, as_json=as_json)
    elif sys.stdin is not None and sys.stdin.isatty():
        _prompt(stage, k, as_json=as_json)
    else:
        _search_lines(stage, k, as_json=as_json)


def _load_numpy_for_one_query() -> None:
    """Load numpy with one thread: its small products are slower when threads wait for each other.

    That holds for ``encoders.backends.quick``; torch and the compiled kernels have
    threads of their own.
    """
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import numpy  # noqa: F401


def _search_lines(stage: Stage, k: int, *, as_json: bool) -> None:
    """Search with each line of the standard input that is not blank."""
    lines = iter(()) if sys.stdin is None else (line.strip() for line in sys.stdin)
    empty = True
    for line in filter(None, lines):
        empty = False
        print_hits(stage.search(line, k), line, as_json=as_json, several=True)
    if empty:
        raise ConfigError("search: no query; give QUERY, --queries FILE or lines on the input")


def _prompt(stage: Stage, k: int, *, as_json: bool) -> None:
    """Ask for queries until an empty line or the end of the input; ``:k 20`` changes ``k``."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives input() a history and editing; not on Windows
    echo("An empty line ends. :k 20 shows 20 hits.", err=True)
    while True:
        try:
            line = input("query> ").strip()
        except (EOFError, KeyboardInterrupt):
            echo(err=True)
            return
        if line in ("", ":q"):
            return
        if line.startswith(":k"):
            number = line.removeprefix(":k").strip()
            if number.isdecimal() and int(number):
                k = int(number)
            else:
                echo(f"{line}: expected a number of hits, such as :k 20", err=True)
            continue
        try:
            print_hits(stage.search(line, k), line, as_json=as_json)
        except SluiceError as error:
            echo(f"error: {error}", err=True)


def parse_params(texts: Iterable[str]) -> dict[str, Any]:
    """Return search parameters written as ``NAME=VALUE``; values are JSON where they can be."""
    params: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise ConfigError(f"--param {text!r}: expected NAME=VALUE, such as alpha=0.9")
        if name in params:
            raise ConfigError(f"--param {text}: {name} is given twice")
        try:
            params[name] = json.loads(value)
        except ValueError:
            params[name] = value
    return params


def _search_vectors(
    path: Path, file: Path, output: Path, k: int, params: Mapping[str, Any], allow: Sequence[str]
) -> None:
    """Search a retriever with precomputed query vectors into a TREC run."""
    from sluice.retrieval.exchange.query_vectors import queries_of, run_vectors
    from sluice.retrieval.retrievers.retriever import Retriever

    retriever = Retriever.open(path, params=params, allow=allow)
    ids, vectors = queries_of(retriever, file)
    run = run_vectors(retriever, ids, vectors, k)
    run.name = path.name
    run.save(output)
    echo(f"{output}: {plural(len(run), 'query')}")


COMMANDS: dict[str, Command] = {"search": search}
