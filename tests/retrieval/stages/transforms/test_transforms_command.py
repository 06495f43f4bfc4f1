"""Query transforms from YAML by the command line, with an endpoint on the loopback device."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from command_line import Call
from loopback import Server
from small_world import write_beir


class World(NamedTuple):
    config: dict[str, Any]
    file: Path
    server: Server

    def write(self, **changes: Any) -> str:
        """Write the config with other sections, and return the file's name."""
        self.file.write_text(yaml.safe_dump({**self.config, **changes}))
        return str(self.file)

    @property
    def output(self) -> str:
        return str(self.config["output"])


def reply(body: dict[str, Any]) -> Any:
    text = body["messages"][0]["content"]
    query = text.rpartition("Query: ")[2].splitlines()[0]
    content = json.dumps({"query": query, "where": {"x": 1}}) if "JSON" in text else query[::-1]
    message = {"choices": [{"message": {"role": "assistant", "content": content}}]}
    return {**message, "usage": {"total_tokens": 11}}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    server = Server(reply)
    (tmp_path / "synonyms.txt").write_text("gold, stone\n")
    config = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {"bm25": {"encoder": "bm25"}},
        "rerankers": {
            "writer": {"type": "http", "url": server.url, "model": "fake", "retries": 0},
            "cross": {"type": "cross_encoder", "model": "nobody/nothing"},
        },
        "pipelines": {
            "plain": "bm25",
            "drafted": "query2doc(bm25 % 9, writer, cache='out/answers.sqlite')",
            "both": "synonyms(bm25, file='synonyms.txt') | hyde(bm25, writer) % 20",
            "rounds": "iter_retgen(bm25, writer, rounds=1) % 5",
            "spelt": "key_phrases(spelling(bm25, edits=1), common=0.5) % 9",
            "drawn": "hyde(bm25, writer, samples=2, cache='out/drawn.sqlite')",
        },
        "evaluate": {"latency_queries": 2, "report": False},
    }
    yield World(config, tmp_path / "x.yaml", server)
    server.close()


def test_run_search_explain_and_evaluate(sluice: Call, world: World) -> None:
    code, _, err = sluice("run", world.write())
    assert code == 0, err
    asked = len(world.server.requests)
    code, out, _ = sluice("evaluate", str(world.file))
    assert (code, len(world.server.requests)) == (0, asked)  # the saved runs are used
    assert all(name in out for name in world.config["pipelines"])
    code, out, err = sluice(
        "search", world.output, "gold", "--pipeline", "drafted", "--allow", world.server.url,
    )  # fmt: skip
    assert (code, err) == (0, ""), err
    assert "gold" in out
    code, out, err = sluice(
        "explain", world.output, "gold", "--pipeline", "drafted", "--allow", world.server.url,
        "-k", "100",
    )  # fmt: skip
    assert code == 0, err
    assert f"searched [('{'gold ' * 5}dlog', 1.0)]" in out
    assert "from the cache 1" in out
    code, out, err = sluice(
        "explain", world.output, "glod rivver", "--pipeline", "spelt", "--allow", world.server.url,
    )  # fmt: skip
    assert (code, "searched [('gold river', 1.0)]" in out) == (0, True), out + err
    code, _, err = sluice("search", world.output, "gold", "--pipeline", "rounds")
    assert code == 2
    assert world.server.url in err  # a saved folder reaches no server that is not allowed
    code, _, err = sluice("search", world.output, "  ", "--pipeline", "both", "--allow",
                        world.server.url)  # fmt: skip
    assert code == 0
    assert "empty query" in err


@pytest.mark.parametrize(
    ("pipeline", "fault"),
    [
        (
            "hyde(bm25, cross)",
            "hyde asks a language model, and cross is of type cross_encoder; exp",
        ),
        ("hyde(bm25, bm25)", "hyde asks a language model, and bm25 is no reranker"),
        ("hyde(bm25)", "hyde(...): missing a required argument"),
        ("hyde(bm25, writer, budget=-1)", "hyde: budget is -1"),
        ("hyde(bm25, writer, prompt='no place')", "prompt: has no {query}"),
        ("hyde(bm25, writer, depht=3)", "depht"),
        ("query2doc(bm25, writer, repeats=0)", "query2doc: repeats is 0"),
        ("iter_retgen(bm25, writer, rounds=1.5)", "iter_retgen.rounds: 1.5"),
        ("synonyms(bm25, file='none.txt')", "synonyms: no file 'none.txt'"),
        ("synonyms(bm25)", "synonyms: expected either file or rules"),
        ("synonyms(bm25, rules=['tv'])", "synonyms: rules:1: 'tv'"),
        ("synonyms(bm25, rules=['# tv'])", "synonyms: rules: no line"),
        ("synonyms(bm25, rules='tv, telly')", "synonyms.rules"),
        ("spelling(bm25, edits=3)", "spelling: edits is 3"),
        ("spelling(bm25, language='ja')", "spelling: language 'ja'"),
        ("spelling(cross)", "expected a retriever or a pipeline"),
        ("key_phrases(bm25, weight=0)", "key_phrases: weight 0 changes nothing"),
        ("key_phrases(bm25, words=3)", "words"),
        ("hyde(bm25, writer, temperature=0.3)", "temperature is for several samples"),
        ("hyde(bm25, writer, samples=0)", "hyde: samples is 0"),
        ("structured(bm25, cache='a.sqlite')", "structured: cache is for a language model"),
        ("hyde(cross, writer)", "expected a retriever or a pipeline"),
        ("bm25 >> writer >> hyde(writer, writer)", "expected a retriever or a pipeline"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(
    sluice: Call, world: World, pipeline: str, fault: str
) -> None:
    code, _, err = sluice("run", world.write(pipelines={"p": pipeline}))
    assert (code, fault in err) == (2, True), err
    assert not Path(world.output).exists()


def test_an_endpoint_that_is_down_stops_an_evaluation_and_not_a_search(
    sluice: Call, world: World
) -> None:
    pipelines = {"structured": "structured(bm25, writer)", "drafted": "query2doc(bm25, writer)"}
    file = world.write(pipelines={"plain": "bm25"})
    assert sluice("run", file)[0] == 0
    world.server.close()
    down = {"type": "http", "url": world.server.url, "model": "fake", "retries": 0}
    code, _, err = sluice("evaluate", world.write(pipelines=pipelines, rerankers={"writer": down}))
    assert code != 0
    assert "query2doc: nothing was written" in err
    code, out, err = sluice(
        "search", world.output, "gold", "--pipeline", "drafted", "--allow", world.server.url
    )
    assert (code, "1 failed" in err) == (0, True), err
    assert "gold" in out
