"""Writes a corpus anew, each text rewritten by a language model before it is indexed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.disk.files import packed_file, writable
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import progress
from sluice.encoders.rerankers.prompt import Template
from sluice.retrieval.stages.transforms.writer import Limits, Writer
from sluice.retrieval.training_data.teachers.language import parsed_component

if TYPE_CHECKING:
    from sluice.encoders.rerankers.language_model import LanguageModel
    from sluice.retrieval.datasets.dataset import Dataset

MODELS: Final[Mapping[str, str]] = {
    "generative": "sluice.retrieval.stages.generative.options:local_model",
    "http": "sluice.retrieval.stages.generative.http_language_model:HttpLanguageModel",
}
PROMPT = (
    "Say in a few plain sentences what this document says, in the words that somebody would use "
    "who looks for it.\n\nDocument: {text}\n\nIn other words:"
)
ENDINGS = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
CHUNK = 64  # documents asked about together


class Rewritten(NamedTuple):
    """Documents read, those that got a new text, and the tokens that this call took."""

    output: Path
    documents: int
    rewritten: int
    tokens: int

    def __str__(self) -> str:
        same = self.documents - self.rewritten
        left = f", {same:,} as they were" if same else ""
        return (
            f"{self.output}: {self.rewritten:,} documents rewritten{left}, {self.tokens:,} tokens"
        )


def open_language_model(
    named: str | Path | Mapping[str, Any], where: str = "model"
) -> LanguageModel:
    """Open a language model: a folder or hub id, or a component of ``MODELS``, as YAML too.

    ``{type: http, url: ..., model: ...}`` is one behind an endpoint.
    """
    spec = named if isinstance(named, Mapping) else {"type": "generative", "model": str(named)}
    if isinstance(named, str) and "{" in named:
        spec = parsed_component(named, where)
    model: LanguageModel = build(spec, MODELS, where=where)
    return model


def rewrite_corpus(
    model: Any,
    dataset: Dataset,
    output: Path,
    *,
    prompt: str = PROMPT,
    replace: bool = False,
    limits: Limits | None = None,
    documents: int | None = None,
) -> Rewritten:
    """Write a corpus (its first ``documents``) as ``corpus.jsonl``, each text with a new one.

    The model's text follows the document's, or stands in its place (``replace``); titles, ids and
    metadata stay. Each document has a prompt to itself, so no other can change its text. One
    without an answer stays as it is and is counted. Answers are kept beside the output, in
    ``<output>.answers.sqlite`` unless ``limits`` names a file, so that the same call after a kill
    pays for none of them again. (Li et al. 2024, Rewriting the Code, arXiv 2401.04514.)
    """
    if not output.name.endswith(ENDINGS):
        raise ConfigError(f"{output}: JSON lines are written; end the name in {ENDINGS[0]}")
    writable(output)
    if documents is not None:
        whole_number(documents, "documents", 1)
    template = Template(prompt, ["text"])
    limits = limits or Limits()
    if limits.cache is None:
        limits = limits._replace(cache=str(output.with_name(f"{output.name}.answers.sqlite")))
    writer = Writer(model, limits, "rewrite")
    size = dataset.corpus.size
    total = size if documents is None else documents if size is None else min(documents, size)
    count = rewritten = 0
    rest = islice(dataset.corpus, documents)
    with packed_file(output) as stream, progress("rewrite", total, "documents") as advance:
        while chunk := list(islice(rest, CHUNK)):
            with_text = [each for each in chunk if each.full_text.strip()]
            texts = writer.write([template.fill({"text": each.full_text}) for each in with_text])
            new = {each.id: text for each, text in zip(with_text, texts, strict=True)}
            for document in chunk:
                text = new.get(document.id, "")
                rewritten += bool(text)
                kept = "" if replace and text else document.text
                line: dict[str, Any] = {
                    "_id": document.id,
                    "title": document.title,
                    "text": f"{kept} {text}".strip(),
                }
                if document.metadata:
                    line["metadata"] = dict(document.metadata)
                stream.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            count += len(chunk)
            advance(len(chunk))
        if not count:
            raise DataError(f"{dataset.name}: the corpus has no documents to rewrite")
    return Rewritten(output, count, rewritten, writer.tokens_spent)
