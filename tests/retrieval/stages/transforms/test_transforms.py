"""Query transforms: what they search for, against formulas over plain searches."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_language_models import Echo
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import FlatIndex
from sluice.retrieval import Document, Passages, Retriever
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline
from sluice.retrieval.runs.queries import SelfExcluding
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.transforms.drafts import hyde, iter_retgen, query2doc
from sluice.retrieval.stages.transforms.rules import MOST, Synonyms, read_synonyms, synonyms
from sluice.retrieval.stages.transforms.stage import Each, Transformed, Variant
from sluice.retrieval.stages.transforms.structured import read_answer, structured

CORPUS = [
    Document(each.id, each.title, each.text, {"number": n, "even": n % 2 == 0, "word": f"w{n % 3}"})
    for n, each in enumerate(documents())
]
QUERIES = {"a": "gold river number", "b": "vector of stone", "c": "", "d": "the sluice water"}
ALL = len(CORPUS)


class Prefixing(WordEncoder):
    """Tells queries and documents apart, as encoders with prefixes do."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        return super().encode_documents([f"passage {text}" for text in texts])

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return super().encode_documents([f"query {text}" for text in texts])


class Parts:
    def __init__(self) -> None:
        self.bm25 = Retriever.build(BM25Encoder(), CORPUS, name="bm25")
        self.dense = Retriever.build(Prefixing(), CORPUS, index=FlatIndex("ip"), name="dense")
        self.cosine = Retriever.build(Prefixing(), CORPUS, index=FlatIndex("cosine"), name="cosine")
        self.stages: dict[str, Stage] = {
            "bm25": self.bm25, "dense": self.dense, "cosine": self.cosine,
            "fused": self.bm25 | self.dense, "cut": self.bm25 % 7,
        }  # fmt: skip


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


def same(run: Run, other: Run) -> None:
    assert list(run) == list(other)
    for query in run:
        assert list(run[query].doc_ids) == list(other[query].doc_ids)
        assert run[query].scores.tobytes() == other[query].scores.tobytes()


def scores(stage: Stage, text: str) -> dict[str, float]:
    return {doc: float(score) for doc, score in stage.run({"q": text}, None, ALL)["q"]}


@pytest.mark.parametrize("name", ["bm25", "dense", "cosine", "fused", "cut"])
@pytest.mark.parametrize(
    "function",
    [
        lambda text: [(text, 1.0)],
        lambda text: [],
        lambda text: [(text, 0.3)] * 5,
        lambda text: [(text, 2.0), ("gold", 0.0), ("  ", 1.0)],
    ],
    ids=["identity", "nothing", "copies", "weight 0"],
)
def test_what_stays_as_it_is_changes_no_bit(parts: Parts, name: str, function: Any) -> None:
    stage = parts.stages[name]
    same(Transformed(stage, Each(function)).run(QUERIES), stage.run(QUERIES))


@pytest.mark.parametrize("name", ["bm25", "dense", "cosine", "fused"])
def test_copies_that_differ_in_spacing_keep_the_order(parts: Parts, name: str) -> None:
    stage = parts.stages[name]
    spaced = Transformed(
        stage, Each(lambda text: [(text, 0.2), (text + " ", 3.0), (" " + text, 1)])
    )
    expected, found = stage.run(QUERIES), spaced.run(QUERIES)
    for query in QUERIES:
        assert list(found[query].doc_ids) == list(expected[query].doc_ids)
        if name != "fused":
            np.testing.assert_allclose(found[query].scores, expected[query].scores, rtol=1e-6)


TEXTS = [("gold river", 1.0), ("water of number 7", 0.5), ("stone stone index", 2.0)]


@pytest.mark.parametrize("name", ["bm25", "dense"])
def test_a_retriever_scores_by_the_weighted_mean_of_the_variants(parts: Parts, name: str) -> None:
    stage = parts.stages[name]
    found = scores(Transformed(stage, Each(lambda _: TEXTS)), "anything")
    lists = [scores(stage, text) for text, _ in TEXTS]
    for doc in {doc for one in lists for doc in one}:
        expected = (
            sum(w * one.get(doc, 0.0) for (_, w), one in zip(TEXTS, lists, strict=True)) / 3.5
        )
        assert found[doc] == pytest.approx(expected, rel=1e-5)


def unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))


