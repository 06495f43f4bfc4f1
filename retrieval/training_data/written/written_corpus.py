"""Has a model describe or rewrite the documents of a corpus: a file of JSON lines, one for each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.disk.files import packed_file, writable
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import progress
from sluice.encoders.rerankers.language_model import Template
from sluice.retrieval.stages.transforms.writer import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluice.encoders.rerankers.language_model import LanguageModel
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.documents.document import Document
    from sluice.retrieval.stages.transforms.writer import Writer


ENDINGS: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
CHUNK: Final = 64  # documents asked about together


def check_output(output: Path, documents: int | None = None) -> None:
    """Raise ``ConfigError`` unless ``output`` can be a file of JSON lines, of so many documents."""
    if not output.name.endswith(ENDINGS):
        raise ConfigError(f"{output}: JSON lines are written; end the name in {ENDINGS[0]}")
    writable(output)
    if documents is not None:
        whole_number(documents, "documents", 1)


def caching_writer(model: Any, limits: Limits, output: Path, task: str) -> Writer:
    """Return what asks ``model``, its answers in ``<output>.answers.sqlite`` unless limits say."""
    from sluice.retrieval.stages.transforms.writer import Writer

    if limits.cache is None:
        limits = limits._replace(cache=str(output.with_name(f"{output.name}.answers.sqlite")))
    return Writer(model, limits, task)


def answers(
    writer: Writer,
    template: Template,
    values: Mapping[str, Any],
    dataset: Dataset,
    documents: int | None,
) -> Iterator[tuple[Document, str]]:
    """Yield the corpus's first ``documents`` with the answer to each, "" for one without a text.

    ``values`` fill the template beside the ``text``. ``DataError`` for a corpus without documents.
    """
    rest, read = islice(dataset.corpus, documents), 0
    total = least(dataset.corpus.size, documents)
    with progress(writer.name, total, "documents") as advance:
        while chunk := list(islice(rest, CHUNK)):
            texts = [each.full_text for each in chunk if each.full_text.strip()]
            written = iter(writer.write([template.fill({"text": t, **values}) for t in texts]))
            for document in chunk:
                yield document, next(written) if document.full_text.strip() else ""
            read += len(chunk)
            advance(len(chunk))
    if not read:
        raise DataError(f"{dataset.name}: the corpus has no documents to {writer.name}")


def least(*numbers: int | None) -> int | None:
    """Return the least of the numbers that are known."""
    return min((number for number in numbers if number is not None), default=None)


def json_line(value: Mapping[str, Any]) -> bytes:
    """Return an object as a line of JSON."""
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def corpus_line(document: Document, text: str) -> bytes:
    """Return a document with another text as a line of ``corpus.jsonl``."""
    line = {"_id": document.id, "title": document.title, "text": text.strip()}
    return json_line(line | ({"metadata": dict(document.metadata)} if document.metadata else {}))


def example_line(name: str, query: str, document: Document, **more: Any) -> bytes:
    """Return a training row of a query that one document answers."""
    row = {
        "query_id": name, "query": query,
        "pos": [document.full_text], "neg": [], "pos_ids": [document.id], "neg_ids": [],
    }  # fmt: skip
    return json_line(row | more)


PROMPT: Final = (
    "An abstract description says what kind of thing a text is about, without its names and "
    "numbers, in words that somebody might search with. Some are more abstract than others, and "
    "they look at different parts of the text.\n\nText: {text}\n\nWrite {count} descriptions that "
    "fit this text, and {count} that sound as if they could and are clearly wrong: about its "
    "subject, but saying something that the text does not. Each must be understood without the "
    'others. Answer with a JSON object and nothing else: {"good": ["...", ...], "bad": ["...", '
    "...]}"
)
TOKENS: Final = 512  # of an answer: five descriptions and five misfits
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
# A key where JSON has keys, and not where somebody quotes one in a sentence.
_SIDES: Final = {
    side: re.compile(rf'(?:^|[{{,])\s*"{side}"\s*:\s*\[', re.MULTILINE) for side in ("good", "bad")
}
TRIES: Final = 100  # braces of an answer at which an object may begin
_JSON: Final = json.JSONDecoder(strict=False)


class Described(NamedTuple):
    """Documents read, those with a description, rows and misfits written, and the tokens."""

    output: Path
    documents: int
    described: int
    rows: int
    misfits: int
    tokens: int

    def __str__(self) -> str:
        without = self.documents - self.described
        left = f", {without:,} without any" if without else ""
        return (
            f"{self.output}: {self.rows:,} descriptions and {self.misfits:,} misfits of "
            f"{self.described:,} documents{left}, {self.tokens:,} tokens"
        )


def describe_corpus(
    model: Any,
    dataset: Dataset,
    output: Path,
    *,
    prompt: Annotated[
        str,
        "TEXT",
        "The prompt, with {text} for the document and {count}; the answer is a JSON object with "
        "lists good and bad.",
    ] = PROMPT,
    count: Annotated[int, "Descriptions of each document, and as many that do not fit."] = 5,
    limits: Limits | None = None,
    documents: Annotated[int | None, "Only the first N documents."] = None,
) -> Described:
    """Write training rows of a corpus (its first ``documents``): descriptions, each with misfits.

    The model is asked for ``count`` descriptions of each document that fit, and as many that do
    not. Each that fits is a row ``{query, pos, neg, negative_queries}``, whose negative queries are
    the document's misfits: what the loss ``misfits`` learns from. What is on both sides of an
    answer is left out, and so is a document without a description. Each document has a prompt to
    itself, so no other can change its descriptions. Answers are kept beside the output, so that
    the same call after a kill pays for none of them again. Queries of one text have one id.
    (Ravfogel et al. 2024, Description-based text similarity, arXiv 2305.12517.)
    """
    check_output(output, documents)
    whole_number(count, "count", 1)
    template = Template(prompt, ["text"], ["count"])
    writer = caching_writer(model, limits or Limits(TOKENS), output, "describe")
    ids: dict[str, int] = {}
    read = described = rows = misfits = 0
    with packed_file(output) as stream:
        for document, answer in answers(writer, template, {"count": count}, dataset, documents):
            good, bad = read_descriptions(answer, count)
            read += 1
            described += bool(good)
            rows += len(good)
            misfits += len(bad) if good else 0
            for text in good:
                name = f"described-{ids.setdefault(same_text_key(text), len(ids))}"
                stream.write(example_line(name, text, document, negative_queries=bad))
        if not rows:
            raise DataError(
                f"{dataset.name}: no answer about {read:,} documents has descriptions; expected "
                '{"good": [...], "bad": [...]}: take a model that follows the prompt, or more '
                "--tokens"
            )
    return Described(output, read, described, rows, misfits, writer.tokens_spent)


def read_descriptions(answer: str, most: int) -> tuple[list[str], list[str]]:
    """Return what an answer says that fits, and what does not: each at most ``most``, and once.

    ``answer`` holds a JSON object with lists ``"good": [...]`` and ``"bad": [...]`` of strings. The
    last that has both counts, since what comes before may quote the document or the prompt. Of an
    answer that was cut, or is not quite JSON, the last such lists count, up to the cut. A text in
    both is in neither.
    """
    sides = _said_whole(answer)
    if sides is None:
        sides = {side: _listed(answer, start) for side, start in _SIDES.items()}
    keys = {side: {same_text_key(text): text for text in texts} for side, texts in sides.items()}
    both = keys["good"].keys() & keys["bad"].keys()
    good, bad = (
        [text for key, text in own.items() if key and key not in both][:most]
        for own in keys.values()
    )
    return good, bad


def _said_whole(answer: str) -> dict[str, list[str]] | None:
    """Return both lists of the last complete object that has them, else the last of each side.

    None without any ``good``.
    """
    objects = list(_objects(answer))
    both = [each for each in objects if all(isinstance(each.get(side), list) for side in _SIDES)]
    lists = {
        side: [each[side] for each in both or objects if isinstance(each.get(side), list)]
        for side in _SIDES
    }
    if not lists["good"]:
        return None
    return {
        side: [_plain(text) for own in texts[-1:] for text in own if isinstance(text, str)]
        for side, texts in lists.items()
    }


def _objects(answer: str) -> Iterator[dict[str, Any]]:
    """Yield the complete JSON objects of a text, and those inside them."""
    place, tries = answer.find("{"), 0
    while place >= 0 and (tries := tries + 1) <= TRIES:
        try:
            value, end = _JSON.raw_decode(answer, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            waiting = [value]
            while waiting:
                each = waiting.pop()
                if isinstance(each, dict):
                    yield each
                    waiting += each.values()
        place = answer.find("{", end)


def _plain(text: str) -> str:
    return " ".join(text.split()).encode("utf-8", "replace").decode()


def _listed(answer: str, start: re.Pattern[str]) -> list[str]:
    """Return the strings of the last list after ``start``, up to its end or the answer's."""
    begun = next(reversed(list(start.finditer(answer))), None)
    texts: list[str] = []
    place = len(answer) if begun is None else begun.end()
    while match := _STRING.search(answer, place):
        if "]" in answer[place : match.start()]:
            break
        try:
            texts.append(_plain(str(json.loads(f'"{match[1]}"', strict=False))))
        except ValueError:  # an escape that JSON does not have
            texts.append(_plain(match[1].replace("\\", "")))
        place = match.end()
    return texts


