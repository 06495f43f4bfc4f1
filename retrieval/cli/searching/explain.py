"""The verb that shows why a document was found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer
from annotated_types import Ge

from sluice.retrieval.cli.searching.opening import Pipeline, Searched, opened
from sluice.retrieval.cli.terminal.messages import echo
from sluice.retrieval.cli.terminal.options import Allow, allowed
from sluice.retrieval.cli.terminal.verbs import Command

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.hit import TokenMatch
    from sluice.retrieval.retrievers.explanation import Explanation
    from sluice.retrieval.retrievers.retriever import Retriever


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


COMMANDS: dict[str, Command] = {"explain": explain}
