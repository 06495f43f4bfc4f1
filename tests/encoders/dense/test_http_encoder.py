"""Encoders and rerankers behind HTTP, against servers of our own on the loopback device."""

import copy
import json
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import loopback
import numpy as np
import pytest
import yaml
from command_line import Call, joined
from loopback import Server, overlap, vector
from small_world import write_beir

from sluice.encoders.dense.remote.encoder import HttpEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.probes import verify_probes
from sluice.encoders.model_files.registry import kind_of, open_encoder
from sluice.encoders.rerankers.external import HttpReranker
from sluice.encoders.vectors.pool import EncodingPool
from sluice.retrieval import Document, Experiment, Retriever
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.jobs import run as run_experiment
from sluice.retrieval.serving.content.content import open_content
from sluice.retrieval.testing import check_encoder

KEY = "sk-very-secret"
Start = Callable[[Callable[[dict[str, Any]], Any]], Server]
ANSWERS: dict[str, Any] = {
    "openai": loopback.openai, "cohere": loopback.cohere, "tei": loopback.tei,
}  # fmt: skip
PATHS = {"openai": "/v1/embeddings", "cohere": "/v1/embed", "tei": "/v1/embed"}
TEXTS = ["gold in the river", "", "a sluice for gold", "deep water", "  ", "gold in the river"]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEST_KEY", KEY)
    servers: list[Server] = []

    def start(reply: Callable[[dict[str, Any]], Any]) -> Server:
        servers.append(Server(reply))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def encoder(server: Server, api: Any = "openai", **options: Any) -> HttpEncoder:
    model = "" if api == "tei" else "small"
    return HttpEncoder(server.url, model, api=api, **{"backoff_s": 0.01, "timeout_s": 5, **options})


def expected(texts: list[str], prompt: str = "", dim: int = loopback.DIM) -> np.ndarray:
    rows = np.zeros((len(texts), dim))
    for row, text in zip(rows, texts, strict=True):
        if text.strip():
            values = np.array(vector(prompt + text, dim))
            row[:] = values / np.sqrt((values**2).sum())
    return rows


@pytest.mark.parametrize("api", ANSWERS)
def test_vectors_by_each_api(api: str, serve: Start) -> None:
    server = serve(ANSWERS[api])
    made = encoder(
        server, api, batch_size=2, query_prompt="q: ", price=20.0, api_key_env="TEST_KEY"
    )
    np.testing.assert_allclose(made.encode_documents(TEXTS), expected(TEXTS), atol=1e-6)
    np.testing.assert_allclose(
        made.encode_queries(TEXTS[:1]), expected(TEXTS[:1], "q: "), atol=1e-6
    )
    assert made.encode_documents([]).shape == (0, loopback.DIM)
    assert set(server.paths) == {PATHS[api]}
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in server.headers)
    assert (made.usage.requests, made.usage.texts) == (3, 5)
    words = sum(len(text.split()) for text in TEXTS) + 5
    assert made.usage.tokens == (0 if api == "tei" else words)
    assert made.usage.cost == pytest.approx(made.usage.tokens * 20 / 1e6)
    if api == "cohere":
        sides = [body["input_type"] for body in server.requests]
        assert sorted(sides) == ["search_document"] * 2 + ["search_query"]
    if api != "tei":
        assert encoder(server, api, dim=5).encode_queries(["gold"]).shape == (1, 5)
        assert {body["model"] for body in server.requests} == {"small"}
    raw = encoder(server, api, normalize=False).encode_queries(["deep water"])
    np.testing.assert_allclose(raw, [vector("deep water")], rtol=1e-6)


class Consenting(HttpEncoder):
    """Opens its folders as somebody who allows the server."""

    @classmethod
    def from_pretrained(cls, model: Any, **_: Any) -> HttpEncoder:
        return HttpEncoder.from_pretrained(model, allow=["http"])


