"""A saved folder's config: its servers get the reader's keys, and a training tells nobody."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import jobs
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.config.trust import named_in, trusted
from sluice.retrieval.experiments.experiment import load_pipeline

Call = Any
TRAINING = {"encoder": {"type": "dense", "model": "m"}, "loss": "info_nce"}


def config_of(**parts: Any) -> ExperimentConfig:
    return checked({"dataset": "x", "output": "out", **parts}, ExperimentConfig)


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A server on loopback that notes the keys it is sent."""
    keys: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            keys.append(self.headers.get("Authorization", ""))
            body = json.dumps({"choices": [{"message": {"content": "yes"}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}/v1", keys
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_a_key_goes_where_the_reader_says(
    tmp_path: Path, server: tuple[str, list[str]], sluice: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, keys = server
    monkeypatch.setenv("READERS", "my-key")
    monkeypatch.setenv("SECRET", "not-yours")
    output = tmp_path / "out"
    config = {
        "dataset": str(write_beir(tmp_path / "data", 20)),
        "output": str(output),
        "retrievers": {"bm25": "bm25"},
    }
    jobs.index(config)
    scorer = {"type": "http", "url": url, "model": "m", "api_key_env": "SECRET", "retries": 0}
    config |= {"rerankers": {"z": scorer}, "pipelines": {"p": "bm25 % 2 >> z(depth=1)"}}
    (output / "experiment.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=r"is a server, and opening a folder never reaches"):
        load_pipeline(output, "p")
    code, _, error = sluice("search", output, "gold")
    assert (code, f"--allow {url}" in error, keys) == (2, True, [])
    for allow, sent in ((url, ""), ("http", ""), (f"{url}=READERS", "Bearer my-key")):
        keys.clear()
        assert sluice("search", output, "gold", "--allow", allow)[0] == 0
        assert keys == [sent]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"train": {"m": {**TRAINING, "loss": {"type": "os:system"}}}}, "train.m.loss.type"),
        ({"train": {"m": {**TRAINING, "negatives": {"type": "mined", "judge": {
            "type": "http", "url": "http://h/v1"}}}}}, r"http://h/v1 is a server"),
        ({"retrievers": {"a": {"encoder": "bm25", "index": {
            "type": "funnel", "first": {"type": "os:system"}}}}}, "index.first.type"),
        ({"evaluate": {"measures": ["os:system"]}}, "evaluate.measures"),
        ({"train": {"m": {**TRAINING, "evaluate": {"measures": ["os:getcwd@5"]}}}}, "os:getcwd"),
        ({"retrievers": {"a": {"encoder": "bm25", "encoding": {"cache": "/x/y"}}}}, "/x/y is out"),
        ({"train": {"m": {**TRAINING, "trainer": {"deepspeed": "x.json"}}}}, "trainer.deepspeed"),
        ({"pipelines": {"p": "a >> cached(z, file='../../x')"}}, "writes only inside it"),
        ({"pipelines": {"p": "normalised(a, bank='q.txt', fitted='/x')"}}, "/x is outside"),
        ({"pipelines": {"p": "normalised(a, bank='hf:owner/name')"}}, "--allow hub"),
        ({"pipelines": {"p": "a >> pair_head(a, model='owner/name')"}}, "--allow hub"),
    ],
)  # fmt: skip
def test_what_a_saved_config_may_not(parts: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = config_of(**parts)
    with pytest.raises(ConfigError, match=message):
        trusted(config, (), tmp_path)
    assert trusted(config, None, tmp_path) is config


def test_a_training_of_a_saved_config_reports_to_nobody(tmp_path: Path) -> None:
    trainer = {"max_steps": 1, "report_to": "wandb", "push_to_hub": True, "hub_model_id": "a/b"}
    config = config_of(train={"m": {**TRAINING, "trainer": trainer}})
    assert trusted(config, (), tmp_path).train["m"].trainer == {"max_steps": 1}


def test_what_a_config_names_is_allowed_to_what_it_makes(tmp_path: Path) -> None:
    config = config_of(
        retrievers={"a": {"encoder": {"type": "own:Encoder"}}},
        evaluate={"measures": ["own.measures:mine@10", "nDCG@10"]},
    )
    assert named_in(config) == {"own:Encoder", "own.measures:mine", "hub"}
    trusted(config, named_in(config), tmp_path)


def test_servers_and_places_of_a_config_are_allowed_to_what_it_makes(tmp_path: Path) -> None:
    config = config_of(
        retrievers={"a": {"encoder": "bm25", "encoding": {"cache": "/x/y"}}},
        rerankers={
            "open": {"type": "http", "url": "http://h/v1", "model": "m"},
            "z": {"type": "http", "url": "https://k/v1", "model": "m", "api_key_env": "KEY"},
        },
        pipelines={"p": "a >> cached(z, file='/x/z')"},
    )
    assert named_in(config) == {"hub", "http://h/v1", "https://k/v1=KEY", "/x/y", "/x/z"}
    again = trusted(config, named_in(config), tmp_path)
    assert again.rerankers == config.rerankers


def test_a_cache_of_vectors_anywhere_is_no_reason_not_to_search(tmp_path: Path) -> None:
    config = config_of(retrievers={"a": {"encoder": "bm25", "encoding": {"cache": "/x/y"}}})
    trusted(config, (), tmp_path, only_open=True)
    with pytest.raises(ConfigError, match="/x/y is outside"):
        trusted(config, (), tmp_path)
