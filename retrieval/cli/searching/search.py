"""The verbs that search: one query or a file of them; and that show why a document was found."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError, SluiceError
from sluice.retrieval.cli.terminal.printing import echo, print_hits
from sluice.retrieval.cli.terminal.verbs import (
    Allow,
    Command,
    Queries,
    Shown,
    allowed,
    plural,
    refuse_options,
)

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.hit import TokenMatch
    from sluice.retrieval.pipelines.stage import Stage
    from sluice.retrieval.retrievers.explanation import Explanation
    from sluice.retrieval.retrievers.retriever import Retriever


log = logging.getLogger("sluice")

Searched = Annotated[Path, "FOLDER", "A retriever's folder, or an experiment's output."]
Pipeline = Annotated[
    str | None,
    "NAME",
    "The pipeline to use, where FOLDER is an experiment's output.",
    Shown("the last one"),
]


def opened(
    path: Path, pipeline: str | None, allow: Sequence[str], *, quick: bool = False
) -> tuple[Stage, str | None]:
    """Open a retriever's folder, or a pipeline; return the pipeline's name too."""
    from sluice.retrieval.retrievers.folder import HEAD
    from sluice.retrieval.retrievers.retriever import Retriever

    if (path / HEAD).exists() and pipeline is None:
        return Retriever.open(path, allow=allow, quick=quick), None
    from sluice.retrieval.experiments.output.folder import SETTINGS
    from sluice.retrieval.pipelines.saving import PIPELINE

    if (path / PIPELINE).exists():
        from sluice.retrieval.experiments.experiment import load_pipeline

        return load_pipeline(path, pipeline or "", allow=allow), path.absolute().name
    if not (path / SETTINGS).exists():
        parts = sorted(file.parent.name for file in path.glob(f"datasets/*/{SETTINGS}"))
        if parts:
            raise ConfigError(
                f"{path}: is an evaluation of several datasets; name one of them: "
                f"{path}/datasets/NAME ({', '.join(parts)})"
            )
        if pipeline is None:
            return Retriever.open(path), None  # says what is missing
    from sluice.retrieval.experiments.experiment import open_experiment
    from sluice.retrieval.experiments.own_documents import HYBRID

    experiment = open_experiment(path, allow=allow, quick=quick)
    name = pipeline or experiment.systems[-1]
    if pipeline is None and len(experiment.systems) > 1 and name != HYBRID:  # else as meant
        others = ", ".join(experiment.systems[:-1])
        log.info("searching with the last pipeline, %s; --pipeline takes %s too", name, others)
    return experiment.stage(name), name


def explain(
    path: Searched,
    query: Annotated[str, "The query."],
    doc_id: Annotated[str | None, "The document to explain; if left out, the best hits."] = None,
    *,
    k: Annotated[int, Ge(1), "Hits to explain if there is no DOC_ID."] = 1,
    pipeline: Pipeline = None,
    as_json: Annotated[bool, "Print explanations as JSON lines."] = False,
    allow: Allow = None,
) -> None:
    """Show why a document was found.

    For a sparse retriever (BM25, SPLADE): what each term adds to the score, and which engine the
    index's planner chose. For one of token vectors: which of the document's tokens each of the
    query's met. For a pipeline: what each stage received and returned, which retriever found the
    document, how its rank changed, the terms that matched and the tokens that met.

    Examples:
      sluice explain runs/x/retrievers/bm25 "who found gold in the river" doc17
      sluice explain runs/x/retrievers/splade "who found gold in the river" -k 3
      sluice explain runs/x "who found gold in the river" --pipeline cascade -k 3
    """
    stage, name = opened(path, pipeline, allowed(allow))
    if name is not None:
        from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline

        explain_pipeline(stage, query, k)  # loads the models, so that no stage is charged for it
        trace = explain_pipeline(stage, query, k, doc_ids=None if doc_id is None else [doc_id])
        if as_json:
            typer.echo(json.dumps(trace.as_dict(), ensure_ascii=False))
        else:
            echo(trace)
        return
    from sluice.retrieval.runs.queries import DEPTH

    retriever = cast("Retriever", stage)
    if doc_id is not None:
        doc_ids = [doc_id]
    else:  # to the depth at which ranks are counted, because a cut may fall among equal scores
        doc_ids = list(retriever.run({"query": query}, None, max(k, DEPTH))["query"].doc_ids)[:k]
    if not doc_ids:
        echo("no document is found for the query", err=True)
    for place, each in enumerate(doc_ids):
        explanation = retriever.explain(query, each)
        if as_json:
            typer.echo(json.dumps(explanation.as_dict(), ensure_ascii=False))
        else:
            for text in (explanation.plan_text, explanation.recall) if place == 0 else ():
                if text:
                    echo(text)
            echo(_shown(explanation))


def _shown(explanation: Explanation) -> str:
    if not explanation.terms and not explanation.matches:
        return f"{explanation.doc_id}: shares no term with the query, so it is not a hit"
    place = "beyond the first 1,000" if explanation.rank is None else f"rank {explanation.rank}"
    if explanation.passage is not None:
        place += f", by its passage {explanation.passage}"
    lines = [f"{explanation.doc_id}  score {explanation.score:.4f}  {place}"]
    if explanation.matches:
        return "\n".join([*lines, *_token_lines(explanation.matches)])
    width = max(4, *(len(part.term) for part in explanation.terms))
    lines.append(f"  {'term':<{width}}  {'query':>9}  {'document':>9}  {'adds':>9}")
    for part in explanation.terms:
        numbers = f"{part.query_weight:9.4f}  {part.impact:9.4f}  {part.contribution:9.4f}"
        lines.append(f"  {part.term:<{width}}  {numbers}")
    return "\n".join(lines)


def _token_lines(matches: Sequence[TokenMatch]) -> Iterator[str]:
    """Yield which tokens met, a line for each token of the query, in its order."""
    width = max(5, *(len(match.query_token) for match in matches))
    other = max(8, *(len(match.document_token) for match in matches))
    yield f"  {'query':<{width}}  {'document':<{other}}  {'place':>5}  {'adds':>9}"
    for match in matches:
        tokens = f"{match.query_token:<{width}}  {match.document_token:<{other}}"
        yield f"  {tokens}  {match.document_place:>5}  {match.similarity:9.4f}"


def search(
    path: Searched,
    query: Annotated[
        list[str] | None,
        "QUERY",
        "A query, with --fuse several; if left out, they are asked for, or read.",
    ] = None,
    *,
    fuse: Annotated[bool, "Take several queries as one search: their lists are fused."] = False,
    context: Annotated[
        str | None, "TEXT", "The reasoning so far, read behind the query; by BM25 as a document."
    ] = None,
    seen: Annotated[
        list[str] | None,
        "ID",
        "A document to leave out, repeatable; others take the places.",
    ] = None,
    budget_tokens: Annotated[
        int | None,
        "N",
        "Fill so many tokens with the best passages, without repetition.",
    ] = None,
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
    regex: Annotated[
        str | None,
        "PATTERN",
        "Only documents whose text a regular expression of RE2's matches, with ^ and $ for lines.",
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
      sluice search my "parse a date" --regex "^ *def .*date"
      sluice search runs/x/retrievers/bm25 "gold" --param alpha=0.9
      sluice search runs/x/retrievers/bm25 "gold rush" "river mining" --fuse --seen doc17
      sluice search runs/x "who found gold" --budget-tokens 1000
      sluice search runs/x "a question" --pipeline cascade
      sluice search runs/x
      sluice search runs/x/retrievers/bm25 --queries q.jsonl -k 1000 --output run.trec
      sluice search runs/imported --vectors queries.npy --output run.trec
    """
    if sum(source is not None for source in (query or None, queries, vectors)) > 1:
        raise ConfigError("search: give one of QUERY, --queries FILE and --vectors FILE, not two")
    if (queries is not None or vectors is not None) and output is None:
        source = "--queries" if vectors is None else "--vectors"
        raise ConfigError(f"search: {source} needs --output, the run file to write")
    beside = {"fuse": fuse or None, "context": context, "seen": seen,
              "budget_tokens": budget_tokens}  # fmt: skip
    _check_texts(query or [], beside)
    if vectors is not None:
        refuse_options("not for --vectors", pipeline=pipeline, where=where, regex=regex)
        depth = 1000 if k is None else k
        params = parse_params(param or ())
        _search_vectors(path, vectors, Path(str(output)), depth, params, allowed(allow))
        return
    if queries is None:
        refuse_options("for --queries and --vectors", output=output)
        _load_numpy_for_one_query()
    from sluice.retrieval.retrievers.retriever import Retriever

    hits, k = k, 10 if k is None else k
    stage, name = opened(path, pipeline, allowed(allow), quick=queries is None)
    if param:
        if not isinstance(stage, Retriever):
            raise ConfigError(
                f"--param: {name!r} is a pipeline; set the parameters of its retrievers in the "
                "YAML file, under retrievers.NAME.search"
            )
        stage.params = {**stage.params, **parse_params(param)}
    if where or regex is not None:
        stage = _filtered(stage, where, regex)
    if queries is not None and output is not None:
        from sluice.retrieval.datasets.beir import read_queries

        texts = dict(read_queries(queries))
        run = stage.run(texts, None, k).top(k)
        run.name = name or path.name
        run.save(output)
        echo(f"{output}: {plural(len(run), 'query')}")
    elif query:
        asking = {**beside, "fuse": fuse, "seen": seen or ()}
        _search_once(stage, query, hits, asking, as_json=as_json)
    elif sys.stdin is not None and sys.stdin.isatty():
        _prompt(stage, k, as_json=as_json)
    else:
        _search_lines(stage, k, as_json=as_json)


