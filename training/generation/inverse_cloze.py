"""Training pairs from documents: a sentence and its surroundings, titles, links, page texts."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.protocol import Example, Text

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


LONGEST = 6  # words of a title that counts as a name
_WORD = re.compile(r"\w+(?:\.\w+)*")  # dotted names are one word

Links = Mapping[str, Sequence[str]]  # id of a document -> ids of those that it links to


def mention_links(documents: Iterable[Passage]) -> dict[str, list[str]]:
    """Return which documents each one names, in the order of the corpus.

    A document's names are its id and the last two parts of a dotted id (``Path.open`` of
    ``pathlib.Path.open``) where they have a dot and a letter, and a title of two to six words. A
    name that several documents have counts for none; capitals do not matter for titles.
    """
    passages = list(documents)
    names = Names.from_passages(passages)
    links: dict[str, list[str]] = {}
    for passage in passages:
        found = [name for name in names.named_in(passage.text) if name != passage.id]
        if found:
            links[passage.id] = found
    return links


@dataclass(frozen=True, slots=True)
class Names:
    """The names of documents that no other one has, see ``mention_links``."""

    owners: Mapping[str, str]  # name -> id
    longest: int  # words of a name

    @classmethod
    def from_passages(cls, passages: Iterable[Passage]) -> Names:
        """Return the names of a corpus."""
        owners: dict[str, set[str]] = {}
        for passage in passages:
            for name in _names(passage):
                owners.setdefault(name, set()).add(passage.id)
        unique = {name: next(iter(ids)) for name, ids in owners.items() if len(ids) == 1}
        return cls(unique, max((len(name.split()) for name in unique), default=1))

    def named_in(self, text: str) -> list[str]:
        """Return the ids of the documents that a text names, in its order, each once."""
        spans = _spans(text, self.longest)
        return list(dict.fromkeys(self.owners[name] for name in spans if name in self.owners))


def _names(passage: Passage) -> Iterator[str]:
    parts = passage.id.split(".")
    if len(parts) > 1 and _WORD.fullmatch(passage.id) and any(map(str.isalpha, passage.id)):
        yield passage.id
        if len(parts) > 2:
            yield ".".join(parts[-2:])
    words = _WORD.findall(passage.title.lower())
    if 2 <= len(words) <= LONGEST:
        yield " ".join(words)


def _spans(text: str, longest: int) -> Iterator[str]:
    """Yield a text's dotted words, and its runs of two to ``longest`` words in small letters."""
    words = _WORD.findall(text)
    yield from (word for word in words if "." in word)
    small = [word.lower() for word in words]
    for start in range(len(small)):
        for stop in range(start + 2, min(start + longest, len(small)) + 1):
            yield " ".join(small[start:stop])


def linked_examples(
    documents: Iterable[Passage], links: Links, seed: int, epoch: int
) -> Iterator[Example]:
    """Yield Wiki link prediction: a document's first sentence asks for one that is linked with it.

    Links hold in both directions. Of a document's linked ones that have a text, one is drawn by
    ``seed`` and ``epoch``; the others, and the document itself, never count as negatives. Documents
    whose first sentence has fewer than four words, or without links, give none. (Chang et al.,
    2020, arXiv 2002.03932, section 3.)
    """
    passages = {passage.id: passage for passage in documents}
    linked = _both_ways(links, passages)
    for name, passage in passages.items():
        first = next(iter(sentences(passage.text)), "")
        others = [other for other in linked.get(name, ()) if first not in _whole(passages[other])]
        if len(first.split()) < WORDS or not others:
            continue
        chance = random.Random(f"wlp:{seed}:{epoch}:{name}")
        chosen = chance.choice(others)
        yield Example(
            Text(f"{name}-asked", first),
            (Text(chosen, _whole(passages[chosen])),),
            relevant=frozenset({name, *linked[name]}),
        )


def _both_ways(links: Links, passages: Mapping[str, Passage]) -> dict[str, list[str]]:
    """Return each document's linked ones that have a text, in both directions, each once."""
    both: dict[str, dict[str, None]] = {}
    for source, targets in links.items():
        for target in targets:
            if source == target or not {source, target} <= passages.keys():
                continue
            both.setdefault(source, {})[target] = None
            both.setdefault(target, {})[source] = None
    return {
        name: [other for other in others if _whole(passages[other])]
        for name, others in both.items()
    }


def _whole(passage: Passage) -> str:
    return f"{passage.title} {passage.text}".strip()


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
    names = Names.from_passages(passages) if wanted.get("mentions") else None
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
