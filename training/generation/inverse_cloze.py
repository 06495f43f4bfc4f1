"""Training pairs from documents alone: a sentence and its surroundings, a title and its body."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.example import Example, Text

# A full stop after one of these does not end a sentence, whatever follows.
_ABBREVIATED = (
    "dr mr mrs ms prof st jr sr vs etc al fig figs eq eqs ref refs nos vol vols pp ed eds approx "
    "inc ltd co corp dept univ jan feb mar apr jun jul aug sep sept oct nov dec e.g i.e cf ca viz "
    "u.s u.k sp spp var resp gen sgt capt lt gov sen rev hon"
)
ABBREVIATIONS = frozenset(_ABBREVIATED.split())
_END = re.compile(r"[.!?…。！？]+[\"')\]”’»]*(?=\s)|[。！？]+|\n\s*\n")
_LAST_WORD = re.compile(r"([\w.]+)\.$")
_OPENING = "\"'([“‘«"


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, in order, each without white space around it.

    A sentence ends with ``.``, ``!``, ``?`` and closing marks before white space, or with a blank
    line. It does not end after an abbreviation (Dr., e.g., et al.), a single initial (J. Smith), or
    before a lower-case letter. Joined by spaces, the sentences are the text up to white space.
    """
    parts, start = [], 0
    for match in _END.finditer(text):
        stop = match.end()
        if match[0].strip() and not _ends(text[start:stop], text[stop:]):
            continue
        parts.append(text[start:stop].strip())
        start = stop
    parts.append(text[start:].strip())
    return [sentence for sentence in parts if sentence]


def _ends(before: str, after: str) -> bool:
    following = after.lstrip()[:2].lstrip(_OPENING)
    if following[:1].islower():
        return False
    word = _LAST_WORD.search(before)
    if word is None:
        return True
    name = word[1]
    return not (name.lower() in ABBREVIATIONS or (len(name) == 1 and name.isupper()))


WORDS = 4  # a sentence of fewer says too little to be a query


class Passage(NamedTuple):
    """A document: its id, its title (may be empty) and its text."""

    id: str
    title: str
    text: str


def ict_examples(
    documents: Iterable[Passage], seed: int, epoch: int, keep: float = 0.1, per_document: int = 1
) -> Iterator[Example]:
    """Yield the inverse cloze task: a random sentence is the query, the rest its document.

    With the chance ``keep`` the sentence stays in the document too, so that words count as well as
    meaning. Otherwise it is nowhere in it, its title and repetitions included; a sentence that
    another one contains is not a candidate. Up to ``per_document`` sentences of each document are
    drawn; documents of one sentence give none. The examples are a function of documents, ``seed``
    and ``epoch``, and as many in every epoch. (Lee, Chang and Toutanova, 2019, ORQA, section 5.)
    """
    if not 0 <= keep <= 1:
        raise ConfigError(f"keep: {keep}, expected a share from 0 to 1")
    if per_document < 1:
        raise ConfigError(f"per_document: {per_document}, expected 1 or more")
    for passage in documents:
        parts = sentences(passage.text)
        candidates = [place for place, part in enumerate(parts) if _askable(part)]
        clozes = [
            (parts[place], rest) for place in candidates if (rest := _rest(passage, parts, place))
        ]
        if not clozes:
            continue
        chance = random.Random(f"ict:{seed}:{epoch}:{passage.id}")
        for query, rest in chance.sample(clozes, min(per_document, len(clozes))):
            in_document = chance.random() < keep
            document = f"{passage.title} {passage.text}".strip() if in_document else rest
            yield _pair(passage.id, query, document)


def body_examples(documents: Iterable[Passage], seed: int, epoch: int) -> Iterator[Example]:
    """Yield pairs of a title, or the first sentence, and the text that follows it.

    Of a document with a title either is drawn, by ``seed`` and ``epoch``: the stand-in for body
    first selection where documents have no sections. (Chang et al., 2020, section 3.)
    """
    for passage in documents:
        parts = sentences(passage.text)
        body = " ".join(parts[1:])
        pairs = [(passage.title.strip(), passage.text.strip())]
        if parts and _askable(parts[0]) and parts[0] not in body:
            pairs.append((parts[0], body))
        pairs = [(query, document) for query, document in pairs if query and document]
        if pairs:
            chance = random.Random(f"bfs:{seed}:{epoch}:{passage.id}")
            yield _pair(passage.id, *chance.choice(pairs))


def _askable(sentence: str) -> bool:
    return len(sentence.split()) >= WORDS


def _rest(passage: Passage, parts: list[str], place: int) -> str:
    """Return the document without one sentence; empty if the rest still contains it."""
    sentence = parts[place]
    others = [part for part in parts if part != sentence]
    rest = f"{passage.title} {' '.join(others)}".strip()
    return rest if others and sentence not in rest else ""


def _pair(name: str, query: str, document: str) -> Example:
    asked = Text(f"{name}-asked", query)
    return Example(asked, (Text(name, document),), relevant=frozenset({name}))
