"""Generative rerankers over HTTP, against a server of our own on the loopback device."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fake_language_models import Numbered
from loopback import Server

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.rerankers.language_model import Template
from sluice.retrieval import Rerank, Run
from sluice.retrieval.pipelines.table import SCORERS
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.generative.http_language_model import (
    HttpLanguageModel,
    first_token_shares,
    named_choice,
)

KEY = "sk-very-secret"
PLAIN = Template("Q: {query} D: {document} A:", ["query", "document"])


def said(text: str | None, top: dict[str, float] | None = None) -> dict[str, Any]:
    """What an endpoint returns for a text, and the first token's alternatives."""
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}}
    if top is not None:
        listed = [{"token": token, "logprob": math.log(p)} for token, p in top.items()]
        choice["logprobs"] = {"content": [{**listed[0], "top_logprobs": listed}]}
    return {"id": "x", "object": "chat.completion", "choices": [choice]}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
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


def scorer(server: Server, **options: Any) -> Any:
    spec = {"type": "http", "url": server.url, "model": "fake", "backoff_s": 0.01, "timeout_s": 5.0}
    return build({**spec, **options}, SCORERS, where="rerankers.llm")


def test_log_probabilities_are_used_and_the_request_is_what_endpoints_expect(serve: Any) -> None:
    server = serve(lambda body: said("Yes", {"Yes": 0.5, " yes": 0.1, "no": 0.2, "?": 0.1}))
    llm = scorer(server, api_key_env="TEST_KEY", body={"seed": 7, "max_tokens": None})
    assert llm.score([("what is gold", "a river")]).tolist() == pytest.approx([0.75])
    (body,) = server.requests
    assert body["model"] == "fake"
    assert body["temperature"] == 0
    assert body["logprobs"] is True
    assert body["top_logprobs"] == 20
    assert body["seed"] == 7
    assert "max_tokens" not in body
    (message,) = body["messages"]
    assert message["role"] == "user"
    assert "what is gold" in message["content"]
    assert "a river" in message["content"]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert server.paths == ["/v1/chat/completions"]


@pytest.mark.parametrize(
    "text", ["4", " 4.", "Grade: 4 of the scale", "<think>1?</think> 4", "４: 4"]
)
def test_without_log_probabilities_the_text_is_graded(serve: Any, text: str) -> None:
    server = serve(lambda body: said(text))
    llm = scorer(server, style="graded", logprobs=False)
    assert llm.score([("q", "d")]).tolist() == [4.0]
    assert "logprobs" not in server.requests[0]


