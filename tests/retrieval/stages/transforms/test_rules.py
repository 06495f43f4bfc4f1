"""Rules by the words of the documents: spelling and key phrases, against plain formulas."""

import math
import random
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.lexical.analyzer import analyzer
from sluice.retrieval import Document, Rerank, Retriever
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.transforms.corpus_words import CorpusWords
from sluice.retrieval.stages.transforms.rules import KeyPhrases, Spelling, key_phrases, spelling
from sluice.retrieval.stages.transforms.stage import Variant

KNOWN = {"a": "gold river number", "b": "the stones of Vectors", "c": "", "d": "word7, sluicing"}
ALL = 40


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    bm25 = Retriever.build(BM25Encoder(), documents(), name="bm25")
    dense = Retriever.build(WordEncoder(), documents(), name="dense")
    return {"bm25": bm25, "dense": dense, "fused": bm25 | dense}


def same(run: Run, other: Run) -> None:
    assert {q: list(run[q].doc_ids) for q in run} == {q: list(other[q].doc_ids) for q in other}
    assert all(run[q].scores.tobytes() == other[q].scores.tobytes() for q in run)


def scores(stage: Stage, text: str) -> dict[str, float]:
    return {doc: float(score) for doc, score in stage.run({"q": text}, None, ALL)["q"]}


def plain_distance(one: str, other: str) -> int:
    """Optimal string alignment, by its recursion."""
    known: dict[tuple[int, int], int] = {}
    for i in range(len(one) + 1):
        for j in range(len(other) + 1):
            options = [0] if i == j == 0 else []
            if i:
                options.append(known[i - 1, j] + 1)
            if j:
                options.append(known[i, j - 1] + 1)
            if i and j:
                options.append(known[i - 1, j - 1] + (one[i - 1] != other[j - 1]))
            if i > 1 and j > 1 and one[i - 2 : i] == other[j - 2 : j][::-1]:
                options.append(known[i - 2, j - 2] + 1)
            known[i, j] = min(options)
    return known[len(one), len(other)]


@pytest.mark.parametrize("letters", ["abc", "ab\u00e9\u0436\U00010428"])
def test_the_nearest_words_are_those_of_brute_force(letters: str) -> None:
    chance = random.Random(13)

    def drawn() -> str:
        return "".join(chance.choices(letters, k=chance.randint(1, 9)))

    frequencies = {drawn(): chance.randint(1, 5) for _ in range(100)}
    words = CorpusWords({**frequencies, "abc1": 9, "1": 9}, 200, "none")
    found = 0
    for word in {*(drawn() for _ in range(25)), "", "a" * 30, "abcd"} - set(frequencies):
        for edits in (1, 2):
            near = {each: plain_distance(word, each) for each in frequencies}
            least = min(near.values())
            best = [each for each in near if near[each] == least <= edits]
            assert words.nearest(word, edits) == sorted(best, key=lambda w: (-frequencies[w], w))
            found += len(best)
    assert found > 20
    assert words.nearest(min(frequencies), 2) == [min(frequencies)]
    assert CorpusWords({}, 0).nearest("gold", 2) == []
    assert not CorpusWords({}, 0).knows("gold")


def test_words_are_counted_by_document(stages: dict[str, Stage]) -> None:
    texts = ["Gold, gold; the R\u00edver's 3rd", "river GOLD", "", "\u0130stanbul"]
    split = analyzer("en").words
    expected = Counter(word for text in texts for word in set(split(text)))
    found = CorpusWords.count(texts)
    assert (dict(found.frequencies), found.documents) == (dict(expected), 4)
    assert found.knows("golds")  # the same term
    assert found.knows("with")  # a stop word
    assert not found.knows("goldd")
    retriever = Retriever.build(BM25Encoder(), [Document("a", "Title", "a text of gold")])
    rule = spelling(retriever).rule
    assert isinstance(rule, Spelling)
    first = rule.words
    assert (set(first.frequencies), first.documents) == ({"title", "a", "text", "of", "gold"}, 1)
    assert rule.words is first
    retriever.add([Document("b", "", "silver")])
    retriever.delete(["a"])
    assert (dict(rule.words.frequencies), rule.words.documents) == ({"silver": 1}, 1)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("glod rivr", "gold river"),
        ("Glod, RIVRE of", "Gold, RIVER of"),
        ("slucie-gold", "sluice-gold"),
        ("vektro", "vector"),  # two edits in six letters
        ("vktro", "vktro"),  # of five letters one may be wrong
        ("gd xg", "gd xg"),  # of two letters none
        ("gold7 word99 1glod", "gold7 word99 1glod"),  # names with digits
        ("qwertyuiop", "qwertyuiop"),
        ("goldd goldd Goldd", "gold gold Gold"),
        ("glod AND-goldd", "gold AND-gold"),
    ],
)
def test_corrections(stages: dict[str, Stage], query: str, text: str) -> None:
    for stage in stages.values():
        same(spelling(stage).run({"q": query}), stage.run({"q": text}))
    (variants,) = spelling(stages["bm25"]).rule.variants([query])
    assert list(variants) == ([] if query == text else [Variant(text), Variant(query, 0.0)])


