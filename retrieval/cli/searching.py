"""``search``, ``explain``, ``add``, ``update``, ``delete``, ``verify``: a retriever's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.stage import Stage
    from sluice.retrieval.retrievers.explanation import Explanation

Folder = Annotated[Path, typer.Argument(metavar="PATH", help="A retriever folder.")]
Documents = Annotated[
    Path,
    typer.Argument(
        metavar="DOCUMENTS",
        help='Documents as JSON lines {"_id", "title", "text"}, "metadata" if you like.',
    ),
]


def search(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A retriever folder, or an experiment's output.")
    ],
    query: Annotated[str | None, typer.Argument(help="One query.")] = None,
    queries: Annotated[
        Path | None, typer.Option(help='A file of queries, JSON lines {"_id", "text"}.')
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The TREC run to write (gzipped when it ends in .gz).")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Documents for each query.")] = 10,
    pipeline: Annotated[
        str | None, typer.Option(help="A pipeline of the experiment at PATH.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Only documents whose metadata match: KEY=VALUE, or with !=, >=, >, <=, < between "
            "them. Several must all hold."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Hits as JSON lines.")] = False,
) -> None:
    """Search with one query, or with a file of queries into a TREC run.

    A value of --where is JSON where it can be (2020, true, null for none, ["en","de"] for any of
    them) and text otherwise. A text that looks like a number is quoted twice: 'code="007"'.

    Examples:
      sluice search runs/x/retrievers/bm25 "who found gold in the river"
      sluice search runs/x/retrievers/bm25 "gold" --where lang=en --where 'year>=2020'
      sluice search runs/x "a question" --pipeline cascade
      sluice search runs/x/retrievers/bm25 --queries Q.jsonl -k 1000 --output run.trec
    """
    if (query is None) == (queries is None):
        raise ConfigError("search: give one query, or --queries FILE with --output FILE")
    if queries is not None and output is None:
        raise ConfigError("search: --queries needs --output, the run file to write")
    stage = _opened(path, pipeline)
    if where:
        from sluice.retrieval.documents.where_text import parse_where

        stage = stage.filtered(parse_where(where))
    if queries is not None and output is not None:
        from sluice.retrieval.datasets.beir_files import read_queries

        texts = dict(read_queries(queries))
        run = stage.run(texts, None, k).top(k)
        run.name = pipeline or path.name
        run.save(output)
        typer.echo(f"{output}: {len(run):,} queries")
        return
    for rank, hit in enumerate(stage.search(str(query), k), 1):
        if as_json:
            typer.echo(json.dumps(hit._asdict(), ensure_ascii=False))
        else:
            text = " ".join(hit.text.split())
            typer.echo(f"{rank:>3}  {hit.score:9.4f}  {hit.doc_id}\n     {text[:160]}")


def _opened(path: Path, pipeline: str | None) -> Stage:
    from sluice.retrieval.experiments.experiment import SETTINGS, load_pipeline
    from sluice.retrieval.retrievers.retriever import Retriever

    if pipeline is not None:
        return load_pipeline(path, pipeline)
    if (path / SETTINGS).exists():
        raise ConfigError(
            f"{path}: is an experiment's output; name one of its pipelines with --pipeline, or "
            f"give one of its retrievers: {path}/retrievers/NAME"
        )
    return Retriever.open(path)


def explain(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A retriever folder, or an experiment's output.")
    ],
    query: Annotated[str, typer.Argument(help="The query.")],
    doc_id: Annotated[
        str | None, typer.Argument(metavar="DOC_ID", help="A document; the best hits without.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits to explain, without DOC_ID.")] = 1,
    pipeline: Annotated[
        str | None, typer.Option(help="A pipeline of the experiment at PATH.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Explanations as JSON lines.")] = False,
) -> None:
    """Show why a document was found: by a term, by a stage.

    Of a sparse retriever (BM25, SPLADE): what each term adds to the score; the first line says
    which engine the index's planner chose for ten hits, and why. Of a pipeline: what each stage
    took and returned, who found the document, where it moved, and the terms behind it.

    Examples:
      sluice explain runs/x/retrievers/bm25 "who found gold in the river" doc17
      sluice explain runs/x/retrievers/splade "who found gold in the river" -k 3
      sluice explain runs/x "who found gold in the river" --pipeline cascade -k 3
    """
    if pipeline is not None:
        from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline

        stage = _opened(path, pipeline)
        explain_pipeline(stage, query, k)  # models are loaded now, which is no stage's cost
        told = explain_pipeline(stage, query, k, doc_ids=None if doc_id is None else [doc_id])
        typer.echo(json.dumps(told.as_dict(), ensure_ascii=False) if as_json else str(told))
        return
    from sluice.retrieval.retrievers.retriever import Retriever
    from sluice.retrieval.runs.queries import DEPTH

    retriever = Retriever.open(path)
    if doc_id is not None:
        wanted = [doc_id]
    else:  # to the depth at which ranks are counted, because a cut may fall among equal scores
        wanted = list(retriever.run({"query": query}, None, max(k, DEPTH))["query"].doc_ids)[:k]
    if not wanted:
        typer.echo("no document shares a term with the query", err=True)
    for place, name in enumerate(wanted):
        found = retriever.explain(query, name)
        if as_json:
            typer.echo(json.dumps(found.as_dict(), ensure_ascii=False))
        else:
            if place == 0 and found.plan_text:
                typer.echo(found.plan_text)
            typer.echo(_shown(found))


def _shown(found: Explanation) -> str:
    if not found.terms:
        return f"{found.doc_id}: shares no term with the query, so it is no hit"
    place = "beyond the first 1,000" if found.rank is None else f"rank {found.rank}"
    if found.passage is not None:
        place += f", by its passage {found.passage}"
    width = max(4, *(len(part.term) for part in found.terms))
    lines = [
        f"{found.doc_id}  score {found.score:.4f}  {place}",
        f"  {'term':<{width}}  {'query':>9}  {'document':>9}  {'adds':>9}",
    ]
    for part in found.terms:
        numbers = f"{part.query_weight:9.4f}  {part.impact:9.4f}  {part.contribution:9.4f}"
        lines.append(f"  {part.term:<{width}}  {numbers}")
    return "\n".join(lines)


def add(path: Folder, documents: Documents) -> None:
    """Add documents to a retriever; an id that is there already is an error.

    Example:  sluice add runs/x/retrievers/bm25 new.jsonl
    """
    from sluice.retrieval.datasets.beir_files import read_documents
    from sluice.retrieval.retrievers.retriever import Retriever

    retriever = Retriever.open(path)
    count = retriever.add(read_documents(documents))
    typer.echo(f"{path}: {count:,} added, {len(retriever):,} documents")


def update(path: Folder, documents: Documents) -> None:
    """Replace the documents of a retriever whose ids are there already, and add the others.

    Example:  sluice update runs/x/retrievers/bm25 changed.jsonl
    """
    from sluice.retrieval.datasets.beir_files import read_documents
    from sluice.retrieval.retrievers.retriever import Retriever

    retriever = Retriever.open(path)
    done = retriever.update(read_documents(documents))
    counts = f"{done.added:,} added, {done.replaced:,} replaced"
    typer.echo(f"{path}: {counts}, {len(retriever):,} documents")


def delete(
    path: Folder,
    ids: Annotated[list[str] | None, typer.Argument(help="Document ids.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file with one document id a line.")] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Give back the room of deleted documents too.")
    ] = False,
) -> None:
    """Delete documents from a retriever by id; an unknown id is an error and deletes nothing.

    Example:  sluice delete runs/x/retrievers/bm25 doc17 doc18
    """
    from sluice.retrieval.retrievers.retriever import Retriever

    wanted = list(ids or [])
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").split("\n")  # ids may hold other separators
            wanted += [line for line in lines if line]
        except UnicodeDecodeError as error:
            raise DataError(f"{file}: not UTF-8 text ({error})") from None
    if not wanted and not compact:
        raise ConfigError("delete: give document ids, or --file with one a line")
    retriever = Retriever.open(path)
    count = retriever.delete(wanted) if wanted else 0
    if compact:
        retriever.compact()
    typer.echo(f"{path}: {count:,} deleted, {len(retriever):,} documents")


def verify(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A retriever folder, or an experiment's output.")
    ],
) -> None:
    """Check every checksum of a retriever, or of all retrievers of an experiment."""
    from sluice.retrieval.retrievers.folder import HEAD, verify_retriever

    found = [path] if (path / HEAD).exists() else sorted(path.glob(f"retrievers/*/{HEAD}"))
    if not found:
        raise ConfigError(f"{path}: neither a retriever folder nor an experiment's output")
    for item in found:
        folder = item if item.is_dir() else item.parent
        typer.echo(f"{folder}: {verify_retriever(folder)} files are whole")


COMMANDS = (search, explain, add, update, delete, verify)