def test_it_keeps_the_rules_of_encoders(serve: Start) -> None:
    server = serve(loopback.openai)
    changes: list[dict[str, Any]] = [
        {"dim": 5}, {"normalize": False}, {"query_prompt": "q: "}, {"max_characters": 3},
        {"model": "large"},
    ]  # fmt: skip

    def make(**options: Any) -> HttpEncoder:
        return Consenting(**{"url": server.url, "model": "small", "batch_size": 3, **options})

    others = [make(**change) for change in changes]
    check_encoder(make(), same=[make(concurrency=1, price=3.0)], others=others, tolerance=1e-5)


@pytest.mark.parametrize("api", ["cohere", "tei"])
def test_scores_by_each_api(api: Any, serve: Start) -> None:
    server = serve(ANSWERS[api])
    model = "" if api == "tei" else "rerank-3"
    reranker = HttpReranker(
        server.url, model, api=api, batch_size=2, api_key_env="TEST_KEY", price=2.0
    )
    pairs = [
        ("gold river", "gold in the river"), ("deep sluice", "deep water"), ("gold river", " "),
        ("gold river", "a sluice for gold"), ("", "gold"), ("gold river", "stone"),
    ]  # fmt: skip
    scores = reranker.score(pairs)
    sent = [0, 1, 3, 5]
    np.testing.assert_allclose(scores[sent], [overlap(*pairs[place]) for place in sent])
    assert scores[2] == scores[4] == scores[sent].min()
    assert server.paths == ["/v1/rerank"] * 3
    assert reranker.usage.cost == pytest.approx(0.006 if api == "cohere" else 0)
    assert reranker.score([]).shape == (0,)
    assert list(reranker.score([("x", "")])) == [0.0]
    again = pickle.loads(pickle.dumps(reranker))
    assert again.fingerprint == reranker.fingerprint
    assert again.usage.requests == 0