@pytest.mark.parametrize("reply", ["", None, "perhaps", "42", "gr\u00fc\u00df dich \u4f60\u597d"])
def test_an_answer_of_no_use_is_the_middle_with_the_count_told(
    serve: Any, reply: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        return said("5" if "good" in body["messages"][0]["content"] else reply)

    with caplog.at_level(logging.WARNING, "sluice"):
        found = scorer(serve(answer), style="graded").score([("q", "bad"), ("q", "good")])
    assert found.tolist() == pytest.approx([3.0, 5.0])
    assert "1 of 2 prompts" in caplog.text


def test_unicode_goes_there_and_back(serve: Any) -> None:
    server = serve(lambda body: said("ja" if "水🌊" in body["messages"][0]["content"] else "nein"))
    llm = scorer(server, answers=["ja", "nein"])
    assert llm.score([("was", "水🌊"), ("was", "Stein"), ("\ud800", "水🌊")]).tolist() == [1, 0, 1]


def test_too_many_requests_then_an_answer(serve: Any) -> None:
    replies = iter(
        [(429, {"error": "slow down"}, {"Retry-After": "0"}), (503, b"", {}), said("yes")]
    )
    server = serve(lambda body: next(replies))
    assert scorer(server).score([("q", "d")]).tolist() == [1.0]
    assert len(server.requests) == 3


def test_retries_wait_longer_each_time(serve: Any) -> None:
    waits: list[float | None] = []

    class Noted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return False

    server = serve(lambda body: (500, {}, {}))
    model = HttpLanguageModel(server.url, "m", backoff_s=2.0, retries=6)
    with pytest.raises(ModelError):
        model.endpoint.post({}, stop=Noted())
    assert waits == [2, 4, 8, 16, 32, 60]


def test_an_endpoint_that_always_fails_is_an_error_without_the_key(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(lambda body: (500, {"error": f"no good: {KEY}"}, {}))
    llm = scorer(server, retries=2, api_key_env="TEST_KEY")
    with caplog.at_level(logging.DEBUG), pytest.raises(ModelError, match="status 500") as failed:
        llm.score([("q", "d")])
    assert len(server.requests) == 3
    assert KEY not in str(failed.value) + caplog.text
    assert "***" in str(failed.value)
    assert KEY not in repr(vars(llm.model.endpoint))
    assert KEY not in llm.fingerprint


@pytest.mark.parametrize(
    "body", [b"{not json", b"", b"\xff\xfe", b"[" * 100_000, b"null", b"[]", b"{}",
             b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": {"0": 1}}']
)  # fmt: skip
def test_what_is_no_answer_is_asked_again_then_an_error(serve: Any, body: bytes) -> None:
    server = serve(lambda _: (200, body, {}))
    with pytest.raises(ModelError, match="2 tries"):
        scorer(server, retries=1).score([("q", "d")])
    assert len(server.requests) == 2


def test_a_body_that_breaks_off_once(serve: Any) -> None:
    replies = iter([(200, b'{"ch', {"Content-Length": "4000"}), said("yes")])
    server = serve(lambda body: next(replies))
    assert scorer(server, timeout_s=0.5).score([("q", "d")]).tolist() == [1.0]


def test_a_slow_answer_is_given_up(serve: Any) -> None:
    slow = threading.Event()

    def reply(body: dict[str, Any]) -> Any:
        if not slow.is_set():
            slow.set()
            time.sleep(0.6)
        return said("yes")

    server = serve(reply)
    assert scorer(server, timeout_s=0.2).score([("q", "d")]).tolist() == [1.0]
    assert len(server.requests) == 2
    slow.clear()
    with pytest.raises(ModelError, match=r"timed out.*timeout_s"):
        scorer(server, timeout_s=0.2, retries=0).score([("q", "d")])


@pytest.mark.parametrize("status", [400, 401, 404, 302])
def test_what_cannot_be_mended_is_not_tried_again(serve: Any, status: int) -> None:
    headers = {"Location": "http://127.0.0.1:9/steal"} if status == 302 else {}
    server = serve(lambda body: (status, {"error": "logprobs are not supported"}, headers))
    with pytest.raises(ModelError, match=f"status {status}.*set logprobs: false"):
        scorer(server).score([("q", "d")])
    assert len(server.requests) == 1


def test_nobody_there() -> None:
    llm = HttpLanguageModel("http://127.0.0.1:9/v1", "m", retries=1, backoff_s=0.0)
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:9/v1/chat/completions.*2 tries"):
        llm.completions([PLAIN.fill({"query": "q", "document": "d"})], 5)


def test_a_few_requests_at_a_time_and_answers_in_order(serve: Any) -> None:
    def reply(body: dict[str, Any]) -> Any:
        number = int(body["messages"][0]["content"].split("D: ")[1].split()[0])
        time.sleep(0.002 * (20 - number))
        return said(f"answer {number}")

    server = serve(reply)
    model = HttpLanguageModel(server.url, "m", concurrency=3)
    prompts = [PLAIN.fill({"query": "q", "document": str(number)}) for number in range(20)]
    assert model.completions(prompts, 5) == [f"answer {number}" for number in range(20)]
    assert 2 <= server.most <= 3
    assert model.completions([], 5) == []


def test_the_first_error_ends_the_others(serve: Any) -> None:
    server = serve(lambda body: (401, {}, {}))
    model = HttpLanguageModel(server.url, "m", concurrency=2)
    with pytest.raises(ModelError, match="check api_key_env or api_key_file"):
        model.completions([PLAIN.fill({"query": "q", "document": "d"})] * 200, 5)
    assert len(server.requests) < 50


def test_pairwise_and_listwise_over_http(serve: Any) -> None:
    def reply(body: dict[str, Any]) -> Any:
        text = body["messages"][0]["content"]
        worths = [int(part.split(" is what")[0].split()[-1]) for part in text.split("worth")[:-1]]
        if "[1]" not in text:
            return said("A" if worths[0] > worths[1] else "B")
        ranked = sorted(range(len(worths)), key=lambda place: -worths[place])
        return said(" > ".join(f"[{place + 1}]" for place in ranked))

    server = serve(reply)
    worths = [3, 1, 4, 0, 2]
    run = Run({"q": Ranking([*"01234"], [5.0, 4.0, 3.0, 2.0, 1.0])})
    for options in ({"style": "pairwise"}, {"style": "listwise", "window": 0},
                    {"style": "listwise", "window": 3, "step": 1, "passes": 2}):  # fmt: skip
        stage = Rerank(scorer(server, **options), documents=Numbered(worths))
        assert list(stage.run({"q": "what"}, run)["q"].doc_ids) == ["2", "0", "4", "1", "3"]


def test_long_texts_are_cut_to_what_the_endpoint_reads(serve: Any) -> None:
    server = serve(lambda body: said("yes"))
    llm = scorer(server, context_length=200)
    llm.score([("what", "水" * 5000), ("what " * 999, "x"), ("what", "short")])
    sent = [body["messages"][0]["content"] for body in server.requests]
    assert max(len(text.encode()) for text in sent) <= 200 * 3
    assert all("Answer with one word" in text for text in sent)
    assert any("short" in text for text in sent)
    with pytest.raises(ConfigError, match="context_length: 200 with an answer of 610"):
        llm.model.completions([PLAIN.fill({"query": "", "document": ""})], 610)
    long = scorer(server, prompt="{query} {document}" + "word " * 400, context_length=200)
    with pytest.raises(ConfigError, match="without any query or document"):
        long.score([("q", "d")])


def test_shares_of_the_first_word() -> None:
    def shares(top: dict[str, float], *names: str) -> list[float] | None:
        found = first_token_shares(said("", top)["choices"][0], names)
        return None if found is None else np.exp(found).round(6).tolist()

    assert shares({"A": 0.6, " a": 0.1, "B": 0.2}, "A", "B") == [0.7, 0.2]
    assert shares({"A": 0.99}, "A", "B") == [0.99, 0.01]
    assert shares({"A": 0.5, "x": 0.02}, "A", "B") == [0.5, 0.02]
    assert shares({"A": 1.0}, "A", "B") == [1.0, 0.0]
    assert shares({"x": 1.0}, "A", "B") is None
    unlikely = {"token": "B", "logprob": -9999.0}
    blank = {"token": "\n", "logprob": 0.0, "top_logprobs": []}
    odd = [None, {"token": 5}, {"token": "A", "logprob": "x"}, {"token": "A", "logprob": -0.1}]
    content = [blank, {"token": "A", "logprob": -0.1, "top_logprobs": [*odd, unlikely]}]
    found = first_token_shares({"logprobs": {"content": content}}, ["A", "B"])
    assert found is not None
    assert found[0] == pytest.approx(-0.1)
    assert -25 < found[1] < -20
    for nothing in (None, {}, {"content": None}, {"content": [5]}, {"content": [blank]}):
        assert first_token_shares({"logprobs": nothing}, ["A", "B"]) is None


@pytest.mark.parametrize(
    ("text", "choices", "expected"),
    [
        ("Yes.", ["yes", "no"], 0),
        ("No, not yes", ["yes", "no"], 1),
        ("nothing", ["yes", "no"], None),
        ("a document like B is better", ["A", "B"], 1),
        ("b", ["A", "B"], 1),
        ("10", ["1", "10"], 1),
        ("**5**/5", ["1", "5"], 1),
        ("not relevant", ["relevant", "not relevant"], 1),
        ("", ["A", "B"], None),
    ],
)
def test_which_choice_a_text_names(text: str, choices: list[str], expected: int | None) -> None:
    assert named_choice(text, choices) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"url": "localhost:8000/v1"}, "url"),
        ({"url": "http://me:pass@host/v1"}, "contains a user, a password"),
        ({"url": "http://host/v1?key=1"}, "or a query"),
        ({"model": " "}, "model: empty"),
        ({"api_key_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE is not set"),
        ({"timeout_s": 0.0}, "timeout_s 0"),
        ({"retries": -1}, "retries -1"),
        ({"concurrency": 0}, "concurrency"),
        ({"context_length": 5}, "context_length"),
        ({"style": "grade"}, "did you mean 'graded'"),
        ({"style": "yes_no", "grades": 3}, "grades: style yes_no takes prompt, answers; .*graded"),
        ({"style": "pairwise", "window": 3}, "window is for listwise"),
        ({"temprature": 0}, "takes url"),
    ],
)
def test_bad_settings_are_named(spec: dict[str, Any], message: str) -> None:
    given = {"type": "http", "url": "http://127.0.0.1:9/v1", "model": "m", **spec}
    with pytest.raises(ConfigError, match=message) as failed:
        build(given, SCORERS, where="rerankers.llm")
    assert "pass@" not in str(failed.value)
    assert str(failed.value).startswith("rerankers.llm")


