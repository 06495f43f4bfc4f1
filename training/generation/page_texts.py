"""Texts of documents that stand for queries: what a model learns their identifiers from."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from sluice.training.generation.inverse_cloze import Passage, sentences
from sluice.training.generation.linked_pages import Names

INNER: Final = 11  # words of an inner sentence, at least
PARAGRAPH: Final = 3  # sentences of a paragraph, and of the window around a mention


class PageText(NamedTuple):
    """A text that stands for a query, and the document that it asks for."""

    kind: str
    query: str
    document_id: str


def start(passage: Passage, words: int) -> str:
    """Return the first words of a document, its title before them."""
    return " ".join(f"{passage.title} {passage.text}".split()[:words])


def inner_sentences(passage: Passage, most: int, chance: random.Random) -> list[str]:
    """Return sentences of more than ten words, drawn without order."""
    parts = [part for part in sentences(passage.text) if len(part.split()) >= INNER]
    return chance.sample(parts, min(most, len(parts)))


def paragraphs(passage: Passage, most: int, chance: random.Random) -> list[str]:
    """Return the lead paragraph and others, of three sentences each."""
    parts = sentences(passage.text)
    runs = [" ".join(parts[at : at + PARAGRAPH]) for at in range(0, len(parts), PARAGRAPH)]
    return runs[:1] + chance.sample(runs[1:], min(most - 1, max(0, len(runs) - 1)))


def windows(passage: Passage, names: Names) -> Iterator[tuple[str, str]]:
    """Yield the sentences around each mention of another document, and that document's id.

    A document that is named again is not repeated.
    """
    parts = sentences(passage.text)
    known = {passage.id}
    for at, part in enumerate(parts):
        for target in names.named_in(part):
            if target not in known:
                known.add(target)
                first = max(0, at - PARAGRAPH // 2)
                yield " ".join(parts[first : at + PARAGRAPH // 2 + 1]), target


def page_texts(
    documents: Iterable[Passage], wanted: Mapping[str, int], seed: int
) -> Iterator[PageText]:
    """Yield texts of every document, as many as are ``wanted`` of each kind, each once.

    The kinds are ``words`` (so many first words), ``sentences``, ``paragraphs`` and ``mentions``,
    which ask for the document that is mentioned. They are a function of the documents and ``seed``.
    (CorpusBrain; Chen et al. 2022, arXiv 2208.07652: its inner sentence selection, lead paragraph
    selection and hyperlink identifier prediction, of which one identifier is the target.)
    """
    passages: Sequence[Passage] = list(documents)
    names = Names.of(passages) if wanted.get("mentions") else None
    for passage in passages:
        chance = random.Random(f"pages:{seed}:{passage.id}")
        made: list[PageText] = []
        if wanted.get("words"):
            made.append(PageText("words", start(passage, wanted["words"]), passage.id))
        inner = inner_sentences(passage, wanted.get("sentences", 0), chance)
        made += [PageText("sentences", text, passage.id) for text in inner]
        if wanted.get("paragraphs"):
            runs = paragraphs(passage, wanted["paragraphs"], chance)
            made += [PageText("paragraphs", text, passage.id) for text in runs]
        if names is not None:
            linked = list(windows(passage, names))
            drawn = chance.sample(linked, min(wanted["mentions"], len(linked)))
            made += [PageText("mentions", text, target) for text, target in drawn]
        known = set[tuple[str, str]]()
        for each in made:
            if each.query.strip() and (each.query, each.document_id) not in known:
                known.add((each.query, each.document_id))
                yield each