def test_frequent_words_come_first_and_edits_bound(stages: dict[str, Stage]) -> None:
    corpus = [Document(f"d{n}", "", text) for n, text in enumerate(["cast", "cart cat", "cart"])]
    bm25 = Retriever.build(BM25Encoder(), corpus)
    assert scores(spelling(bm25), "cabt") == scores(bm25, "cart")  # in two documents
    assert scores(spelling(bm25), "caxst") == scores(bm25, "cast")
    long = Retriever.build(BM25Encoder(), [Document("d", "", "mitochondria")])
    assert len(spelling(long).search("mitocondira")) == 1
    assert len(spelling(long, edits=1).search("mitocondira")) == 0


def test_long_words_and_queries_are_bounded(stages: dict[str, Stage]) -> None:
    rule = spelling(stages["bm25"]).rule
    unknown = [f"{first}{second}qqqqq" for first in "bcdfhjklm" for second in "bcdfhjklm"]
    for before, last in ((63, "gold"), (64, "goldd")):
        query = " ".join(["rivver", *unknown[: before - 1], "goldd"])
        ((corrected, _),) = rule.variants([query])
        assert corrected.text.split() == ["river", *unknown[: before - 1], last]
    corpus = Retriever.build(BM25Encoder(), [Document("d", "", "a" * 65 + " " + "b" * 64)])
    bounded = spelling(corpus).rule
    assert list(bounded.variants(["a" * 66, "a" * 64 + "c"])) == [[], []]
    assert bounded.variants(["b" * 63])[0][0].text == "b" * 64  # type: ignore[index]


def test_the_query_as_it_stands_may_count_too(stages: dict[str, Stage]) -> None:
    stage = spelling(stages["dense"], query_weight=0.5)
    one, other = scores(stages["dense"], "gold water"), scores(stages["dense"], "glod water")
    expected = {doc: (one[doc] + 0.5 * other[doc]) / 1.5 for doc in one}
    assert scores(stage, "glod water") == pytest.approx(expected, rel=1e-5)
    fused: dict[str, float] = {}
    for text, weight in (("gold water", 1.0), ("glod water", 0.5)):
        for rank, doc in enumerate(scores(stages["fused"], text), 1):
            fused[doc] = fused.get(doc, 0.0) + weight / (60 + rank)
    own = scores(spelling(stages["fused"], query_weight=0.5), "glod water")
    assert own == pytest.approx(fused, rel=1e-5)


@pytest.mark.parametrize("name", ["bm25", "dense", "fused"])
def test_known_words_change_no_bit(stages: dict[str, Stage], name: str) -> None:
    same(spelling(stages[name]).run(KNOWN), stages[name].run(KNOWN))
    phrases = key_phrases(stages[name])
    for text in ("gold river", "number", "qqq", "", "the of"):
        same(phrases.run({"q": text}), stages[name].run({"q": text}))


def plain_phrases(query: str, texts: list[str], common: float) -> dict[str, float]:
    """The phrases of a query without any mark, and their scores."""
    split = analyzer("en").words
    df = Counter(word for text in texts for word in set(split(text)))
    rare = [w if 0 < df[w] <= max(1, common * len(texts)) else None for w in split(query)]
    counts = Counter(rare)
    runs: list[list[str]] = [[]]
    for word in rare:
        if word is None:
            runs.append([])
        else:
            runs[-1].append(word)
    pieces = [run[at : at + 4] for run in runs for at in range(0, len(run), 4)]
    return {
        " ".join(piece): sum(
            counts[w] * math.log((len(texts) + 1) / (df[w] + 0.5)) for w in piece
        )
        for piece in pieces
    }  # fmt: skip


QUERY = "word1 gold and the word2 river word3 word4 word5 unknown word1 of stone"


@pytest.mark.parametrize(("phrases", "common"), [(1, 0.3), (2, 0.1), (9, 1.0)])
def test_key_phrases_are_those_of_the_formula(
    stages: dict[str, Stage], phrases: int, common: float
) -> None:
    texts = [each.full_text for each in documents()]
    expected = plain_phrases(QUERY, texts, common)
    stage = key_phrases(
        stages["bm25"], phrases=phrases, weight=0.8, query_weight=0.5, common=common
    )
    assert isinstance(stage.rule, KeyPhrases)
    assert stage.rule.scored(QUERY, stage.rule.words) == pytest.approx(expected)
    best = sorted(expected, key=lambda phrase: (-expected[phrase], phrase))[:phrases]
    total = sum(expected[phrase] for phrase in best)
    weighed = {phrase: 0.8 * expected[phrase] / total for phrase in best}
    own, lists = scores(stages["bm25"], QUERY), {p: scores(stages["bm25"], p) for p in best}
    for doc, score in scores(stage, QUERY).items():
        mean = 0.5 * own[doc] + sum(weighed[p] * lists[p].get(doc, 0.0) for p in best)
        assert score == pytest.approx(mean / 1.3, rel=1e-5)


