"""The experiment that searches one's own documents: BM25 and a dense encoder, fused by rank."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import replaced_file
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.lexical.detection import guess_language
from sluice.encoders.lexical.languages import CODE, ENGLISH
from sluice.encoders.model_files.locate import local_folder
from sluice.encoders.table import LEXICAL, USUAL
from sluice.indexing.table import default_spec
from sluice.retrieval.config.sections import ExperimentConfig, load_config
from sluice.retrieval.datasets.beir import read_documents
from sluice.retrieval.documents.document import NOTHING, Document
from sluice.retrieval.documents.readers.code.folder import FIELDS
from sluice.retrieval.documents.readers.documents import Documents
from sluice.retrieval.documents.readers.source import as_documents, documents_below
from sluice.retrieval.experiments.output.folder import SETTINGS

log = logging.getLogger("sluice")

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
LENGTH = 200  # tokens of a passage: with a title, within the model's 256
OVERLAP = 20  # 8 % fewer tokens to encode than with 50, and headings part most texts anyway
ROOM = 0.75  # the part of what another model reads that a passage fills; the rest is for the title
BEGINNING = 64  # tokens of a function that the model reads: ten thousand in a minute
HEADED = ("markdown", "html")  # kinds of text that are cut at headings
SAMPLE = 500  # documents that the language is guessed from
CORPUS = "documents.jsonl"  # in the output: what came through a pipe
HYBRID = "hybrid"
COLUMNS = ("id", "text", "title", "metadata")  # of documents; others are of queries


@dataclass(frozen=True, slots=True)
class OwnDocuments:
    """Documents that were read once to count them: what an index over them will hold."""

    documents: Documents
    corpus: str  # how the experiment names them
    columns: Mapping[str, Any]
    count: int
    characters: int
    language: str

    def __str__(self) -> str:
        size = f"{self.characters / 1e6:,.1f} million" if self.characters >= 1e6 else (
            f"{self.characters:,}"
        )  # fmt: skip
        return f"{plural(self.count, 'document')}, {size} characters, language {self.language}"


def survey(
    source: str, columns: Mapping[str, Any], output: Path, language: str | None = None
) -> OwnDocuments:
    """Read a source from end to end: count it, guess its language, and find what is wrong with it.

    Standard input is written to ``documents.jsonl`` in the output, where the experiment finds it.
    Raises ``DataError`` as ``as_documents`` and its documents do.
    """
    documents = as_documents(source, **columns)
    log.info("%s", documents.described)
    documents = documents.quiet()
    count = characters = 0
    sample: list[str] = []
    for count, document in enumerate(documents, 1):
        characters += len(document.text)
        if count <= SAMPLE:
            sample.append(document.full_text)
    corpus = _absolute(source)
    kept: Mapping[str, Any] = columns
    if source == "-":
        corpus, kept = _saved(documents, output), {}
    spoken = CODE if columns.get("code") else guess_language(sample)
    return OwnDocuments(documents, corpus, kept, count, characters, language or spoken)


def _saved(documents: Documents, output: Path) -> str:
    file = output / CORPUS
    with replaced_file(file) as stream:
        for document in documents:
            value: dict[str, Any] = {
                "_id": document.id,
                "title": document.title,
                "text": document.text,
            }
            if document.metadata:
                value["metadata"] = dict(document.metadata)
            stream.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
    return str(file.absolute())


def documents_like(
    folder: Path,
    source: str,
    columns: Mapping[str, Any] = NOTHING,
    *,
    whole: bool = False,
    allow: Collection[str] = (),
) -> Iterable[Document]:
    """Read documents to add as the corpus of an experiment (or of a retriever in it) was read.

    Where that was files of the user's own, the same columns are used if they are there, and files
    that lie in the folder that was indexed have the ids they have there; otherwise JSON lines are
    read as those of a BEIR folder. ``columns`` that are named replace all of these. Documents
    without ids of their own are a ``DataError``, unless the source is the ``whole`` collection; a
    part of the folder that was indexed is then a ``ConfigError``.
    """
    settings = next(
        (each / SETTINGS for each in (folder, folder.parent.parent) if (each / SETTINGS).exists()),
        None,
    )
    dataset = None if settings is None else load_config(settings, ExperimentConfig).dataset
    if isinstance(dataset, Mapping) and "corpus" in dataset:
        noted = dataset.get("columns") or {}
        named = columns or {key: value for key, value in noted.items() if key in COLUMNS}
        corpus = expanded(str(dataset["corpus"]))
        if corpus.is_dir():
            if whole and corpus.resolve() in expanded(source).resolve().parents:
                raise ConfigError(
                    f"{source}: a part of {corpus}, and --sync would delete the rest of it; give "
                    "the whole folder, or leave --sync out"
                )
            read = {**named, "allow": allow, "code": dataset.get("code", False)}
            documents = documents_below(corpus, source, read)
        else:
            try:
                documents = as_documents(source, **named, allow=allow)
            except DataError:  # other columns than the index was made with: the usual ones
                if not named or columns:
                    raise
                documents = as_documents(source, allow=allow)
    elif Path(source).is_file() and not columns:
        return read_documents(Path(source))
    else:
        documents = as_documents(source, **columns, allow=allow)
    return documents if whole else documents.with_own_ids()


def _absolute(source: str) -> str:
    """Return a source as it can be found from anywhere: paths, patterns and tables alike."""
    if source.startswith("hf:"):
        return source
    return os.path.abspath(expanded(source))  # noqa: PTH100  (`..` without links)


def hybrid_config(
    own: OwnDocuments, output: Path, *, model: str | None = None, lexical_only: bool = False
) -> dict[str, Any]:
    """Return the experiment as the values of a YAML file.

    BM25 over whole documents; a dense encoder over passages, so that all text is read, cut at
    headings where the documents have them; and their fusion by reciprocal rank. With
    ``lexical_only`` BM25 alone. Of code: BM25 over fields, and a dense encoder over the beginnings
    of whole functions unless the default model is not on this machine. Raises ``ModelError`` with
    the ways out where the dense encoder's model cannot be had.
    """
    dataset: dict[str, Any] = {"corpus": own.corpus}
    if columns := {key: value for key, value in own.columns.items() if key in COLUMNS}:
        dataset["columns"] = columns
    if followed := own.columns.get("allow"):
        dataset["allow"] = [_absolute(path) for path in followed]
    code = own.columns.get("code", False)
    lexical: dict[str, Any] = {"type": LEXICAL, "language": own.language}
    if code:
        dataset["code"] = True
        lexical["fields"] = dict(FIELDS)
    bm25 = {"encoder": lexical, "index": default_spec("sparse")}
    config: dict[str, Any] = {
        "dataset": dataset,
        "output": str(output),
        "retrievers": {"bm25": bm25},
        "pipelines": {"bm25": "bm25"},
    }
    if lexical_only:
        return config
    if code and model is None and local_folder(MODEL) is None:
        log.warning("%s is not on this machine: BM25 alone; or name one: --model", MODEL)
        return config
    length = _passage_length(model, ENGLISH if code else own.language)
    encoder: dict[str, Any] = {"type": USUAL, "model": model or MODEL, "dtype": "auto"}
    dense: dict[str, Any] = {"encoder": encoder, "index": default_spec("dense")}
    if code:
        encoder["document_length"] = BEGINNING
    else:
        passages: dict[str, Any] = {"length": length, "overlap": OVERLAP}
        if any(kind in HEADED for kind in own.documents.parts):
            passages["headings"] = True
        dense["passages"] = passages
    config["retrievers"]["dense"] = dense
    # The last one is what a search takes; the others are there to be compared.
    config["pipelines"] |= {"dense": "dense", HYBRID: "bm25 | dense"}
    return config


def _passage_length(model: str | None, language: str) -> int:
    """Return how long passages may be for a model, which is looked up before any work.

    Where the default model meets a language other than English, a warning says so.
    """
    from sluice.encoders.model_files.locate import model_folder

    try:
        model_folder(model or MODEL)
    except ModelError as error:
        raise ModelError(f"{error}; or index without a model: --bm25") from None
    if model is not None:
        from sluice.encoders.dense.encoder import DenseEncoder

        reads = DenseEncoder.from_pretrained(model).lengths["document"]
        return max(OVERLAP + 1, min(LENGTH, int(ROOM * reads)))
    if language != ENGLISH:
        log.warning(
            "%s knows English best, and the documents look like %r; name another with --model, or "
            "index without a model: --bm25", MODEL, language,
        )  # fmt: skip
    return LENGTH
