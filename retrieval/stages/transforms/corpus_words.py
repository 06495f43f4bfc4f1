"""The words of the documents that are searched: how many documents have each, and which are near.

Words are counted as they are written, in lower case and unstemmed, since only such words have a
spelling.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import OwnLock
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.progress import progress
from sluice.encoders.lexical.analyzer import Analyzer, analyzer
from sluice.encoders.lexical.languages import AUTO, GRAMS
from sluice.encoders.lexical.term_counts import counted
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.pipelines.search import TextsOf

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.stage import Stage

SHOWN_FROM: Final = 50_000  # documents; fewer are counted in silence
FAR: Final = 1_000  # more edits than any word needs


class CorpusWords:
    """The words of a corpus, ``frequencies`` by word, and the number of its ``documents``.

    ``language`` is the analyser's, which says where words begin and end, and which are one term.
    """

    def __init__(
        self, frequencies: Mapping[str, int], documents: int, language: str = "en"
    ) -> None:
        self.frequencies = frequencies
        self.documents = documents
        self.analyzer = analyzer(language)
        self._terms = {self.analyzer.term(word) for word in frequencies}
        spelt = (word for word in frequencies if not has_digit(word))
        self._words = sorted(spelt, key=lambda word: (len(word), word))
        lengths = np.array([len(word) for word in self._words], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._codes = _codes("".join(self._words))
        self._letters = np.zeros(len(lengths), np.uint64)
        np.bitwise_or.at(self._letters, np.repeat(np.arange(len(lengths)), lengths),
                         _letters(self._codes))  # fmt: skip
        longest = int(lengths.max(initial=0))
        self._by_length = np.searchsorted(lengths, np.arange(longest + 2))  # first word of each

    @classmethod
    def count(cls, texts: Iterable[str], language: str = "en", show: int = 0) -> Self:
        """Count the words of texts in one pass; ``show`` is how many there are, for progress."""
        chosen = analyzer(language)
        plain = Analyzer(chosen.language, chosen.words, str, chosen.lower)
        columns = _Growing()
        frequencies, documents = np.zeros(0, np.int64), 0
        with progress("words of the corpus", show, "documents", show=show > SHOWN_FROM) as advance:
            for part in counted(((text,) for text in texts), plain, columns.__getitem__):
                frequencies.resize(len(columns), refcheck=False)
                frequencies += np.bincount(part.terms, minlength=len(columns))
                documents += len(part.sizes)
                advance(len(part.sizes))
        return cls(dict(zip(columns, frequencies.tolist(), strict=True)), documents, language)

    def knows(self, word: str) -> bool:
        """Return whether a document has the word, or another that is the same term.

        Words that the analyser leaves out, stop words, are known.
        """
        if word in self.frequencies:
            return True
        term = self.analyzer.term(word)
        return not term or term in self._terms

    def nearest(self, word: str, edits: int) -> list[str]:
        """Return the words at the least distance of at most ``edits`` from ``word``.

        The distance counts letters put in, left out, replaced, and neighbours swapped, none of them
        twice (optimal string alignment). Those in more documents come first, then by alphabet.
        Words with digits are none. Cost: a pass over the words of about that length.
        """
        if word in self.frequencies:
            return [word]
        for allowed in range(1, edits + 1):
            places = self._places_within(word, allowed)
            if len(places):
                found = [self._words[place] for place in places.tolist()]
                return sorted(found, key=lambda each: (-self.frequencies[each], each))
        return []

    def _places_within(self, word: str, allowed: int) -> NDArray[np.int64]:
        """Return the places of the words at a distance of at most ``allowed``."""
        last = len(self._by_length) - 1
        low, high = (
            int(self._by_length[min(max(length, 0), last)])
            for length in (len(word) - allowed, len(word) + allowed + 1)
        )
        own = np.bitwise_or.reduce(_letters(_codes(word)), initial=np.uint64(0))
        # An edit changes at most two of the letters that a word has, so most words are out.
        places = low + np.flatnonzero(_ones(self._letters[low:high] ^ own) <= 2 * allowed)
        lengths = self._starts[places + 1] - self._starts[places]
        inside = np.arange(lengths.max(initial=0))
        spread = np.minimum(self._starts[places, None] + inside, len(self._codes) - 1)
        others = np.where(inside < lengths[:, None], self._codes[spread], 0)
        return places[distances(_codes(word), others, lengths, allowed) <= allowed]


def distances(
    word: NDArray[np.uint32],
    others: NDArray[np.uint32],
    lengths: NDArray[np.int64],
    most: int,
) -> NDArray[np.int64]:
    """Return the optimal string alignment distance of ``word`` from each row of ``others``.

    ``word`` ``[m]`` and ``others`` ``[n, longest]`` are code points, of which the first ``lengths``
    ``[n]`` count. Distances above ``most`` are only said to be above it. (Boytsov 2011, Indexing
    methods for approximate dictionary searching, section 2.1.)
    """
    count, longest = others.shape
    before = row = np.repeat(np.arange(longest + 1)[:, None], count, axis=1)
    for i in range(1, len(word) + 1):
        second, before = before, row
        row = np.full((longest + 1, count), FAR)
        row[0] = i
        for j in range(max(1, i - most), min(longest, i + most) + 1):
            cell = before[j - 1] + (others[:, j - 1] != word[i - 1])
            np.minimum(cell, np.minimum(before[j], row[j - 1]) + 1, out=cell)
            if i > 1 and j > 1:
                swapped = (others[:, j - 1] == word[i - 2]) & (others[:, j - 2] == word[i - 1])
                np.minimum(cell, second[j - 2] + np.where(swapped, 1, FAR), out=cell)
            row[j] = cell
    found: NDArray[np.int64] = row[lengths, np.arange(count)]
    return found


class OfCorpus:
    """A transform that reads the words of the documents of the stage it stands before.

    They are counted at the first query, and again when the documents have changed. ``ConfigError``
    for a language without words to count.
    """

    def __init__(self, language: str, function: str) -> None:
        chosen = analyzer(language)
        if chosen.language == AUTO:
            raise ConfigError(
                f"{function}: language {language!r} is another one for each text; name one language"
            )
        if chosen.language in GRAMS:
            raise ConfigError(
                f"{function}: language {language!r} is analysed into pieces of words, which have "
                "no spelling of their own; expected a language that is written with spaces"
            )
        self.language, self.function = language, function
        self._counted: dict[str, CorpusWords] = {}  # the latest, by the documents' fingerprint
        self._lock = OwnLock()
        self._stage: Stage | None = None

    def for_stage(self, stage: Stage) -> Self:
        """Return the transform of another stage; both share what was counted."""
        other = copy.copy(self)
        other._stage = stage
        return other

    @property
    def words(self) -> CorpusWords:
        """The words as they are now; ``ConfigError`` for a stage without a document store."""
        store: Any = None if self._stage is None else self._stage.documents
        if isinstance(store, TextsOf):
            store = store.store
        if not isinstance(store, DocumentStore):
            raise ConfigError(
                f"{self.function}: reads the words of documents; expected a stage with a retriever"
            )
        with self._lock:
            found = self._counted.get(store.fingerprint)
            if found is None:
                texts = (document.full_text for document in store)
                found = CorpusWords.count(texts, self.language, len(store))
                self._counted.clear()
                self._counted[store.fingerprint] = found
            return found


class _Growing(dict[str, int]):
    def __missing__(self, word: str) -> int:
        self[word] = column = len(self)
        return column


def has_digit(word: str) -> bool:
    """Return whether a word has a digit, as names of things and numbers do."""
    return any(map(str.isdigit, word))


def _ones(masks: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return how many bits of each number are set."""
    total: NDArray[np.uint8] = (
        np.unpackbits(masks.view(np.uint8)).reshape(-1, 64).sum(axis=1, dtype=np.uint8)
    )
    return total


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _letters(codes: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return a bit for each code point; some share one."""
    return np.uint64(1) << (codes % 64).astype(np.uint64)
