"""Pairs of a query and a document from documents alone: titles, sentences, crops, key phrases."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from sluice.training.generation.inverse_cloze import WORDS, Passage, ict_examples

_RUNS = re.compile(r"[^\w\s'’-]+|\n\s*\n")  # marks that no phrase goes across
_WORD = re.compile(r"\w[\w'’-]*")
CROP: Final = (0.05, 0.5)  # a crop's share of the words of its document
CROPPED: Final = 64  # words of a cropped query, at most
PHRASE: Final = 4  # words of a phrase, at most
ASKED: Final = (3, 8)  # words of a query of phrases: as many phrases as reach a number between
BEST: Final = 6  # phrases that a query's are drawn from
COMMON: Final = 0.1  # words in a larger share of the documents are in no phrase


class Pair(NamedTuple):
    """A query and the text of the document that answers it."""

    query: str
    document: str


class PairMaker:
    """Makes pairs of four kinds from the documents of one corpus.

    ``titles``: the title and the text without it. ``sentences``: inverse cloze, see
    ``sluice.training.generation.inverse_cloze``. ``crops``: two spans of words, each of 5 to 50 %
    of the document, drawn independently (Izacard et al., 2022, Contriever, section 3.1).
    ``phrases``: some key phrases, three to eight words or a few more, and the whole document. A key
    phrase is a run of up to four words, not interrupted by a mark, none of which more than a tenth
    of the documents have; its score is the sum of its words' tf-idf (as in RAKE, Rose et al. 2010,
    with document frequencies in place of stop words), and the query's are among the best six.

    Every pair is a function of the document, the corpus' document frequencies, and ``chance``.
    """

    def __init__(self, frequencies: Mapping[str, int], documents: int) -> None:
        self.frequencies = frequencies
        self.documents = documents
        self._make: dict[str, Callable[[Passage, random.Random], Pair | None]] = {
            "titles": _title,
            "sentences": _sentence,
            "crops": _crops,
            "phrases": self._phrases,
        }

    @classmethod
    def from_passages(cls, passages: Iterable[Passage]) -> PairMaker:
        """Count the words of a corpus, in one pass."""
        counts: Counter[str] = Counter()
        number = 0
        for number, passage in enumerate(passages, 1):  # noqa: B007
            counts.update(set(_words(f"{passage.title} {passage.text}")))
        return cls(counts, number)

    def pair(self, kind: str, passage: Passage, chance: random.Random) -> Pair | None:
        """Return a pair of that kind, None where the document gives none."""
        return self._make[kind](passage, chance)

    def key_phrases(self, passage: Passage) -> list[str]:
        """Return the document's key phrases, lower case, the best first."""
        runs = self._runs(f"{passage.title}\n\n{passage.text}")
        tf = Counter(word for run in runs for word in run)
        scores: dict[tuple[str, ...], float] = {}
        for run in runs:
            for start in range(0, len(run), PHRASE):
                phrase = tuple(run[start : start + PHRASE])
                scores[phrase] = sum(tf[word] * self._idf(word) for word in phrase)
        best = sorted(scores, key=lambda phrase: (-scores[phrase], phrase))
        return [" ".join(phrase) for phrase in best]

    def _runs(self, text: str) -> list[list[str]]:
        """Return the runs of words that may be in a phrase."""
        limit = max(1.0, COMMON * self.documents)
        runs: list[list[str]] = []
        for part in _RUNS.split(text):
            runs.append([])
            for word in _words(part):
                if self.frequencies.get(word, 0) > limit or len(word) < 2:
                    runs.append([])
                else:
                    runs[-1].append(word)
        return [run for run in runs if run]

    def _idf(self, word: str) -> float:
        return math.log((self.documents + 1) / (self.frequencies.get(word, 0) + 0.5))

    def _phrases(self, passage: Passage, chance: random.Random) -> Pair | None:
        best = self.key_phrases(passage)[:BEST]
        if not best:
            return None
        wanted, words = chance.randint(*ASKED), list[str]()
        for phrase in chance.sample(best, len(best)):
            words += phrase.split()
            if len(words) >= wanted:
                break
        return Pair(" ".join(words), f"{passage.title} {passage.text}".strip())


KINDS: Final = ("titles", "sentences", "crops", "phrases")


def _title(passage: Passage, chance: random.Random) -> Pair | None:
    title, text = passage.title.strip(), passage.text.strip()
    pair = Pair(title, text.removeprefix(title).strip())  # some texts begin with their title
    return pair if all(pair) else None


def _sentence(passage: Passage, chance: random.Random) -> Pair | None:
    example = next(iter(ict_examples([passage], chance.getrandbits(32), 0)), None)
    return None if example is None else Pair(example.query.text, example.documents[0].text)


def _crops(passage: Passage, chance: random.Random) -> Pair | None:
    words = passage.text.split()
    if len(words) < 2 * WORDS:
        return None
    query, document = (_crop(words, chance) for _ in range(2))
    return Pair(" ".join(query[:CROPPED]), " ".join(document))


def _crop(words: list[str], chance: random.Random) -> list[str]:
    share = chance.uniform(*CROP)
    length = max(WORDS, round(share * len(words)))
    start = chance.randint(0, len(words) - length)
    return words[start : start + length]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
