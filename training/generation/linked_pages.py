"""Training pairs from links between documents: WLP, and links found where one names another."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.training.example import Example, Text
from sluice.training.generation.inverse_cloze import WORDS, Passage, sentences

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
    names = Names.of(passages)
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
    def of(cls, passages: Iterable[Passage]) -> Names:
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