def test_hyde_encodes_its_draft_as_a_document_and_means_unit_vectors(parts: Parts) -> None:
    draft = "water of the gold stone"
    stage = hyde(parts.cosine, Echo({"sluice": draft}), query_weight=0.5)
    encoder = Prefixing()
    query = unit(encoder.encode_queries(["sluice"])[0].astype(np.float64))
    document = unit(encoder.encode_documents([draft])[0].astype(np.float64))
    mean = unit((0.5 * query + document) / 1.5)
    texts = [each.full_text for each in CORPUS]
    vectors = encoder.encode_documents(texts).astype(np.float64)
    expected = {doc.id: float(unit(v) @ mean) for doc, v in zip(CORPUS, vectors, strict=True)}
    assert scores(stage, "sluice") == pytest.approx(expected, rel=1e-5)


def test_hyde_without_a_draft_is_the_retriever_itself(parts: Parts, caplog: Any) -> None:
    stage = hyde(parts.dense, Echo({"gold river number": "of <think>no</think>  "}))
    with caplog.at_level(logging.WARNING):
        same(stage.run(QUERIES), parts.dense.run(QUERIES))
    assert "hyde: without an answer: 3 of 3 prompts" in caplog.text


def test_hyde_of_several_prompts_writes_a_draft_for_each(parts: Parts) -> None:
    writer = Echo()
    stage = hyde(parts.bm25, writer, prompt=["Claim: {query}", "Title of {query}"])
    stage.run({"q": "gold river"})
    assert writer.asked == ["Claim: gold river", "Title of gold river"]
    with pytest.raises(ConfigError, match=r"hyde: prompt is an empty list"):
        hyde(parts.bm25, writer, prompt=[])
    with pytest.raises(ConfigError, match=r"prompt: has no \{query\}"):
        hyde(parts.bm25, writer, prompt="passage")


def test_other_stages_fuse_the_lists_by_reciprocal_ranks(parts: Parts) -> None:
    stage = parts.stages["fused"]
    found = scores(Transformed(stage, Each(lambda _: TEXTS)), "anything")
    expected: dict[str, float] = {}
    for text, weight in TEXTS:
        for rank, doc in enumerate(scores(stage, text), 1):
            expected[doc] = expected.get(doc, 0.0) + weight / (60 + rank)
    assert found == pytest.approx(expected, rel=1e-5)


def test_queries_of_different_variants_are_each_their_own(parts: Parts) -> None:
    made = {"gold": [("gold", 1.0)], "stone": TEXTS, "term": TEXTS[:2], "rank": [("score", 9.0)]}
    for stage in (parts.bm25, parts.stages["fused"]):
        transformed = Transformed(stage, Each(lambda text: made[text]))
        together = transformed.run({name: name for name in made}, None, ALL)
        for name in made:
            alone = scores(transformed, name)
            assert dict(together[name]) == pytest.approx(alone)
        assert dict(together["rank"]) == scores(stage, "score")


@pytest.mark.parametrize("name", ["bm25", "fused"])
def test_a_query_never_finds_its_own_document(parts: Parts, name: str) -> None:
    queries = SelfExcluding({"d00": "gold river", "d02": "stone"})
    stage = Transformed(parts.stages[name], Each(lambda text: [(text, 1.0), ("gold stone", 1.0)]))
    for query, ranking in stage.run(queries).items():
        assert query not in ranking.doc_ids
        assert len(ranking) > 3


def test_a_filter_holds_for_every_variant(parts: Parts) -> None:
    for stage in (parts.bm25, parts.stages["fused"]):
        transformed = Transformed(stage, Each(lambda _: TEXTS))
        hits = transformed.search("x", ALL, where={"number": {"lt": 9}})
        assert hits
        assert all(hit.metadata["number"] < 9 for hit in hits)


def test_passages_are_those_of_the_variant_that_found_the_document() -> None:
    text = " ".join(["gold"] * 12 + ["stone"] * 12)
    corpus = [Document("d", "", text), Document("e", "", "water " * 30)]
    cut = Retriever.build(WordEncoder(), corpus, passages=Passages(12, 0))
    for stage in (cut, cut % 5):
        one = Transformed(stage, Each(lambda _: [("stone", 1.0)])).search("gold", 1)[0]
        assert one.passage is not None
        assert one.passage.text.startswith("stone")


def test_a_function_that_gives_nonsense_is_told_so(parts: Parts) -> None:
    with pytest.raises(DataError, match=r"transformed: 7 for query 'gold'; expected text"):
        Transformed(parts.bm25, Each(lambda _: [(7, 1.0)])).search("gold")  # type: ignore[list-item]
    for weight in (-1, float("nan"), float("inf"), "1"):
        with pytest.raises(ConfigError, match=r"transformed: weight is"):
            Transformed(parts.bm25, Each(lambda _, w=weight: [("x", w)])).search("gold")
    with pytest.raises(ConfigError, match=r"expected a retriever or a pipeline"):
        Transformed("bm25", Each(lambda _: []))  # type: ignore[arg-type]


