"""Models of a hub on the loopback device: fetched once, pinned, resumed, and found offline."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub
from huggingface_hub import constants
from tiny_models import save_model

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files import locate
from sluice.encoders.model_files.registry import open_encoder

MODEL = "owner/tiny"
find = locate.model_folder.__wrapped__  # without its memory


@pytest.fixture
def hub(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with two revisions of a model; the later one has a pickle, and another seed."""
    later = save_model(tmp_path / "later", "Model", num_hidden_layers=1)
    (later / "pytorch_model.bin").write_bytes(b"a pickle")
    (later / "code.py").write_text("raise SystemExit")
    served = FakeHub(MODEL, {"v1": bert, "v2": later})
    template = f"{served.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1_000)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the client's tries
    online(monkeypatch, True)
    yield served
    served.close()
    locate.hub_reachable.cache_clear()


def online(monkeypatch: pytest.MonkeyPatch, yes: bool) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", not yes)
    monkeypatch.setenv("HF_HUB_OFFLINE", "" if yes else "1")
    locate.hub_reachable.cache_clear()


def fetched(hub: FakeHub) -> list[str]:
    """Return the files whose contents were sent, and forget the log."""
    names = [path.rpartition("/")[2] for verb, path, _ in hub.log if verb == "GET"
             and "/resolve/" in path]  # fmt: skip
    hub.log.clear()
    return sorted(names)


def test_a_model_is_fetched_once_and_then_found_offline(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    online(monkeypatch, False)
    with pytest.raises(ModelError, match="could not be reached"):
        find(MODEL)
    assert not hub.log
    online(monkeypatch, True)
    folder = find(MODEL)
    assert fetched(hub) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]  # fmt: skip  no pickle and no code
    assert folder.name == hub.commits["v2"]
    assert find(MODEL) == folder
    online(monkeypatch, False)
    assert find(MODEL) == find(f"{MODEL}@main") == folder
    assert not hub.log
    assert open_encoder(folder).layer_count == 1


def test_a_revision_is_pinned(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    old = find(f"{MODEL}@v1")
    assert old.name == hub.commits["v1"]
    assert open_encoder(old).layer_count == 2
    assert find(f"{MODEL}@{hub.commits['v2']}").name == hub.commits["v2"]
    online(monkeypatch, False)
    assert find(f"{MODEL}@{hub.commits['v1']}") == old
    branch = old.parents[1] / "refs" / "refs" / "pr" / "1"
    branch.parent.mkdir(parents=True)
    branch.write_text(hub.commits["v1"])
    assert find(f"{MODEL}@refs/pr/1") == old
    with pytest.raises(ModelError, match="no such model folder"):
        find(f"{MODEL}@refs/../pr")
    online(monkeypatch, True)
    for name in (f"{MODEL}@v3", "owner/other"):
        with pytest.raises(ModelError, match=f"{name}: model not found"):
            find(name)
    with pytest.raises(ModelError, match="no revision after the @"):
        find(f"{MODEL}@")


def test_a_broken_download_is_one_error_and_goes_on(hub: FakeHub) -> None:
    hub.broken = "model.safetensors"
    with pytest.raises(ModelError, match="the connection to the hub broke"):
        find(MODEL)
    ranges = [asked for _, path, asked in hub.log if path.endswith("safetensors")]
    assert any(asked.startswith("bytes=") for asked in ranges)
    hub.broken = ""
    fetched(hub)
    folder = find(MODEL)
    assert fetched(hub) == ["model.safetensors"]
    whole = hub.revisions["v2"] / "model.safetensors"
    assert (folder / "model.safetensors").read_bytes() == whole.read_bytes()


def test_a_local_folder_comes_first(
    hub: FakeHub, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bert, tmp_path / "owner" / "tiny@v1")
    assert find("owner/tiny@v1") == Path("owner/tiny@v1")
    assert not hub.log
