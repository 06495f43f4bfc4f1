"""Language models as judges: prompts, methods, expected grades, answers that are no answers."""

import json
import logging
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fake_language_models import FakeModel

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.rerankers.language_model import Prompt
from sluice.retrieval.stages.rerankers.score_cache import ScoreCache
from sluice.retrieval.studies.judging.generative_judge import (
    CRITERIA,
    DEFINITIONS,
    GenerativeJudge,
    named_grade,
)
from sluice.retrieval.studies.judging.grading import open_grading_judge
from sluice.training.negatives.false_negatives import JudgedPair

PAIRS = [JudgedPair("q", "what is gold", name, f"{name} text") for name in ("a", "b", "c")]


def test_the_grade_is_the_expected_one_and_the_prompt_has_the_scale() -> None:
    model = FakeModel(lambda prompt: (0.1, 0.2, 0.3, 0.4))
    judge = GenerativeJudge(model)
    assert judge.scores(PAIRS).tolist() == pytest.approx([2.0] * 3)
    assert model.asked[0].slots == ("what is gold", "a text")
    text = model.asked[0].text
    assert "Answer with one number, 0, 1, 2 or 3." in text
    places = [text.index(f"{grade} = {DEFINITIONS[grade]}") for grade in range(4)]
    assert places == sorted(places)
    assert judge.highest == 3


def test_the_order_of_the_scale() -> None:
    model = FakeModel(lambda prompt: (0.0, 0.0, 0.0, 1.0))
    judge = GenerativeJudge(model, order="descending")
    assert judge.scores(PAIRS[:1]).tolist() == [3.0]  # choices keep their grades
    text = model.asked[0].text
    assert "one number, 3, 2, 1 or 0." in text
    assert text.index("3 = ") < text.index("0 = ")
    assert judge.fingerprint != GenerativeJudge(model).fingerprint


def test_criteria_are_asked_one_by_one_and_averaged() -> None:
    grades = dict(zip(CRITERIA, (3, 2, 1, 0), strict=True))

    def answer(prompt: Prompt) -> list[float]:
        (criterion,) = [name for name in CRITERIA if f"one criterion only, {name}:" in prompt.text]
        return [float(grade == grades[criterion]) for grade in range(4)]

    model = FakeModel(answer)
    assert GenerativeJudge(model, method="criteria").scores(PAIRS).tolist() == [1.5] * 3
    assert len(model.asked) == 12
    model = FakeModel(lambda prompt: (0.0, 1.0))
    own = GenerativeJudge(
        model, method="criteria", criteria={"wit": "how funny it is"}, definitions=["no", "yes"]
    )
    assert own.scores(PAIRS[:1]).tolist() == [1.0]
    assert "wit: how funny it is" in model.asked[0].text
    assert "from 0, not at all, to 1, fully" in model.asked[0].text


def test_binary_first_asks_for_a_grade_only_of_what_is_relevant() -> None:
    def answer(prompt: Prompt) -> tuple[float, ...]:
        if "yes or no" in prompt.text:
            return (0.2, 0.8) if "b text" in prompt.text else (0.5, 0.5)
        return (0.5, 0.5, 0.0)  # of 1, 2 and 3

    model = FakeModel(answer)
    judge = GenerativeJudge(model, method="binary_first")
    assert judge.scores(PAIRS).tolist() == pytest.approx([1.5, 0.0, 1.5])
    assert len(model.asked) == 5
    assert "0 = " not in model.asked[-1].text
    none = GenerativeJudge(FakeModel(lambda prompt: (0.1, 0.9)), method="binary_first")
    assert none.scores(PAIRS).tolist() == [0.0] * 3