def test_query2doc_repeats_the_query_for_retrievers_that_count_words(parts: Parts) -> None:
    draft = {"gold river": "a draft"}
    for stage, times in ((parts.bm25, 5), (parts.dense, 1)):
        expected = scores(stage, " ".join(["gold river"] * times + ["a draft"]))
        assert scores(query2doc(stage, Echo(draft)), "gold river") == expected
    twice = scores(parts.bm25, "gold river gold river a draft")
    assert scores(query2doc(parts.bm25, Echo(draft), repeats=2), "gold river") == twice


def test_rounds_search_by_the_query_and_the_latest_draft(parts: Parts) -> None:
    class Model(Echo):
        def completions(self, prompts: Any, max_new_tokens: int) -> list[str]:
            self.asked += [prompt.text for prompt in prompts]
            return [f"stone {len(self.asked)}" for _ in prompts]

    model = Model()
    stage = iter_retgen(parts.bm25, model, rounds=2, depth=2, prompt="{documents}|{query}")
    found = scores(stage, "gold river")
    expected = []
    for asked in ("gold river", "gold river stone 1"):
        one, other = parts.bm25.search(asked, ALL)[:2]
        expected.append(f"[1] {one.full_text}\n[2] {other.full_text}|gold river")
    assert model.asked == expected
    assert found == scores(parts.bm25, "gold river stone 2")
    same(iter_retgen(parts.bm25, model, rounds=0).run(QUERIES), parts.bm25.run(QUERIES))
    same(iter_retgen(parts.bm25, Echo({})).run(QUERIES), parts.bm25.run(QUERIES))


SYNONYMS = """# television
tv, television set , Telly

i-pod, i pod => ipod, music player
gold, Au
"""


def test_a_file_of_synonyms(tmp_path: Path, parts: Parts) -> None:
    file = tmp_path / "synonyms.txt"
    file.write_text(SYNONYMS, encoding="utf-8-sig")
    rules = read_synonyms(file, 0.5)
    (plain, both, i_pod, inside, capital) = rules.variants(
        ["golden tvs", "TV of Gold", "my I  Pod", "television set", "\u0130-pod"]
    )
    assert plain == [Variant("golden tvs")]
    assert both == [
        Variant("TV of Gold"), Variant("television set of Gold", 0.25),
        Variant("Telly of Gold", 0.25), Variant("TV of Au", 0.5),
    ]  # fmt: skip
    assert i_pod == [Variant("my ipod"), Variant("my music player", 0.5)]
    assert [each.text for each in inside] == ["television set", "tv", "Telly"]
    assert capital == [Variant("\u0130-pod")]
    (sharp,) = Synonyms({"Straße": ["Gasse"]}, {}, 0.5).variants(["diese STRAßE"])
    assert [each.text for each in sharp] == ["diese STRAßE", "diese Gasse"]
    long = rules.variants(["tv " * 100])[0]
    assert len(long) == MOST
    stage = synonyms(parts.bm25, file=str(file), weight=0.5)
    one, other = scores(parts.bm25, "gold river"), scores(parts.bm25, "au river")
    expected = {doc: (one[doc] + 0.5 * other.get(doc, 0.0)) / 1.5 for doc in one}
    assert scores(stage, "gold river") == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("line", ["alone", "a =>", "=> b", ",", "a => ,"])
def test_a_bad_line_of_synonyms(tmp_path: Path, line: str) -> None:
    file = tmp_path / "bad.txt"
    file.write_text(f"a, b\n{line}\n")
    with pytest.raises(DataError, match=r"bad\.txt:2: .*expected 'tv, television'"):
        read_synonyms(file)
    file.write_text("a, b\na => c\n")
    with pytest.raises(DataError, match=r"'a' is replaced by '=>' and has synonyms too"):
        read_synonyms(file)
    with pytest.raises(ConfigError, match=r"synonyms: no file"):
        read_synonyms(tmp_path / "missing.txt")