def test_phrases_end_at_marks_and_the_query_may_be_left_out(stages: dict[str, Stage]) -> None:
    stage = key_phrases(stages["bm25"], phrases=9, query_weight=0, common=1.0)
    (variants,) = stage.rule.variants(["Gold river, stone (water) of word1?  qqq"])
    names = [each.text for each in variants if each.weight > 0]
    assert sorted(names) == ["gold river", "of word1", "stone", "water"]
    same(stage.run({"q": "zzz qqq"}), stages["bm25"].run({"q": "zzz qqq"}))


def test_words_with_combining_marks_stay_whole() -> None:
    """Accents as signs of their own, and the vowels of Hindi: regular expressions split at both."""
    corpus = [Document("a", "", "größe straße müller"), Document("b", "", "हिन्दी किताब पुस्तक")]
    bm25 = Retriever.build(BM25Encoder(), corpus, name="bm25")
    (variants,) = spelling(bm25).rule.variants([unicodedata.normalize("NFD", "A müler, bü")])
    assert variants[0].text == "A müller, bü"
    (variants,) = spelling(bm25).rule.variants(["हिन्ददी हिन्दद"])
    assert variants[0].text == "हिन्दी हिन्दी"
    rule = key_phrases(bm25, common=1.0).rule
    assert isinstance(rule, KeyPhrases)
    for query in (unicodedata.normalize("NFD", "größe straße, müller"), "हिन्दी किताब"):
        phrase = " ".join(unicodedata.normalize("NFC", query).split(",")[0].split())
        assert phrase in rule.scored(query, rule.words)


def test_filters_explanations_and_rerankers(stages: dict[str, Stage]) -> None:
    corpus = [Document(d.id, d.title, d.text, {"n": n}) for n, d in enumerate(documents())]
    bm25 = Retriever.build(BM25Encoder(), corpus, name="bm25")
    for stage in (spelling(bm25), key_phrases(bm25, common=1.0)):
        hits = stage.search("glod rivr of word1 gold", 40, where={"n": {"lt": 9}})
        assert hits
        assert all(hit.metadata["n"] < 9 for hit in hits)
        assert len(stage.search("gold", 1)) == 1
    step = explain_pipeline(spelling(bm25), "glod river", 2).steps[-1]
    assert step.facts["searched"] == [("gold river", 1.0)]
    again = spelling(spelling(bm25) % 7 >> Rerank(lambda pairs: [len(d) for _, d in pairs], 5))
    assert len(again.search("glod", 9)) == 7


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"edits": 0}, r"spelling: edits is 0"),
        ({"edits": 3}, r"spelling: edits is 3"),
        ({"query_weight": -1}, r"spelling: query_weight is -1"),
        ({"language": "zh"}, r"spelling: language 'zh' is analysed into pieces of words"),
        ({"language": "auto"}, r"spelling: language 'auto' is another one for each text"),
        ({"language": "klingon"}, r"language: unknown language 'klingon'"),
    ],
)
def test_settings_of_spelling(
    stages: dict[str, Stage], options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        spelling(stages["bm25"], **options)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"phrases": 0}, r"key_phrases: phrases is 0"),
        ({"weight": 0}, r"key_phrases: weight 0 changes nothing"),
        ({"weight": float("nan")}, r"key_phrases: weight is"),
        ({"query_weight": -0.1}, r"key_phrases: query_weight is"),
        ({"common": 1.5}, r"key_phrases: common is 1.5"),
        ({"language": "th"}, r"key_phrases: language 'th'"),
    ],
)
def test_settings_of_key_phrases(
    stages: dict[str, Stage], options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        key_phrases(stages["bm25"], **options)


def test_a_stage_without_documents_is_told_so(tmp_path: Path) -> None:
    class Own(Stage):
        name = "own"

        def rank(self, queries: Any, given: Run | None = None, k: int | None = None) -> Run:
            return Run({})

    for make in (spelling, key_phrases):
        with pytest.raises(ConfigError, match=r"reads the words of documents; expected a stage"):
            make(Own()).run({"q": "gold"})
        with pytest.raises(ConfigError, match=r"expected a retriever or a pipeline"):
            make("bm25")  # type: ignore[arg-type]