@pytest.mark.parametrize(
    "logprobs",
    [
        "none",
        [1],
        {"content": 3},
        {"content": [3]},
        {"content": [{"token": "yes", "logprob": 10**400}]},
        {"content": [{"token": "yes", "top_logprobs": [{"token": "yes", "logprob": 10**400}]}]},
    ],
)
def test_log_probabilities_of_another_form_are_none(logprobs: Any) -> None:
    assert first_token_shares({"logprobs": logprobs}, ["yes", "no"]) is None


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://[::1/v1", {}),
        ("http://host:port/v1", {}),
        ("http://host:99999/v1", {}),
        ("http://host/v1", {"timeout_s": math.inf}),
        ("http://host/v1", {"timeout_s": 1e12}),
        ("http://host/v1", {"retries": 10_000}),
    ],
)
def test_addresses_and_times_that_cannot_be_are_refused(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"url|timeout_s"):
        HttpLanguageModel(url, "m", **options)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ('{"choice": "yes", "probability": 0.8}', 0.8),
        ('```json\n{"choice": "No", "probability": 0.9}\n```', 0.1),
        ('<think>{"choice": "no"}</think> {"choice": "yes", "probability": 1}', 1.0),
        ("Yes.", 1.0),  # an endpoint that knows no schema: the word alone
        ('{"choice": "maybe", "probability": 0.8}', 0.5),
        ('{"choice": "?", "probability": true}', 0.5),
        ('{"choice": "?", "probability": 80}', 0.5),
        ("[" * 100_000, 0.5),
    ],
)
def test_a_decision_with_its_probability(serve: Any, text: str, share: float) -> None:
    server = serve(lambda body: said(text))
    llm = scorer(server, structured=True)
    assert llm.score([("q", "d")]).tolist() == pytest.approx([share], abs=1e-6)
    (body,) = server.requests
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["choice"]["enum"] == ["yes", "no"]
    assert "logprobs" not in body
    assert "Reply in JSON" in body["messages"][0]["content"]
    assert llm.model.fingerprint != scorer(server).model.fingerprint