@pytest.mark.parametrize(
    ("query", "text", "where"),
    [
        ("gold number>=30 river", "gold river", {"number": {"gte": 30}}),
        ("even:true  gold", "gold", {"even": True}),
        ('word:"w1" number!=4 stone', "stone", {"word": "w1", "number": {"not": 4}}),
        ("xeven:true even:true gold", "xeven:true gold", {"even": True}),
        ("number<9 number>2", "number<9 number>2", {"number": {"lt": 9, "gt": 2}}),
        ("color:red gold", "color:red gold", {}),
        ("gold river", "gold river", {}),
        ("number:many gold", "number:many gold", {}),  # of no kind that the documents have
        ("number>100 gold", "number>100 gold", {}),  # which none meets
        ("number:1 number:2 gold", "number:1 number:2 gold", {}),
    ],
)
def test_conditions_that_a_query_spells_out(
    parts: Parts, query: str, text: str, where: dict[str, Any]
) -> None:
    for stage in (parts.bm25, parts.stages["fused"]):
        plain = stage.filtered(where) if where else stage
        same(structured(stage).run({"q": query}), plain.run({"q": text}))


ANSWERS = {
    "even gold": '{"query": "gold", "where": {"even": true}}',
    "fenced": 'So:\n```json\n{"where": {"number": {"lte": 5}}, "query": ""}\n``` done',
    "thinking": '<think>{"where": {"even": true}}</think>{"query": "stone", "where": {}}',
    "no field": '{"query": "gold", "where": {"color": "red"}}',
    "no kind": '{"query": "gold", "where": {"number": "many"}}',
    "no operator": '{"query": "gold", "where": {"number": {"above": 3}}}',
    "no document": '{"query": "gold", "where": {"number": 4000}}',
    "no json": "all of them, {year",
    "a list": '[{"where": 3}]',
    "deep": '{"where": ' + "[" * 100_000,
    "empty": "",
}
EXPECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "even gold": ("gold", {"even": True}),
    "fenced": ("fenced", {"number": {"lte": 5}}),
    "thinking": ("stone", {}),
}


def test_filters_that_a_model_reads_out_of_the_query(parts: Parts, caplog: Any) -> None:
    writer = Echo(ANSWERS)
    stage = structured(parts.bm25, writer, prompt="{fields}\n{query}")
    with caplog.at_level(logging.WARNING):
        found = stage.run({name: name for name in ANSWERS}, None, 5)
    told = 'even (boolean)\nnumber (integer)\nword (text): "w0", "w1", "w2"'
    assert writer.asked[0] == f"{told}\neven gold"
    for name in ANSWERS:
        text, where = EXPECTED.get(name, (name, {}))
        plain = parts.bm25.filtered(where) if where else parts.bm25
        if where or name not in EXPECTED:
            same(Run({"q": found[name]}), plain.run({"q": text}, None, 5))
    assert "searched without a filter: 7 of 11 queries" in caplog.text
    assert "without an answer: 1 of 11 prompts" in caplog.text
    assert read_answer("q", '{"query": 3, "where": {"a": 1}}') == ("q", {"a": 1}, "")


def test_conditions_alone_that_find_nothing_are_told_of(parts: Parts, caplog: Any) -> None:
    stage = structured(parts.bm25)
    with caplog.at_level(logging.WARNING):
        found = stage.run({"a": "even:true", "b": "even:true gold", "c": "zzz"})
    assert {query: bool(len(hits)) for query, hits in found.items()} == {
        "a": False, "b": True, "c": False,
    }  # fmt: skip
    assert "1 query with nothing to search for beside conditions; first: 'even:true'" in caplog.text


def test_a_callers_filter_comes_before_the_querys(parts: Parts, caplog: Any) -> None:
    stage = structured(parts.bm25)
    hits = stage.search("even:true gold number", 40, where={"number": {"gte": 20}})
    assert {hit.metadata["even"] for hit in hits} == {True}
    assert min(hit.metadata["number"] for hit in hits) >= 20
    hits = stage.search("even:true gold number", 40, where={"even": False})
    assert {hit.metadata["even"] for hit in hits} == {False}
    bare = Retriever.build(BM25Encoder(), documents(), name="bare")
    assert structured(bare, Echo()).search("gold") == bare.search("gold")
    assert "structured(bare): the documents have no metadata" in caplog.text
    with pytest.raises(ConfigError, match=r"structured: budget is for a language model"):
        structured(bare, budget=3)


def test_explaining_shows_what_was_searched(parts: Parts) -> None:
    explained = explain_pipeline(query2doc(parts.bm25, Echo()), "gold river", 2)
    step = explained.steps[-1]
    assert step.name == "query2doc(bm25)"
    assert step.facts["searched"] == [("gold river " * 5 + "river gold", 1.0)]
    assert step.facts["asked"] == 1
    assert step.facts["tokens"] > 0
    explained = explain_pipeline(structured(parts.bm25), "gold even:true", 2)
    assert explained.steps[-1].facts["where"] == {"even": True}