def bad(change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda body: change(loopback.openai(body))


MALFORMED: dict[str, tuple[Any, str]] = {
    "too few": (bad(lambda a: {"data": a["data"][:-1]}), "1 entries for 2 texts"),
    "twice the same": (bad(lambda a: {"data": [a["data"][0]] * 2}), "2 entries for 2 texts"),
    "another api": (lambda body: [[1.0], [2.0]], "without 'data'; is it another api"),
    "no numbers": (
        bad(lambda a: {"data": [{**each, "embedding": ["x", 1.0]} for each in a["data"]]}),
        "not lists of as many finite numbers",
    ),
    "not finite": (
        lambda body: b'{"data": [{"index": 0, "embedding": [1e999]},'
                     b' {"index": 1, "embedding": [1.0]}]}',
        "not lists of as many finite numbers",
    ),
    "ragged": (
        bad(lambda a: {"data": [{**each, "embedding": [1.0] * (1 + i)}
                                for i, each in enumerate(a["data"])]}),
        "not lists of as many finite numbers",
    ),
    "no JSON": (lambda body: b"<html>", "JSONDecodeError"),
    "refused": (lambda body: (401, {"error": f"bad key {KEY}"}, {}), r"status 401.*\*\*\*.*check"),
    "redirected": (lambda body: (302, b"", {"Location": "http://127.0.0.1:9/"}), "status 302"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_answer_is_none(case: str, serve: Start) -> None:
    reply, message = MALFORMED[case]
    made = encoder(serve(reply), retries=1, api_key_env="TEST_KEY")
    with pytest.raises(ModelError, match=message) as error:
        made.encode_documents(["gold", "river"])
    assert KEY not in str(error.value)
    assert made.usage.requests == 0


@pytest.mark.parametrize(
    "answer",
    [
        {"results": [{"index": 0, "relevance_score": 1.0}]},
        {"results": [{"index": i, "relevance_score": None} for i in range(2)]},
        {"results": [{"index": i, "relevance_score": 1} for i in (0, 2)]}, {"results": 5}, [],
        {"results": [{"index": i, "relevance_score": True} for i in range(2)]},
        {"results": [{"index": i, "relevance_score": 1e39} for i in range(2)]},  # not of float32
    ],
)  # fmt: skip
def test_malformed_scores_are_none(answer: Any, serve: Start) -> None:
    server = serve(lambda body: answer)
    with pytest.raises(ModelError, match=r"entries for 2 texts|finite number|'results'"):
        HttpReranker(server.url, "m", retries=0).score([("q", "a"), ("q", "b")])


def test_failures_are_tried_again_and_order_stays(serve: Start) -> None:
    seen = dict[str, int]()

    def flaky(body: dict[str, Any]) -> Any:
        first = body["input"][0]
        seen[first] = seen.get(first, 0) + 1
        if seen[first] == 1:
            return 429, {"error": "slow down"}, {"Retry-After": "0"}
        time.sleep(0.05 if first == "text 0" else 0)
        return loopback.openai(body)

    server = serve(flaky)
    texts = [f"text {number}" for number in range(12)]
    made = encoder(server, batch_size=2, concurrency=3)
    np.testing.assert_allclose(made.encode_documents(texts), expected(texts), atol=1e-6)
    assert set(seen.values()) == {2}
    assert 1 < server.most <= 3


def test_requests_keep_their_distance(serve: Start) -> None:
    server = serve(loopback.openai)
    made = encoder(server, batch_size=1, concurrency=4, requests_per_minute=1200)
    begun = time.monotonic()
    made.encode_documents([f"text {number}" for number in range(5)])
    assert time.monotonic() - begun >= 4 * 60 / 1200


def test_long_texts_are_cut(serve: Start) -> None:
    server = serve(loopback.openai)
    encoder(server, max_characters=10, query_prompt="query: ").encode_queries(["gold river"])
    assert server.requests[0]["input"] == ["query: gol"]
    HttpReranker(serve(loopback.tei).url, api="tei", max_characters=4).score([("golden", "gold x")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api": "opnai"}, "did you mean 'openai'"), ({"model": " "}, "model: empty"),
        ({"api": "tei"}, "serves one model"), ({"api": "tei", "model": "", "dim": 3}, "own width"),
        ({"url": "ftp://x"}, "expected one like"), ({"batch_size": 0}, "batch_size"),
        ({"concurrency": 65}, "concurrency"), ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"api_key_env": "NOT_SET"}, "NOT_SET is not set to a key"), ({"price": -1}, "price"),
        ({"api_key_file": "none/at/all"}, "No such file"), ({"max_characters": 0}, "max_char"),
        ({"api_key_file": "x", "api_key_env": "TEST_KEY"}, "give one of them"),
    ],
)  # fmt: skip
def test_settings_are_checked(options: dict[str, Any], message: str, serve: Start) -> None:
    with pytest.raises(ConfigError, match=message):
        HttpEncoder(**{"url": "http://127.0.0.1:9/v1", "model": "m", **options})
    if "dim" not in options and options.get("api") != "opnai":
        with pytest.raises(ConfigError, match=message):
            HttpReranker(**{"url": "http://127.0.0.1:9/v1", "model": "m", **options})


def test_what_has_no_reranker() -> None:
    with pytest.raises(ConfigError, match="it has no reranker"):
        HttpReranker("http://127.0.0.1:9/v1", "m", api="openai")


def test_a_folder_has_no_key_and_asks_nobody_without_consent(
    serve: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(loopback.openai)
    (tmp_path / "key").write_text("sk-of-a-file\n")
    made = encoder(
        server, api_key_file=str(tmp_path / "key"), dim=8, batch_size=7, requests_per_minute=6000
    )
    made.save_pretrained(tmp_path / "m")
    stored = b"".join(path.read_bytes() for path in (tmp_path / "m").iterdir())
    assert b"sk-of-a-file" not in stored
    assert str(tmp_path / "key").encode() not in stored
    assert server.headers[0]["Authorization"] == "Bearer sk-of-a-file"
    assert kind_of(tmp_path / "m") == "http"
    asked = len(server.requests)
    for allow in ((), ("http://127.0.0.1:1/v1",), (f"{server.url}x",)):
        with pytest.raises(ConfigError, match="is a server, and opening a folder never reaches"):
            open_encoder(tmp_path / "m", allow=allow)
    opened = open_encoder(tmp_path / "m", allow=[f"{server.url}=TEST_KEY"])
    assert len(server.requests) == asked  # opening asks nothing
    assert opened.fingerprint == made.fingerprint
    assert opened.batch_size == 7
    assert opened.endpoint._pause == pytest.approx(0.01)
    verified = verify_probes(tmp_path / "m", opened)
    assert verified is not None
    assert not verified.differences
    assert server.headers[-1]["Authorization"] == f"Bearer {KEY}"
    file = [f"{server.url}=@{tmp_path / 'key'}"]
    open_encoder(tmp_path / "m", allow=file).encode_queries(["x"])
    assert server.headers[-1]["Authorization"] == "Bearer sk-of-a-file"
    open_encoder(tmp_path / "m", allow=["http"]).encode_queries(["x"])
    assert "Authorization" not in server.headers[-1]
    others = [encoder(server, dim=4), encoder(server, dim=8, query_prompt="x")]
    assert made.fingerprint not in {other.fingerprint for other in others}
    again = pickle.loads(pickle.dumps(copy.copy(opened)))
    assert again.fingerprint == made.fingerprint
    with pytest.raises(ConfigError, match="workers: an encoder behind HTTP"), EncodingPool(made, 2):
        pass
    facts = json.loads((tmp_path / "m" / "sluice.json").read_text())
    for changed in (
        {"url": 5}, {"api": "x"}, {"price": "much"}, {"batch_size": "x"}, {"dim": -1},
        {"query_prompt": 5}, {"normalize": "no"}, {"retries": 1.5},
    ):  # fmt: skip
        (tmp_path / "m" / "sluice.json").write_text(json.dumps({**facts, **changed}))
        with pytest.raises((ModelError, ConfigError)):
            open_encoder(tmp_path / "m", allow=["http"])


def test_a_server_that_serves_another_model_is_found(
    serve: Start, tmp_path: Path, shell: Call
) -> None:
    other = False

    def reply(body: dict[str, Any]) -> Any:
        return loopback.openai({**body, "input": ["x" + t if other else t for t in body["input"]]})

    server = serve(reply)
    Retriever.build(encoder(server), [Document("a", "", "gold")], path=tmp_path / "r")
    opened = Retriever.open(tmp_path / "r", allow=[server.url])
    assert [hit.doc_id for hit in opened.search("gold")] == ["a"]
    other = True
    folder = tmp_path / "r" / "encoder"
    verified = verify_probes(folder, open_encoder(folder, allow=["http"]))
    assert verified is not None
    assert "of 20 probe vectors are not what they were" in verified.differences[-1]
    assert shell("verify", folder)[0] == 2
    code, _, err = shell("verify", folder, "--allow", server.url)
    assert code == 2
    assert "of 20 probe vectors are not what they were" in joined(err)
    served = open_content(folder, allow=[server.url]).encoders
    assert [each.kind for each in served.values()] == ["http"]


@pytest.fixture
def experiment(serve: Start, tmp_path: Path) -> tuple[Server, dict[str, Any]]:
    server = serve(lambda body: ANSWERS["openai" if "input" in body else "cohere"](body))
    common = {"url": server.url, "model": "m", "api_key_env": "TEST_KEY"}
    return server, {
        "dataset": str(write_beir(tmp_path / "data", 20)), "output": str(tmp_path / "out"),
        "retrievers": {"api": {
            "encoder": {"type": "http", **common, "price": 0.1},
            "encoding": {"cache": str(tmp_path / "vectors")},
        }},
        "rerankers": {"cross": {"type": "http_rerank", **common}},
        "pipelines": {"all": "api % 5 >> cross(depth=3)"},
        "evaluate": {"measures": ["nDCG@10"], "latency_queries": 0},
    }  # fmt: skip


def test_an_experiment_by_yaml_and_its_folder(
    experiment: tuple[Server, dict[str, Any]], tmp_path: Path, shell: Call
) -> None:
    server, config = experiment
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(config))
    for words in (["config", "check"], ["index", "--dry-run"]):
        code, out, err = shell(*words, tmp_path / "own.yaml")
        assert code == 0, err
        assert "20 to encode" in out
    assert not server.requests  # nothing is paid for before the run
    run_experiment(config)
    asked = sum(len(body.get("input", ())) for body in server.requests)
    assert {path.rpartition("/")[2] for path in server.paths} == {"embeddings", "rerank"}
    config["retrievers"]["again"] = config["retrievers"]["api"]
    config["pipelines"]["again"] = "again"
    run_experiment(config)  # its documents are in the cache: queries and probes are asked
    asked_again = sum(len(body.get("input", ())) for body in server.requests) - asked
    assert 20 <= asked_again < asked
    stored = b"".join(p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert KEY.encode() not in stored
    count = len(server.requests)
    for words in (["search", tmp_path / "out", "gold"], ["verify", tmp_path / "out"]):
        code, _, err = shell(*words)
        assert code == 2
        assert "opening a folder never reaches one" in joined(err)
    assert len(server.requests) == count
    for words in (["search", tmp_path / "out", "gold", "-k", 3], ["verify", tmp_path / "out"]):
        code, out, err = shell(*words, "--allow", f"{server.url}=TEST_KEY")
        assert code == 0, err
        assert out
    (tmp_path / "key").write_text(f"{KEY}\n")
    count = len(server.requests)
    for each in (config["retrievers"]["api"]["encoder"], config["rerankers"]["cross"]):
        del each["api_key_env"]
        each["api_key_file"] = str(tmp_path / "key")
    run_experiment(config)  # where the key is changes nothing that was made
    assert len(server.requests) == count
    config["retrievers"]["api"]["encoder"] |= {"timeout_s": 7, "batch_size": 3}
    config["retrievers"]["again"] = config["retrievers"]["api"]
    run_experiment(config)  # nor does how the server is asked, which holds from now on
    assert len(server.requests) == count
    asking: Any = Experiment(checked(config, ExperimentConfig)).retriever("api").state.encoder
    assert (asking.endpoint.timeout_s, asking.batch_size, asking.usage.per_million_tokens) == (
        7, 3, 0.1,
    )  # fmt: skip
    code, _, err = shell("explain", tmp_path / "out", "gold", "--allow", server.url)
    assert code == 0, err
    retriever = tmp_path / "out" / "retrievers" / "api"
    code, _, err = shell("search", retriever, "gold", "--allow", "http://127.0.0.1:9")
    assert code == 2
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(config))
    assert shell("evaluate", tmp_path / "own.yaml")[0] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"urll": "x"}, "did you mean 'url'"), ({"api_key_env": "NOT_SET"}, "not set to a key"),
        ({"device": "cpu"}, "unknown key"), ({"api": "x"}, "api"),
    ],
)  # fmt: skip
def test_bad_yaml_is_refused(
    change: dict[str, Any],
    message: str,
    experiment: tuple[Server, dict[str, Any]],
    tmp_path: Path,
    shell: Call,
) -> None:
    server, config = experiment
    config["retrievers"]["api"]["encoder"].update(change)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(config))
    code, _, err = shell("run", tmp_path / "own.yaml")
    assert code == 2
    assert message in joined(err)
    assert not server.requests


def test_it_is_not_trained(tmp_path: Path, shell: Call) -> None:
    config = {
        "dataset": str(write_beir(tmp_path / "data", 20)), "output": str(tmp_path / "out"),
        "loss": "info_nce", "trainer": {"max_steps": 1},
        "encoder": {"type": "http", "url": "http://127.0.0.1:9/v1", "model": "m"},
    }  # fmt: skip
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(config))
    code, _, err = shell("train", tmp_path / "train.yaml")
    assert code == 2
    assert "http" in joined(err)
    assert "train" in joined(err)
