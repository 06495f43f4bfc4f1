"""The report's figures: against other formulas, ``explain`` and the folder they come from."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from report_world import HOSTILE, QUERIES, SYSTEMS, documents, query_id, world
from scipy import sparse

from sluice.encoders import SpladeEncoder, TokenEncoder
from sluice.encoders.foundation.errors import DataError, IndexFormatError, SluiceError
from sluice.retrieval import Passages, Retriever, Run
from sluice.retrieval.experiments.output.results import read_results
from sluice.retrieval.studies.report.data import set_data
from sluice.retrieval.studies.report.evaluated import EvaluatedSet, histogram, open_sets
from sluice.retrieval.studies.report.failures import buckets, reranked_depth
from sluice.retrieval.studies.report.page import as_json, build_report, page
from sluice.retrieval.studies.report.queries import TermReader, cut, plotted, term_parts


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def given(output: Path) -> EvaluatedSet:
    return open_sets(output)[0]


@pytest.fixture(scope="module")
def made(given: EvaluatedSet) -> tuple[dict[str, Any], dict[str, Any]]:
    return set_data(given, 12)


def parts_of(text: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', text, re.S)
    return {name: json.loads(part) for name, part in found}


def test_values_per_query_are_trec_evals(
    given: EvaluatedSet, made: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval")
    qrels = {query: dict(grades) for query, grades in given.dataset.qrels.items()}
    oracle = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.100"})
    stored = made[0]["perQuery"]
    assert stored["ids"] == given.queries
    for system, run in given.runs.items():
        expected = oracle.evaluate(run.to_dict())
        for measure, key in (("nDCG@10", "ndcg_cut_10"), ("R@100", "recall_100")):
            for query, value in zip(stored["ids"], stored["values"][measure][system], strict=True):
                assert value == pytest.approx(expected.get(query, {}).get(key, 0.0), rel=1e-3)


def test_the_caption_names_the_test_and_its_correction(
    made: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    others = len(SYSTEMS) - 1
    assert f"p < 0.05, Holm-corrected over {others} systems; " in made[0]["table"]["caption"]


def test_recall_by_depth_by_hand(
    given: EvaluatedSet, made: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    curves = made[0]["recall"]
    for system, run in given.runs.items():
        for depth, value in zip(curves["depths"], curves["systems"][system], strict=False):
            shares = [
                np.mean([doc in run[q].doc_ids[:depth] for doc, g in grades.items() if g > 0])
                if q in run else 0.0
                for q, grades in given.dataset.qrels.items()
            ]  # fmt: skip
            assert value == pytest.approx(np.mean(shares), abs=1e-4)
    assert len(curves["systems"]["bm25"]) == 7  # the run has 40: 50 is deeper
    assert curves["depths"][len(curves["systems"][SYSTEMS[2]]) - 1] == 5


def test_details_are_those_of_the_run_and_the_judgements(
    given: EvaluatedSet, made: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    data, details = made
    assert data["detailed"] == sorted(details["queries"])
    assert len(data["detailed"]) == 12
    ids = [document[0] for document in details["documents"]]
    assert len(set(ids)) == len(ids)
    texts = {document.id: document for document in documents()}
    for doc_id, title, snippet in details["documents"]:
        assert title == " ".join(texts[doc_id].title.split())
        assert snippet.removesuffix(" …") in " ".join(texts[doc_id].text.split())
    for place, told in details["queries"].items():
        query = given.queries[place]
        grades = given.dataset.qrels[query]
        for system, run in given.runs.items():
            expected = [(doc, grades.get(doc)) for doc in run[query].doc_ids[:10]] if query in run else []  # fmt: skip # noqa: E501
            assert [(ids[doc], grade) for doc, _, grade in told["top"][system]] == expected
        assert told["relevantTotal"] == 2
        for doc, grade, ranks in told["relevant"]:
            assert grades[ids[doc]] == grade
            for rank, run in zip(ranks, given.runs.values(), strict=True):
                found = list(run[query].doc_ids) if query in run else []
                assert rank == (found.index(ids[doc]) + 1 if ids[doc] in found else 0)


def test_terms_are_those_of_explain(
    given: EvaluatedSet, made: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    data, details = made
    retriever = given.retrievers["bm25"]
    checked = 0
    for place, told in details["queries"].items():
        text = given.dataset.queries[given.queries[place]]
        for doc, parts in told["terms"]["bm25"]["documents"].items():
            found = retriever.explain(text, details["documents"][doc][0]).terms[: len(parts)]
            assert [part for _, part in parts] == pytest.approx(
                [term.contribution for term in found], rel=5e-3
            )
            assert [term for term, _ in parts] == [term.term for term in found]
            checked += 1
    assert checked > 50
    vectors = retriever.encoder.encode_documents([d.full_text for d in documents()])
    terms = data["termCounts"]["bm25"]["documents"]["groups"][0]
    assert terms["mean"] == pytest.approx(np.diff(vectors.indptr).mean(), rel=1e-3)


def test_terms_of_passages_and_expansion_are_those_of_explain(masked_bert: Path) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, device="cpu")
    corpus = [
        d._replace(text=f"{d.text} {' '.join(['deep stone'] * 20)}") for d in documents()[2:8]
    ]
    retriever = Retriever.build(encoder, corpus, passages=Passages(12, 3))
    reader = TermReader(retriever)
    assert reader.sparse
    text = "gold in the river"
    vector = encoder.encode_queries([text])
    told = reader.query(text, vector)
    own = set(encoder.tokenizer(text)["input_ids"])
    tokens = encoder.tokenizer.convert_tokens_to_ids([term for term, _, _ in told["terms"]])
    assert [added for _, _, added in told["terms"]] == [int(token not in own) for token in tokens]
    weights = [weight for _, weight, _ in told["terms"]]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] == pytest.approx(vector.data.max(), rel=5e-3)
    other = encoder.encode_queries(["a storm at sea"])
    nothing = other.copy()
    nothing.data[:], names = 0, [document.id for document in corpus]
    nothing.eliminate_zeros()
    parts, of_other, of_nothing, of_none = reader.parts(
        sparse.vstack([vector, other, nothing, other], format="csr"),
        [[*names, "unknown"], names[2:4], names, ["unknown"]],
    )
    assert of_nothing == of_none == {}
    assert list(of_other) == names[2:4]
    assert of_other == reader.parts(other, [names[2:4]])[0]
    assert reader.parts(vector[:0], []) == []
    assert reader.parts(vector, [["unknown"]]) == [{}]
    assert "unknown" not in parts
    for document in corpus:
        found = retriever.explain(text, document.id).terms[:6]
        assert parts.get(document.id, []) == [
            [term.term, pytest.approx(term.contribution, rel=5e-3)] for term in found
        ]
    assert len(parts) > 3


@pytest.mark.thorough
def test_tokens_that_met_are_those_of_explain(bert: Path, tmp_path: Path) -> None:
    output = world(tmp_path)
    encoder = TokenEncoder.from_pretrained(bert, dim=8, query_length=12, document_length=40)
    late = Retriever.build(encoder, documents(), path=output / "retrievers" / "late")
    (opened,) = open_sets(output)
    _, details = set_data(opened, 4)
    assert opened.failures == []
    ids = [document[0] for document in details["documents"]]
    for place, told in details["queries"].items():
        found = told["tokens"]["late"]
        query = opened.dataset.queries[opened.queries[place]]
        assert len(found["documents"]) > 5
        for number, pairs in found["documents"].items():
            matches = late.explain(query, ids[number]).matches
            explained = [match for match in matches if match.in_query]
            masks = [match for match in matches if not match.in_query]
            assert len(masks) == found["others"] > 0
            assert {match.query_token for match in explained}.isdisjoint({"[MASK]", "[CLS]"})
            rest = sum(match.similarity for match in masks)
            assert found["rest"][number] == pytest.approx(rest, rel=5e-3)  # three digits
            assert found["count"] == len(explained)
            assert found["tokens"] == [match.query_token for match in explained]
            assert [pair[0] for pair in pairs] == [match.document_token for match in explained]
            similar = [match.similarity for match in explained]
            assert np.allclose([pair[1] for pair in pairs], similar, atol=1e-3)
    assert HOSTILE not in build_report(output, queries=4).read_text("utf-8")


def test_an_encoder_that_does_not_load_is_said(output: Path) -> None:
    given = open_sets(output)[0]
    retriever: Any = given.retrievers["bm25"]
    retriever._state = _Broken(retriever.state)
    explained, counts = term_parts(given, {given.queries[1]: ["d02"]})
    assert explained == {given.queries[1]: {}}
    assert counts == {}
    assert given.failures == ["terms of bm25 is left out: no such encoder"]


class _Broken:
    """A state whose encoder cannot be opened."""

    def __init__(self, state: Any) -> None:
        self.store, self.index = state.store, state.index

    @property
    def encoder(self) -> Any:
        raise IndexFormatError("no such encoder")


def test_buckets_by_hand() -> None:
    ids = [f"d{n}" for n in range(30)]
    run = Run({q: [(doc, 30.0 - n) for n, doc in enumerate(ids)] for q in "abcdef"})
    qrels = {
        "a": {"d0": 1}, "b": {"d15": 1, "d0": 0}, "c": {"d25": 2, "d0": 0}, "d": {"x": 1},
        "e": {"d0": 0, "d1": 1, "d2": 0}, "f": {"d9": 1}, "gone": {"d1": 1},
    }  # fmt: skip
    queries = list(qrels)
    found = buckets(run, qrels, queries, 20)
    named = {kind: [queries[place] for place in places] for kind, places in found.items()}
    assert named == {"none": ["d", "gone"], "lost": ["b"], "low": ["c"], "unjudged": ["d", "f"]}
    assert [queries[place] for place in buckets(run, qrels, queries, None)["low"]] == ["b", "c"]


@pytest.mark.parametrize(
    ("pipeline", "depth"),
    [
        ("bm25", None),
        ("bm25 | dense", None),
        ("(bm25 | dense) % 200 >> cross(depth=50)", 50),
        ("hybrid >> cross(interpolate=0.5)", 100),
        ("cascade", 20),
        ("weighted(bm25, (bm25 | dense) >> prf(dense))", None),
        ("bm25 >> rm3(bm25)", None),
        ("a >> dot(splade, depth=100) % 50 >> cross(depth=20, exit=0.4)", 20),
        ("loop", None),
        ("bm25 >> cross(depth=0)", None),
        ("hybrid", None),
        ("fits", 30),
        ("again", 30),
        ("left-out", None),
        ("over", 40),
    ],
)
def test_depth_that_is_reranked(pipeline: str, depth: int | None) -> None:
    known = {
        "cascade": "hybrid >> cross(depth=20)",
        "loop": "loop",
        "hybrid": "fitted(bm25, dense)",
        "fits": "hybrid >> fitted(cross, depth=50)",
        "again": "fits",
        "left-out": "hybrid >> fitted(cross)",
        "over": "fitted(bm25, dense) >> cross(depth=40)",
    }
    chosen = {
        "hybrid": "weighted(bm25 0.35, dense 0.65)",
        "fits": "cross(depth=30, interpolate=0.4)",
        "left-out": "cross(depth=0)",
        "over": "weighted(bm25 0.35, dense 0.65)",
    }
    assert reranked_depth(pipeline, known, chosen) == depth


def test_scores_are_counted_by_class(
    given: EvaluatedSet, made: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    for system, run in given.runs.items():
        found = {1: [], 0: [], -1: []}
        for query, grades in given.dataset.qrels.items():
            for doc, score in run.get(query, []):
                found[min(1, grades.get(doc, -1))].append(score)
        classes = made[0]["scores"][system]["classes"]
        assert [each["count"] for each in classes] == [len(found[key]) for key in (1, 0, -1)]
        for each, key in zip(classes, (1, 0, -1), strict=True):
            assert each["mean"] == (pytest.approx(np.mean(found[key]), rel=1e-3) if found[key] else None)  # fmt: skip # noqa: E501
            assert sum(each["share"]) == pytest.approx(1.0 if found[key] else 0.0, abs=1e-3)


def test_histogram_counts_everything() -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(0, 400, 1000)
    values[0] = 90_000
    found = histogram([values, [], [7]])
    assert found["beyond"] == 90_000
    assert [sum(group["share"]) for group in found["groups"]] == pytest.approx([1, 0, 1], abs=1e-3)
    width = found["edges"][1]
    assert found["groups"][2]["share"].index(1.0) == 7 // width
    assert found["groups"][0]["share"][0] == pytest.approx((values < width).mean(), rel=1e-3)


def test_many_queries_are_sampled() -> None:
    queries = [f"q{n}" for n in range(7000)]
    kept = plotted(queries, [3, 6999, 1234])
    assert {3, 6999, 1234} <= set(kept)
    assert kept == sorted(set(kept))
    assert 1900 < len(kept) <= 2000
    assert plotted(queries[:50], [3]) == list(range(50))


def test_cut() -> None:
    assert cut("a  b\n c", 10) == "a b c"
    assert cut("gold river " * 10, 24) == "gold river gold river …"
    assert cut("x" * 50, 10) == "x" * 10 + " …"


def test_json_in_a_page_is_inert() -> None:
    value = {HOSTILE: [HOSTILE, "\ud800", float("nan"), float("inf"), "<!--", "]]>"]}
    text = as_json(value)
    assert not set("<>&\u2028\u2029\ud800") & set(text)
    assert json.loads(text) == {HOSTILE: [HOSTILE, "\ud800", None, None, "<!--", "]]>"]}
    whole = page(f"title {HOSTILE}", {"summary": value})
    assert whole.count("<script") == 2
    assert "<img" not in whole
    assert parts_of(whole)["summary"] == json.loads(text)
    policy = re.search('Content-Security-Policy" content="([^"]*)"', whole)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", whole)


@pytest.mark.parametrize("key", ["seconds", "peak_memory_bytes"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_costs_of_parts_that_cannot_be_are_refused(tmp_path: Path, key: str, value: float) -> None:
    system = {"name": "bm25", "measures": {"nDCG@10": 0.5}}
    results = {"dataset": "d", "split": "test", "systems": [system]}
    file = tmp_path / "results.json"
    file.write_text(json.dumps({**results, "parts": [{"part": "retrievers.bm25", key: 1.0}]}))
    assert read_results(tmp_path)["parts"][0][key] == 1.0
    file.write_text(json.dumps({**results, "parts": [{"part": "retrievers.bm25", key: value}]}))
    with pytest.raises(SluiceError, match=r"results\.json"):
        read_results(tmp_path)


def test_the_verb(sluice: Call, output: Path, tmp_path: Path) -> None:
    target = tmp_path / "sub" / "page.html"
    code, out, _ = sluice("report", output, "--output", target, "--queries", 4)
    assert code == 0
    assert out == f"{target}: {target.stat().st_size:,} bytes\n"
    found = parts_of(target.read_text(encoding="utf-8"))
    assert len(found["details-0"]["queries"]) == len(found["set-0"]["detailed"]) == 4
    assert found["set-0"]["queryCount"] == QUERIES
    assert found["set-0"]["table"]["copies"]["CSV"].count("\n") == 1 + len(SYSTEMS)
    assert [each["name"] for each in found["set-0"]["trainings"]] == ["splade"]
    code, _, err = sluice("report", tmp_path)
    assert (code, "no results.json here" in err) == (2, True)
    code, _, err = sluice("report", output, "--output", tmp_path / "x.pdf")
    assert (code, "ends in .html" in err) == (2, True)


def test_a_suite(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    (suite / "datasets").mkdir(parents=True)
    for name in ("one", "two"):
        world(tmp_path, name=name).rename(suite / "datasets" / name)
    results = json.loads((suite / "datasets" / "one" / "results.json").read_text())
    rows = [
        {"name": each["name"], "one": each["measures"]["R@100"], "two": 0.5, "average": None}
        for each in results["systems"]
    ]
    tests = [{**each, "dataset": "one", "significant": True} for each in results["comparisons"]]
    whole = {
        "datasets": ["one", "two"], "failed": {"three": "no such dataset"},
        "tables": {"R@100": {"systems": rows, "comparisons": tests, "caption": "said"}},
    }  # fmt: skip
    (suite / "results.json").write_text(json.dumps(whole))
    found = parts_of(build_report(suite, queries=2).read_text(encoding="utf-8"))
    assert found["summary"]["sets"] == ["one", "two"]
    table = found["summary"]["overview"]["R@100"]
    assert table["systems"] == rows
    assert ["reranked", "one"] in table["marks"]
    assert {"set-0", "set-1", "details-0", "details-1"} < set(found)
    assert found["summary"]["failed"] == whole["failed"]


def test_what_is_not_there(tmp_path: Path) -> None:
    output = world(tmp_path)
    run = output / "runs" / "reranked.trec.gz"
    kept = run.read_bytes()
    run.unlink()
    with pytest.raises(DataError, match="no such run"):
        build_report(output)
    run.write_bytes(kept)
    head = output / "retrievers" / "bm25" / "retriever.json"
    head.write_text("{}")  # a retriever that cannot be opened is said on the page
    found = parts_of(build_report(output, queries=3).read_text(encoding="utf-8"))
    assert "retriever bm25 is left out" in found["set-0"]["failed"][0]
    assert found["set-0"]["termCounts"] == {}
    texts = {document[0]: document[1:] for document in found["details-0"]["documents"]}
    assert all(len(text) == 2 for text in texts.values())  # from the corpus itself
    (output / "results.json").write_text('{"dataset": "x"}')
    with pytest.raises(DataError, match="expected dataset, split, and systems"):
        build_report(output)


def test_query_ids_are_kept_whole(made: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert query_id(0) in made[0]["perQuery"]["ids"]