def _check_texts(queries: list[str], beside: Mapping[str, Any]) -> None:
    if not queries:
        refuse_options("for QUERY", **beside)
    if len(queries) > 1 and not beside["fuse"]:
        raise ConfigError(
            f"search: several texts: {', '.join(map(repr, queries))}; a text of several words goes "
            "in quotes, and several questions that are one search go with --fuse"
        )


def _search_once(
    stage: Stage, queries: list[str], k: int | None, asking: Mapping[str, Any], *, as_json: bool
) -> None:
    """Search with the query of the command line, or with several as one."""
    hits: Any = stage.search(queries if asking["fuse"] else queries[0], k, **asking)
    print_hits(hits, " ".join(queries), as_json=as_json)
    if asking["budget_tokens"] is not None:
        others = plural(len(hits.dropped) - len(hits.repetitions), "document")
        said = f"about {hits.tokens:,} tokens; left out: {', '.join([others, *hits.repetitions])}"
        echo(said, err=as_json)  # lines of JSON stay alone


def _filtered(stage: Stage, where: list[str] | None, regex: str | None) -> Stage:
    from sluice.retrieval.documents.where import MATCHES, TEXT, parse_where

    if where:
        stage = stage.filtered(parse_where(where))
    return stage if regex is None else stage.filtered({TEXT: {MATCHES: regex}})


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
    from sluice.retrieval.exchange.vector_files import queries_of, run_vectors
    from sluice.retrieval.retrievers.retriever import Retriever

    retriever = Retriever.open(path, params=params, allow=allow)
    ids, vectors = queries_of(retriever, file)
    run = run_vectors(retriever, ids, vectors, k)
    run.name = path.name
    run.save(output)
    echo(f"{output}: {plural(len(run), 'query')}")


COMMANDS: dict[str, Command] = {"search": search, "explain": explain}
