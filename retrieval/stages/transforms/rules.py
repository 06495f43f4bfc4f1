"""Query transforms by rules: synonyms from a file, spelling, and phrases of rare words."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

from sluice.encoders.foundation.bounded_input import expanded, read_whole
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.encoders.lexical.analyzer import marks
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.stages.transforms.corpus_words import CorpusWords, OfCorpus, has_digit
from sluice.retrieval.stages.transforms.stage import Transformed, Variant

MOST_EDITS: Final = 2  # edits of a word
SHORT, LONG = 3, 6  # letters from which one edit is allowed, and ``edits``
LONGEST_WORD: Final = 64  # letters; longer ones are not words that people misspell
CORRECTED: Final = 64  # words of a query, at most


class Spelling(OfCorpus):
    """The transform that corrects words by those of the corpus.

    A word that no document has, nor another word of the same term, is replaced by the word of the
    corpus at the least distance (``CorpusWords.nearest``), of several by that in most documents.
    Words of three to five letters may have one edit, longer ones ``edits``, shorter ones and those
    with digits or more than 64 letters none, and of a query its first 64 unknown words count. The
    query as it stands counts ``query_weight`` beside the corrected one's 1.
    """

    def __init__(self, edits: int, query_weight: float, language: str) -> None:
        super().__init__(language, "spelling")
        self.edits = whole_number(edits, "spelling: edits", 1, MOST_EDITS)
        self.query_weight = finite_number(query_weight, "spelling: query_weight", 0)

    def variants(self, queries: Sequence[str]) -> list[list[Variant]]:
        """Return each query and its correction; nothing for one whose words are all known."""
        words = self.words
        corrected = [self._corrected(query, words) for query in queries]
        return [
            [] if text == query else [Variant(text), Variant(query, self.query_weight)]
            for query, text in zip(queries, corrected, strict=True)
        ]

    def _corrected(self, query: str, words: CorpusWords) -> str:
        unknown = [
            word
            for word in dict.fromkeys(words.analyzer.words(query))
            if SHORT <= len(word) <= LONGEST_WORD and not has_digit(word) and not words.knows(word)
        ]
        text = unicodedata.normalize("NFC", query)  # as the words are
        changed = False
        for word in unknown[:CORRECTED]:
            best = words.nearest(word, 1 if len(word) < LONG else self.edits)
            if best:
                text, changed = _replaced(text, word, best[0]), True
        return text if changed else query


def spelling(
    stage: Stage,
    /,
    *,
    edits: Annotated[
        int, "Letters of a word that may differ, 1 or 2; 1 in words of three to five."
    ] = 2,
    query_weight: Annotated[
        float, "What the query as it stands counts; the corrected one counts 1."
    ] = 0.0,
    language: Annotated[str, "The language of the texts, as of BM25."] = "en",
) -> Transformed:
    """Search with misspelt words corrected by the words of the documents.

    A word that no document has is replaced by the nearest one that documents have, and of several
    by the most frequent. Words of three to five letters may have one edit, longer ones ``edits``,
    1 or 2. ``query_weight`` is what the query as it stands counts beside the corrected one's 1, and
    ``language`` says which words are one term. (Candidates and their order as in SymSpell, Garbe
    2012; edits by length as in Elasticsearch's fuzziness AUTO.)
    """
    rule = Spelling(edits, query_weight, language)
    options = {"edits": edits, "query_weight": query_weight, "language": language}
    return Transformed(stage, rule, "spelling", options=options)


def _replaced(query: str, word: str, by: str) -> str:
    inside = r"\w" if query.isascii() else rf"\w{marks()}"
    pattern = re.compile(rf"(?<![{inside}]){re.escape(word)}(?![{inside}])", re.IGNORECASE)
    return pattern.sub(lambda match: _cased(by, match[0]), query)


def _cased(word: str, like: str) -> str:
    """Return a word with a capital where the one it replaces has one, or has only capitals."""
    if len(like) > 1 and like.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if like[:1].isupper() else word


LONGEST_PHRASE: Final = 4  # words of a phrase; longer runs are cut


class KeyPhrases(OfCorpus):
    """The transform that adds a query's key phrases to it.

    A phrase is a run of words, not interrupted by a mark, all of which a document has and none of
    which more than ``common`` of the documents (and more than one) have; runs are cut into pieces
    of four words. Its score is the sum, over its words, of the count in the query times
    ln((N + 1) / (df + 0.5)), for N documents, df of them with the word. The best ``phrases`` share
    ``weight`` by their scores; the query counts ``query_weight``.
    """

    def __init__(
        self, phrases: int, weight: float, query_weight: float, common: float, language: str
    ) -> None:
        super().__init__(language, "key_phrases")
        self.phrases = whole_number(phrases, "key_phrases: phrases", 1)
        self.weight = finite_number(weight, "key_phrases: weight", 0)
        self.query_weight = finite_number(query_weight, "key_phrases: query_weight", 0)
        if self.weight == 0:
            raise ConfigError("key_phrases: weight 0 changes nothing; expected a number above 0")
        self.common = finite_number(common, "key_phrases: common", 0, 1)

    def variants(self, queries: Sequence[str]) -> list[list[Variant]]:
        """Return each query and its phrases; nothing where these are its only words."""
        words = self.words
        return [self._of(query, words) for query in queries]

    def _of(self, query: str, words: CorpusWords) -> list[Variant]:
        scores = self.scored(query, words)
        best = sorted(scores, key=lambda phrase: (-scores[phrase], phrase))[: self.phrases]
        if not best or set(" ".join(best).split()) == set(words.analyzer.words(query)):
            return []
        total = sum(scores[phrase] for phrase in best)
        shares = [Variant(phrase, self.weight * scores[phrase] / total) for phrase in best]
        return [Variant(query, self.query_weight), *shares]

    def scored(self, query: str, words: CorpusWords) -> dict[str, float]:
        """Return the score of each phrase of a query."""
        most = max(1.0, self.common * words.documents)
        runs: list[list[str]] = []
        for part in _breaks(query.isascii()).split(query):
            runs.append([])
            for word in words.analyzer.words(part):
                if 0 < words.frequencies.get(word, 0) <= most:
                    runs[-1].append(word)
                else:
                    runs.append([])
        counts = Counter(word for run in runs for word in run)
        pieces = (
            run[at : at + LONGEST_PHRASE]
            for run in runs
            for at in range(0, len(run), LONGEST_PHRASE)
        )
        return {
            " ".join(piece): sum(
                counts[word] * math.log((words.documents + 1) / (words.frequencies[word] + 0.5))
                for word in piece
            )
            for piece in pieces
        }


def key_phrases(
    stage: Stage,
    /,
    *,
    phrases: Annotated[int, "Phrases that are searched by, at most."] = 3,
    weight: Annotated[
        float, "What all phrases count together; the query counts query_weight."
    ] = 0.5,
    query_weight: Annotated[float, "What the query itself counts; 0: the phrases alone."] = 1.0,
    common: Annotated[float, "Words in a larger share of the documents are in no phrase."] = 0.1,
    language: Annotated[str, "The language of the texts, as of BM25."] = "en",
) -> Transformed:
    """Search by the query and its key phrases: runs of words that few documents have.

    The best ``phrases`` share ``weight`` by their scores, and the query counts ``query_weight``; 0
    searches by the phrases alone. Words in more than ``common`` of the documents are in no phrase,
    and ``language`` says where words end. (Phrases as in RAKE, Rose et al. 2010, Automatic keyword
    extraction from individual documents, with document frequencies in the place of stop words;
    weighed against the query as in Bendersky and Croft 2008, Discovering key concepts in verbose
    queries.)
    """
    rule = KeyPhrases(phrases, weight, query_weight, common, language)
    options = {
        "phrases": phrases, "weight": weight, "query_weight": query_weight, "common": common,
        "language": language,
    }  # fmt: skip
    return Transformed(stage, rule, "key_phrases", options=options)


@cache
def _breaks(ascii_only: bool) -> re.Pattern[str]:
    """Return what finds the signs that no phrase goes across; accents are none of them."""
    parts_of_words = "" if ascii_only else marks()
    return re.compile(rf"[^\w\s'\u2019\-{parts_of_words}]+|\n\s*\n")


LARGEST = 64 << 20  # bytes of a file
MOST = 32  # variants of a query


class Synonyms:
    """The transform of ``rules``: what each phrase may be replaced by, and whether it then goes.

    A query keeps weight 1. For each phrase in it, whole words whatever their case, the longest
    first and none inside another, ``weight`` is shared among the texts in which one of its synonyms
    stands in its place. A phrase of ``=>`` is replaced, by the first of its synonyms, in all texts.
    """

    def __init__(
        self,
        rules: Mapping[str, Sequence[str]],
        replaced: Mapping[str, Sequence[str]],
        weight: float,
    ) -> None:
        self.rules = {_folded(phrase): list(to) for phrase, to in {**rules, **replaced}.items()}
        self.replaced = frozenset(map(_folded, replaced))
        self.weight = finite_number(weight, "synonyms: weight", 0)
        longest_first = sorted(self.rules, key=lambda phrase: (-len(phrase), phrase))
        words = [r"\s+".join(map(re.escape, phrase.split())) for phrase in longest_first]
        self._phrases = re.compile(rf"(?<!\w)(?:{'|'.join(words) or '(?!)'})(?!\w)", re.IGNORECASE)

    def variants(self, queries: Sequence[str]) -> list[list[Variant]]:
        """Return each query and its texts with synonyms."""
        return [list(islice(self._of(query), MOST)) for query in queries]

    def _of(self, query: str) -> Iterator[Variant]:
        parts: list[str] = []  # of the text: between phrases, and phrases
        options: dict[int, list[str]] = {}  # by place in it
        end = 0
        for match in self._phrases.finditer(query):
            phrase = _folded(match[0])
            if phrase not in self.rules:  # a dotted capital I matches i, and folds to another
                continue
            to = self.rules[phrase]
            parts += [query[end : match.start()], match[0]]
            end = match.end()
            if phrase in self.replaced:
                parts[-1], to = to[0], to[1:]
            options[len(parts) - 1] = to
        parts.append(query[end:])
        yield Variant("".join(parts))
        for place, to in options.items():
            for each in to:
                text = "".join([*parts[:place], each, *parts[place + 1 :]])
                yield Variant(text, self.weight / len(to))


def read_synonyms(path: str | Path, weight: float = 0.5) -> Synonyms:
    """Read a file of lines as ``parsed`` describes them; ``ConfigError`` for a missing file."""
    return parsed(_lines(path), str(path), weight)


def parsed(lines: Sequence[str], where: str, weight: float = 0.5) -> Synonyms:
    """Return the synonyms of lines in the form of Solr and Elasticsearch.

    A line ``television, tv, telly`` makes each stand for the others; ``i-pod, i pod => ipod``
    replaces the left by the right. Blank lines and ``#`` lines are left out. Of a phrase on several
    lines all synonyms count. ``DataError`` for a bad line.
    """
    rules: dict[str, list[str]] = {}
    replaced: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        if _is_left_out(line):
            continue
        left, arrow, right = line.partition("=>")
        phrases, to = _phrases(left), _phrases(right)
        if not phrases or (arrow and not to) or (not arrow and len(phrases) < 2):
            raise DataError(
                f"{where}:{number}: {line.strip()!r:.80}; expected 'tv, television' or 'tv => "
                "television', with a phrase between commas"
            )
        for phrase in phrases:
            known = (replaced if arrow else rules).setdefault(_folded(phrase), [])
            others = to if arrow else [each for each in phrases if each != phrase]
            known += [each for each in others if each not in known]
    twice = sorted(set(rules) & set(replaced))
    if twice:
        raise DataError(
            f"{where}: {twice[0]!r} is replaced by '=>' and has synonyms too; leave one line out"
        )
    return Synonyms(rules, replaced, weight)


def synonyms(
    stage: Stage,
    /,
    *,
    file: Annotated[
        str | None, "Lines such as 'tv, television' (each for the others), 'tv => television'."
    ] = None,
    rules: Annotated[list[str] | None, "Such lines themselves, instead of a file."] = None,
    weight: Annotated[
        float, "What all synonyms of a phrase count together; the query counts 1."
    ] = 0.5,
) -> Transformed:
    """Search with synonyms of the query's phrases too.

    ``file`` has lines such as ``tv, television`` (each stands for the others) and ``tv =>
    television`` (replaced); or ``rules`` are these lines. ``weight`` is that of a phrase's synonyms
    together; the query has 1.
    """
    if (file is None) == (rules is None):
        raise ConfigError("synonyms: expected either file or rules, such as rules=['tv, telly']")
    if rules is not None and not (isinstance(rules, list) and all(map(_is_text, rules))):
        raise ConfigError(f"synonyms: rules {rules!r:.80}; expected a list of lines, ['tv, telly']")
    lines = _lines(str(file)) if rules is None else rules
    where = "synonyms: rules" if file is None else file
    found = parsed(lines, where, weight)
    own = [line for line in lines if not _is_left_out(line)]
    if not own:
        raise ConfigError(f"{where}: no line; expected lines such as 'tv, telly'")
    return Transformed(stage, found, "synonyms", options={"rules": own, "weight": weight})


def _lines(path: str | Path) -> list[str]:
    place = expanded(str(path))
    if not place.is_file():
        raise ConfigError(f"synonyms: no file {str(path)!r}; expected lines such as 'tv, telly'")
    return read_whole(place, LARGEST).decode("utf-8-sig", "replace").splitlines()


def _is_text(line: object) -> bool:
    return isinstance(line, str)


def _is_left_out(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _phrases(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(",") if part.strip()]


def _folded(phrase: str) -> str:
    return " ".join(phrase.lower().split())