MODELS: Final[Mapping[str, str]] = {
    "generative": "sluice.retrieval.stages.generative.rerankers:local_model",
    "http": "sluice.retrieval.stages.generative.http_language_model:HttpLanguageModel",
}
REWRITING: Final = (
    "Say in a few plain sentences what this document says, in the words that somebody would use "
    "who looks for it.\n\nDocument: {text}\n\nIn other words:"
)


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
    from sluice.retrieval.training_data.teachers.teachers import parsed_component

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
    prompt: Annotated[str, "TEXT", "The prompt, with {text} for the document."] = REWRITING,
    replace: Annotated[
        bool, "Put the new text in the place of the document's, not behind it."
    ] = False,
    limits: Limits | None = None,
    documents: Annotated[int | None, "Only the first N documents."] = None,
) -> Rewritten:
    """Write a corpus (its first ``documents``) as ``corpus.jsonl``, each text with a new one.

    The model's text follows the document's, or stands in its place (``replace``); titles, ids and
    metadata stay. Each document has a prompt to itself, so no other can change its text. One
    without an answer stays as it is and is counted. Answers are kept beside the output, in
    ``<output>.answers.sqlite`` unless ``limits`` names a file, so that the same call after a kill
    pays for none of them again. (Li et al. 2024, Rewriting the Code, arXiv 2401.04514.)
    """
    check_output(output, documents)
    template = Template(prompt, ["text"])
    writer = caching_writer(model, limits or Limits(), output, "rewrite")
    count = rewritten = 0
    with packed_file(output) as stream:
        for document, text in answers(writer, template, {}, dataset, documents):
            count += 1
            rewritten += bool(text)
            own = "" if replace and text else document.text
            stream.write(corpus_line(document, f"{own} {text}"))
    return Rewritten(output, count, rewritten, writer.tokens_spent)