def test_what_the_model_writes_is_read() -> None:
    answers = {"a": "It is on the subject.\nGrade: 2", "b": "I cannot say.", "c": "3"}
    model = FakeModel(writes=lambda prompt: answers[prompt.slots[1][0]])
    found = GenerativeJudge(model, answer="text").scores(PAIRS)
    assert found.tolist()[::2] == [2.0, 3.0]
    assert math.isnan(found[1])
    assert "Give your reasons" in model.asked[0].text


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("Grade: 2", 2), ("grade is 1.", 1), ("**Grade:** 3", 3), ("Final score - 0", 0),
        ("Grade: 1? No. Grade: 2", 2), ("<think>Grade: 3</think> Grade: 1", 1), ("2", 2),
        ("It deserves a 2.", 2), ("Grade: 7", None), ("1 or 2", None), ("", None), ("2.5", None),
        ("Grade: 2.5", None), ("Grade 12", None), ("d2", None), ("Grade: 3/3", 3),
        ("Grade: " + "9" * 5000, None), ("1" * 5000, None),
    ],
)  # fmt: skip
def test_grades_in_a_text(text: str, grade: int | None) -> None:
    found = named_grade(text, range(4))
    assert math.isnan(found) if grade is None else found == grade


def test_no_answer_is_no_grade_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    nothing = (math.nan,) * 4
    model = FakeModel(lambda prompt: nothing if "b text" in prompt.text else (1, 0, 0, 0))
    with caplog.at_level(logging.WARNING, "sluice"):
        found = GenerativeJudge(model, name="fake").scores(PAIRS)
    assert found.tolist()[::2] == [0.0, 0.0]
    assert math.isnan(found[1])
    assert "judge fake: 1 of 3 pairs" in caplog.text


def test_fingerprints_tell_judges_apart() -> None:
    model = FakeModel(lambda prompt: (1, 0, 0, 0))
    judges = [
        GenerativeJudge(model),
        GenerativeJudge(model, order="descending"),
        GenerativeJudge(model, method="criteria"),
        GenerativeJudge(model, method="binary_first"),
        GenerativeJudge(model, answer="text"),
        GenerativeJudge(model, answer="text", max_new_tokens=9),
        GenerativeJudge(model, definitions=["no", "yes"]),
        GenerativeJudge(model, prompt="{query} {document} {scale}?"),
    ]
    assert len({judge.fingerprint for judge in judges}) == len(judges)
    assert judges[0].fingerprint == GenerativeJudge(model, name="other").fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "vote"}, "method: 'vote'; expected one of direct"),
        ({"order": "up"}, "order"),
        ({"answer": "json"}, "answer"),
        ({"definitions": ["all"]}, "definitions"),
        ({"definitions": ["no", "yes"], "method": "binary_first"}, "needs at least 3 grades"),
        ({"criteria": {"wit": "x"}}, "and method: criteria"),
        ({"method": "criteria", "prompt": "{query} {document}"}, "criteria has its own prompts"),
        ({"prompt": "{query}"}, "has no {document}"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GenerativeJudge(FakeModel(), **options)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An endpoint that grades by the number that the document begins with."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body)
            worth = body["messages"][0]["content"].split("Document: ")[1][0]
            top = [
                {"token": worth, "logprob": math.log(0.75)},
                {"token": "0", "logprob": math.log(0.25)},
            ]
            choice: dict[str, Any] = {"message": {"content": worth}}
            if body.get("logprobs"):
                choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
            data = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1", requests
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("logprobs", "grade"), [(True, 2.25), (False, 3.0)])
def test_over_http_no_pair_is_asked_twice(
    endpoint: tuple[str, list[dict[str, Any]]], tmp_path: Path, logprobs: bool, grade: float
) -> None:
    url, requests = endpoint
    spec = {"type": "http", "url": url, "model": "fake", "logprobs": logprobs}
    pairs = [JudgedPair("q", "gold", str(n), f"3 of {n}") for n in range(5)]
    for expected in (5, 5):
        cache = ScoreCache(tmp_path / "labels.sqlite")
        judge = open_grading_judge(spec, cache=cache)
        assert judge.scores(pairs).tolist() == pytest.approx([grade] * 5)
        cache.close()
        assert len(requests) == expected
    assert requests[0]["model"] == "fake"
    assert requests[0]["temperature"] == 0
