"""What verbs ask of files of vectors, and what the help shows of it: light to import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from sluice.encoders.foundation.errors import ConfigError

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.retriever import Retriever


class Rounding(NamedTuple):
    """How weights of terms become whole numbers, see ``retriever_files.export_retriever``."""

    quantise: Annotated[int | None, "The largest weight becomes N."] = None
    scale: Annotated[float | None, "A weight becomes round(X impact)."] = None


def import_job(
    inputs: Sequence[Path],
    output: Path,
    form: str,
    *,
    documents: Annotated[
        str | None, "SOURCE", "Texts by id: a corpus .jsonl, or a dataset."
    ] = None,
    encoder: Annotated[
        str | None, "MODEL", "The model that produced the vectors; it encodes queries."
    ] = None,
    metric: Annotated[str | None, "ip, cosine or l2."] = None,
    index: Annotated[str | None, "flat, a FAISS factory, or YAML: '{type: ...}'."] = None,
    query_vectors: Annotated[Path | None, "Vectors of the queries that will be searched."] = None,
    queries: Annotated[Path | None, "Texts of --query-vectors, by id."] = None,
    language: str | None = None,
) -> Retriever:
    """Make a retriever folder as the command line asks; see ``retriever_files.import_retriever``.

    ``documents`` is a corpus file or a dataset, ``encoder`` a model's folder or hub id, ``index``
    as in ``index_of``. ``queries`` are the texts of ``query_vectors``.
    """
    from sluice.indexing.table import DEFAULT
    from sluice.retrieval.exchange.retriever_files import (
        corpus_of,
        encoder_of,
        import_retriever,
        index_of,
        input_format,
    )
    from sluice.retrieval.exchange.vector_files import VectorFile

    chosen = input_format(inputs, form)
    if chosen.kind == "sparse":
        return import_retriever(inputs, output, form, language=language)
    file: VectorFile[Any] = VectorFile(inputs[0], chosen)  # what cannot be read needs no model
    for option, value in (("metric", metric), ("query-vectors", query_vectors)):
        if chosen.kind == "tokens" and value is not None:
            raise ConfigError(
                f"--{option}: is for one vector a text, and {file.path} holds token vectors"
            )
    if encoder is not None and query_vectors is not None:
        raise ConfigError("--encoder and --query-vectors: give one; the model encodes queries")
    if queries is not None and query_vectors is None:
        raise ConfigError("--queries: needs --query-vectors, whose texts they are")
    usual = DEFAULT if chosen.kind == "dense" else chosen.kind
    return import_retriever(
        inputs,
        output,
        form,
        documents=None if documents is None else corpus_of(documents),
        encoder=encoder_of(encoder, query_vectors, queries, file.dim),
        index=index_of(index or usual, metric),
    )
