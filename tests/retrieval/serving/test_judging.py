"""Judging over HTTP: the work of assessors, and the way from their judgements to figures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Call
from serving import EXTRA, Ask, asker
from small_world import documents

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.experiments.experiment import open_experiment
from sluice.retrieval.jobs import index
from sluice.retrieval.runs.trec_files import read_qrels
from sluice.retrieval.serving.judging import judging as opening
from sluice.retrieval.serving.judging.judgements import read_judgements
from sluice.retrieval.serving.settings import ServeSettings, add_key

QUERIES = {"1": "gold river", "2": "stone water", "3": "qwertyuiop"}
DEPTH = 4


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of one's own, indexed twice by BM25, and a file of queries without judgements."""
    folder = tmp_path_factory.mktemp("judged")
    lines = [json.dumps({"_id": d.id, "title": d.title, "text": d.text}) for d in documents()]
    (folder / "notes.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "queries.txt").write_text("\n".join(QUERIES.values()) + "\n")
    bm25 = {"encoder": {"type": "bm25"}}
    flat = {"encoder": {"type": "bm25", "b": 0.0, "k1": 5.0}}
    index(
        {
            "dataset": {"corpus": str(folder / "notes.jsonl")},
            "output": str(folder / "my"),
            "retrievers": {"bm25": bm25, "flat": flat},
            "pipelines": {"both": "bm25 | flat"},
        }
    )
    return folder


@pytest.fixture
def serve(world: Path) -> Iterator[Callable[..., Any]]:
    """Makes services that judge."""
    pytest.importorskip("starlette", reason=EXTRA)
    pytest.importorskip("prometheus_client", reason=EXTRA)
    from sluice.retrieval.serving import Service

    opened = []

    def make(log: Path, **settings: Any) -> Any:
        settings = {"judge": str(world / "queries.txt"), "judge_depth": DEPTH, **settings}
        made = Service.open(world / "my", ServeSettings(judgements=log, **settings))
        opened.append(made)
        return made

    yield make
    for each in opened:
        each.close()


def say(
    ask: Ask, query: str, document: str, grade: int | None, name: str = "ann", **more: Any
) -> Any:
    body = {"assessor": name, "query": query, "document": document, "grade": grade, **more}
    response = ask("POST", "/judge/judgements", body)
    assert response.status_code == 200, response.text
    return response.json()


def task(ask: Ask, name: str = "ann", query: str | None = None) -> Any:
    asked = f"/judge/task?assessor={name}" + (f"&query={query}" if query else "")
    response = ask("GET", asked)
    assert response.status_code == 200, response.text
    return response.json()


def grade_of(document: str, name: str) -> int:
    return (int(document[1:]) + (name == "bob" and document.endswith("1"))) % 4


def test_from_queries_to_figures(world: Path, serve: Any, sluice: Call, tmp_path: Path) -> None:
    """Serve, judge by two people, agree, export, evaluate: the loop that the page is for."""
    log = tmp_path / "log.jsonl"
    ask = asker(serve(log))
    experiment = open_experiment(world / "my")
    pools = {
        query: {
            hit.doc_id
            for name in ("bm25", "flat", "both")
            for hit in experiment.stage(name).search(text, DEPTH)
        }
        for query, text in QUERIES.items()
    }
    assert len(pools["1"]) > DEPTH  # the pipelines differ
    assert pools["3"] == set()
    for name in ("ann", "bob"):
        seen: dict[str, list[str]] = {}
        while (found := task(ask, name))["query"] is not None:
            query = found["query"]["id"]
            assert query not in seen
            assert {each["id"] for each in found["documents"]} == pools[query]
            assert all(each["grade"] is None for each in found["documents"])
            seen[query] = [each["id"] for each in found["documents"]]
            for place, document in enumerate(seen[query], 1):
                answer = say(ask, query, document, grade_of(document, name), name)
                assert answer["query"]["judged"] == place
        assert list(seen) == ["1", "2"]  # the third has no candidate
        listed = ask("GET", f"/judge/queries?assessor={name}").json()
        assert [each["judged"] for each in listed["queries"]] == [*map(len, pools.values())]
    again = task(ask, "bob", "1")["documents"]
    assert [each["id"] for each in again] == [
        each["id"] for each in task(ask, "ann", "1")["documents"]
    ]
    assert all(each["grade"] == grade_of(each["id"], "bob") for each in again)

    pairs = [(query, document) for query, pool in pools.items() for document in pool]
    agreement = ask("GET", "/judge/agreement").json()
    assert agreement["shared"] == len(pairs)
    same = sum(grade_of(d, "ann") == grade_of(d, "bob") for _, d in pairs)
    assert agreement["two"][0]["same"] == pytest.approx(same / len(pairs))
    code, out, _ = sluice("labels", "assessors", log, "--json")
    assert code == 0
    assert json.loads(out) == agreement
    code, out, _ = sluice("labels", "assessors", log)
    assert "ann, bob" in out

    expected = {
        query: {d: max(grade_of(d, "ann"), grade_of(d, "bob")) for d in pool}
        for query, pool in pools.items()
        if pool
    }
    for form in ("beir", "trec"):
        response = ask("GET", f"/judge/qrels?rule=max&format={form}")
        assert "attachment" in response.headers["content-disposition"]
        (tmp_path / form).write_bytes(response.content)
        assert read_qrels(tmp_path / form) == expected
    qrels = tmp_path / "qrels.tsv"
    code, out, err = sluice("labels", "export", log, "--rule", "max", "--output", qrels)
    assert (code, err) == (0, "")
    assert f"{len(pairs)} judgements of 2 queries" in out
    assert qrels.read_bytes() == (tmp_path / "beir").read_bytes()
    code, _, err = sluice(
        "evaluate", world / "my" / "experiment.yaml", f"dataset.queries={world / 'queries.txt'}",
        f"dataset.qrels={qrels}", "evaluate.measures=[nDCG@4, Judged@4]",
    )  # fmt: skip
    assert code == 0, err
    results = json.loads((world / "my" / "results.json").read_text())
    measured = {each["name"]: each["measures"] for each in results["systems"]}
    run = experiment.stage("both").run({q: QUERIES[q] for q in expected}, None, 100)
    own = evaluate(run, expected, ["nDCG@4", "Judged@4"]).mean
    assert measured["both"] == pytest.approx(own, abs=1e-6)
    assert measured["both"]["Judged@4"] == 1  # what was pooled is judged


def test_skips_undo_comments_and_a_restart(serve: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    ask = asker(serve(log))
    first, second, third, *_ = (each["id"] for each in task(ask)["documents"])
    say(ask, "1", first, 3, comment=" it <b>names</b> it ")
    assert say(ask, "1", second, None, skipped=True)["query"]["skipped"] == 1
    say(ask, "1", third, 1)
    say(ask, "1", third, 2)
    ask = asker(serve(log))  # all is in the log
    found = {each["id"]: each for each in task(ask)["documents"]}
    assert (found[first]["grade"], found[first]["comment"]) == (3, "it <b>names</b> it")
    assert found[second]["skipped"]
    assert found[third]["grade"] == 2
    undo = ("POST", "/judge/undo", {"assessor": "ann"})
    answers = [ask(*undo).json() for _ in range(4)]
    assert [(each["document"], each["grade"]) for each in answers] == [
        (third, 1), (third, None), (second, None), (first, None)
    ]  # fmt: skip
    assert answers[-1]["query"] | {"text": ""} == {
        "id": "1", "text": "", "candidates": len(found), "judged": 0, "skipped": 0
    }  # fmt: skip
    assert ask(*undo).status_code == 409
    assert ask("POST", "/judge/undo", {"assessor": "bob"}).status_code == 409
    assert ask("GET", "/judge/qrels").json()["error"]["message"].startswith("no document is judged")
    marks = found[first]["marks"]
    assert {found[first]["text"][start:end] for start, end in marks} <= {"gold", "river"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/judge/task?assessor=ann&query=9", None, 404, "query: no '9'"),
        ("GET", "/judge/task", None, 400, "assessor: ''; expected a name"),
        ("GET", "/judge/task?assessor=" + "x" * 61, None, 400, "1 to 60 characters"),
        ("GET", "/judge/task?assessor=a%07", None, 400, "expected a name"),
        ("GET", "/judge/task?assesor=ann", None, 400, "did you mean 'assessor'"),
        ("GET", "/judge/qrels?rule=mode", None, 400, "rule: 'mode'; expected one of majority"),
        ("GET", "/judge/qrels?assessor=eve", None, 400, "assessor: 'eve'; expected one of ann"),
        ("GET", "/judge/qrels?format=xml", None, 400, "format: 'xml'"),
        ("POST", "/judge/judgements", {"document": "none"}, 400, "is not a candidate of query '1'"),
        ("POST", "/judge/judgements", {"grade": ...}, 400, "grade: missing"),
        ("POST", "/judge/judgements", {"grade": 4}, 400, "grade: 4; expected"),
        ("POST", "/judge/judgements", {"grade": "1"}, 400, "grade: '1'; expected"),
        ("POST", "/judge/judgements", {"grade": 1, "skipped": True}, 400, "is not skipped"),
        ("POST", "/judge/judgements", {"comment": "x" * 2_001}, 400, "comment"),
        ("POST", "/judge/judgements", {"query": "9"}, 404, "query: no '9'"),
        ("GET", "/judge/judgements", None, 405, "expected POST"),
    ],
)
def test_wrong_requests_are_named(
    judged: Any, method: str, path: str, body: Any, status: int, message: str
) -> None:
    ask, document, log = judged
    before = log.read_bytes()
    body = body and {"assessor": "ann", "query": "1", "document": document, "grade": None, **body}
    body = body and {name: value for name, value in body.items() if value is not ...}
    response = ask(method, path, body)
    assert response.status_code == status, response.text
    assert message in response.json()["error"]["message"]
    assert log.read_bytes() == before


@pytest.fixture(scope="module")
def judged(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A service with one judgement, the document and the log."""
    pytest.importorskip("starlette", reason=EXTRA)
    pytest.importorskip("prometheus_client", reason=EXTRA)
    from sluice.retrieval.serving import Service

    log = tmp_path_factory.mktemp("log") / "log.jsonl"
    service = Service.open(
        world / "my", ServeSettings(judge=str(world / "queries.txt"), judgements=log)
    )
    ask = asker(service)
    document = task(ask)["documents"][0]["id"]
    say(ask, "1", document, 1)
    yield ask, document, log
    service.close()


def test_a_query_is_pooled_by_one_pipeline_after_the_other(serve: Any, tmp_path: Path) -> None:
    """All at once, many slow pipelines were an overload to a service that nobody else asked."""
    service = serve(tmp_path / "log.jsonl")
    search, asked, under_way = service.search, [], []

    async def slow(request: Any) -> Any:
        assert not under_way
        asked.append(request.pipeline)
        under_way.append(request)
        await asyncio.sleep(0.01)
        under_way.clear()
        return await search(request)

    service.search = slow
    assert task(asker(service))["documents"]
    assert asked == list(service.content.stages)


def test_a_key_names_its_assessor(serve: Any, tmp_path: Path) -> None:
    file, log = tmp_path / "keys.json", tmp_path / "log.jsonl"
    keys = {name: add_key(file, name, [scope]) for name, scope in
            (("ann", "judge"), ("page", "search"), ("importer", "write"))}  # fmt: skip
    service = serve(log, keys=file)
    ask, other, third = (asker(service, authorization=f"Bearer {key}") for key in keys.values())
    nobody = asker(service)
    for path in ("/judge/queries", "/judge/task", "/judge/agreement", "/judge/qrels"):
        assert nobody("GET", path).status_code == 401
        assert other("GET", path).status_code == third("GET", path).status_code == 403
    assert nobody("GET", "/judge").status_code == nobody("GET", "/judge.js").status_code == 200
    assert ask("POST", "/search", {"query": "gold"}).status_code == 403
    listed = ask("GET", "/judge/queries").json()
    assert (listed["assessor"], listed["named"]) == ("ann", True)
    document = task(ask, "")["documents"][0]["id"]
    refused = ask("GET", "/judge/task?assessor=bob")
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "assessor")
    say(ask, "1", document, 2, name="")
    assert read_judgements(log).judged("1", "ann")[document].grade == 2


def test_what_cannot_be_judged_is_said_before_serving(
    world: Path, serve: Any, built: Path, library: Any, sluice: Call, tmp_path: Path
) -> None:
    from sluice.retrieval.serving import Service
    from sluice.retrieval.serving.judging.judging import judgements_file

    log = tmp_path / "log.jsonl"
    with pytest.raises(ConfigError, match=r"nowhere.txt: no such file; as a split"):
        serve(log, judge="nowhere.txt")
    (tmp_path / "blank.tsv").write_text("1\tgold\n2\t \n")
    with pytest.raises(ConfigError, match=r"blank.tsv:2: query '2' is blank; give it a text"):
        serve(log, judge=str(tmp_path / "blank.tsv"))
    with pytest.raises(ConfigError, match="judge_depth: 2,000, and the largest k is 1,000"):
        ServeSettings(judge="test", judge_depth=2_000)
    with pytest.raises(ConfigError, match="set judge too"):
        ServeSettings(judgements=log)
    code, _, err = sluice("serve", world / "my", "--judgements", log)
    assert code == 2
    assert "--judgements: is for --judge QUERIES" in err
    assert not log.exists()
    # A split of the dataset.
    service = Service.open(built, ServeSettings(judge="dev", judgements=log, pipelines=("bm25",)))
    try:
        assert service.judging is not None
        assert service.judging.queries == library.dataset("dev").queries
        assert asker(service)("GET", "/info").json()["judging"] is True
    finally:
        service.close()
    assert judgements_file("dev", built) == built.parent / "world.dev.judgements.jsonl"
    queries = world / "queries.txt"
    assert judgements_file(str(queries), built) == world / "queries.txt.judgements.jsonl"


def test_a_query_that_no_search_takes_is_said_before_serving(
    world: Path, serve: Any, built: Path, sluice: Call, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from sluice.retrieval.serving import Service

    log, fits, long = tmp_path / "log.jsonl", "gold" * 5_000, "gold" * 5_000 + "!"
    (tmp_path / "fits.txt").write_text(f"river\n\n{fits}\n")
    ask = asker(serve(log, judge=str(tmp_path / "fits.txt")))
    assert ask("GET", "/judge/task?assessor=ann&query=2").status_code == 200
    log.unlink()
    lines = [json.dumps({"_id": name, "text": text}) for name, text in (("a", "gold"), ("b", long))]
    (tmp_path / "long.jsonl").write_text("\n".join(lines))
    (tmp_path / "long.txt").write_text(f"river\n\n{long}\n")
    top = "<top>\n<num> Number: 7\n<title> gold\n</top>\n"
    (tmp_path / "long.topics").write_text(top + top.replace("7", "8").replace("gold", long))
    for name, place, query in (("long.jsonl", ":2", "b"), ("long.txt", ":3", "2"),
                               ("long.topics", ": topic 2", "8")):  # fmt: skip
        code, _, err = sluice("serve", world / "my", "--judge", tmp_path / name, "--port", "0")
        assert code == 2
        assert f"--judge {tmp_path / name}{place}: query '{query}' has 20,001 characters" in err
        assert "a search takes up to 20,000: shorten it, or leave it out" in err
    monkeypatch.setattr(opening, "MOST_QUERY", 3)
    with pytest.raises(ConfigError, match=r"^--judge dev: query '\w+' has \d+ characters"):
        Service.open(built, ServeSettings(judge="dev", judgements=log, pipelines=("bm25",)))
    assert not log.exists()


def test_undo_stays_with_the_queries_that_are_judged(serve: Any, tmp_path: Path) -> None:
    """Two files of queries over one log: taking back in one leaves what was said in the other."""
    log, others = tmp_path / "log.jsonl", tmp_path / "others.tsv"
    others.write_text("x\tgold\ny\tstone\n")
    here, there = asker(serve(log)), asker(serve(log, judge=str(others)))
    undo = ("POST", "/judge/undo", {"assessor": "ann"})
    first, second, *_ = (each["id"] for each in task(here)["documents"])
    other, *_ = (each["id"] for each in task(there)["documents"])
    say(here, "1", first, 3)
    say(here, "1", second, 1)
    say(there, "x", other, 2)
    answer = here(*undo).json()
    assert (answer["document"], answer["grade"], answer["query"]["id"]) == (second, None, "1")
    state = read_judgements(log)
    assert state.grades_of("ann") == {"1": {first: 3}, "x": {other: 2}}
    assert here(*undo).json()["document"] == first
    refused = here(*undo)
    assert (refused.status_code, refused.json()["error"]["type"]) == (409, "nothing_to_undo")
    answer = there(*undo).json()
    assert (answer["document"], answer["query"]["id"]) == (other, "x")
    assert there(*undo).status_code == 409
    assert read_judgements(log).grades_of("ann") == {}


def test_without_judging_its_end_points_say_so(ask: Ask) -> None:
    response = ask("GET", "/judge/queries")
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_judging")
    assert ask("GET", "/info").json()["judging"] is False
    assert "text/html" in ask("GET", "/judge").headers["content-type"]
