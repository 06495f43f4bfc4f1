"""Weights in any state: safetensors in shards, pickles that are converted, and what is refused."""

import json
import os
import pickle
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Call
from families import bert as published_bert
from published import write_json
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tiny_models import save_model

from sluice.encoders import DenseEncoder
from sluice.encoders.dense.objects.sentence_transformer import SentenceTransformerEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.pickles import conversion, process
from sluice.encoders.model_files.pickles.conversion import import_pickles, pickled_weights
from sluice.encoders.model_files.registry import open_encoder

SHARDS = ("model-00001-of-00002", "model-00002-of-00002")


class Evil:
    """A pickle of it runs a program."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert in this process: the other one takes seconds to begin."""

    def read(files: Sequence[tuple[Path, Path]], draft: Path) -> list[dict[str, int]]:
        try:
            return [process.convert(*pair) for pair in files]
        except ValueError as error:
            raise ModelError(str(error)) from error

    monkeypatch.setattr(conversion, "_read_apart", read)


def in_shards(folder: Path, *, pickled: bool) -> dict[str, torch.Tensor]:
    """Put a folder's weights into two files and an index; return them."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names: dict[str, str] = {}
    for number, base in enumerate(SHARDS):
        part = {key: state[key] for key in sorted(state)[number::2]}
        name = f"pytorch_{base}.bin" if pickled else f"{base}.safetensors"
        if pickled:
            torch.save(part, folder / name)
        else:
            save_file(part, folder / name, {"format": "pt"})
        names |= dict.fromkeys(part, name)
    index = "pytorch_model.bin" if pickled else "model.safetensors"
    write_json(folder / f"{index}.index.json", {"metadata": {}, "weight_map": names})
    return state


@pytest.mark.thorough
def test_a_folder_of_pickles_is_converted_by_the_command(
    shell: Call, texts: list[str], tmp_path: Path
) -> None:
    folder = published_bert(tmp_path / "m", dense=(24,), pooling="mean")
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    state = in_shards(folder, pickled=True)
    dense = load_file(folder / "2_Dense" / "model.safetensors")
    (folder / "2_Dense" / "model.safetensors").unlink()
    old = {"_use_new_zipfile_serialization": False}  # as files of before 2020 are
    torch.save(dense, folder / "2_Dense" / "pytorch_model.bin", **old)
    torch.save({"weight": torch.ones(1, 32)}, folder / "sparse_linear.pt")
    for name in ("training_args.bin", "optimizer.pt"):  # that nothing needs
        (folder / name).write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    with pytest.raises(ModelError, match=f"sluice model import {folder} --trust-pickle"):
        open_encoder(folder)
    code, _, err = shell("model", "import", folder)
    assert code == 2
    assert "--trust-pickle: missing" in err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

    code, out, err = shell("model", "import", folder, "--trust-pickle")
    assert (code, err) == (0, "")
    assert "2_Dense/model.safetensors: 1 tensor of pytorch_model.bin" in out
    made = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path not in before
    }
    assert made == {
        *(f"{name}.safetensors" for name in SHARDS), "model.safetensors.index.json",
        "2_Dense/model.safetensors", "sparse_linear.safetensors",
    }  # fmt: skip
    assert all(path.read_bytes() == data for path, data in before.items())
    modes = {path.stat().st_mode for path in folder.rglob("*.*") if path.suffix != ".json"}
    assert len(modes) == 1
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(state)
    assert index["metadata"]["total_size"] == sum(4 * each.numel() for each in state.values())
    for name, shard in index["weight_map"].items():
        assert torch.equal(load_file(folder / shard)[name], state[name])
    ours = DenseEncoder.from_pretrained(folder, device="cpu").encode_documents(texts)
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    theirs = SentenceTransformerEncoder.from_pretrained(_without_heads(folder), device="cpu")
    np.testing.assert_allclose(theirs.encode_documents(texts), expected, atol=1e-5)

    code, out, _ = shell("model", "import", folder)
    assert (code, out) == (0, f"{folder}: no pickled weights without safetensors; nothing to "
                              "convert\n")  # fmt: skip
    assert not (tmp_path / "ran").exists()


def _without_heads(folder: Path) -> Path:
    """Remove the pickles that have no safetensors beside them."""
    for name in ("training_args.bin", "optimizer.pt", "sparse_linear.pt"):
        (folder / name).unlink(missing_ok=True)
    return folder


@pytest.mark.thorough
def test_a_pickle_that_runs_a_program_runs_none(shell: Call, bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(bert, folder)
    (folder / "model.safetensors").unlink()
    state = {"embeddings.weight": torch.ones(2), "evil": Evil(tmp_path / "ran")}
    torch.save(state, folder / "pytorch_model.bin")
    before = sorted(folder.rglob("*"))
    code, _, err = shell("model", "import", folder, "--trust-pickle")
    assert code == 2
    assert f"{folder}/pytorch_model.bin: names posix.system" in err
    assert "nothing of it was run" in err
    assert not (tmp_path / "ran").exists()
    assert sorted(folder.rglob("*")) == before


def zipped(path: Path) -> None:
    torch.save({"a": torch.zeros(9999)}, path.with_suffix(".x"))
    with zipfile.ZipFile(path.with_suffix(".x")) as old, zipfile.ZipFile(path, "w", 8) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))


HOLDS: dict[str, tuple[Any, str]] = {
    "a list": ([torch.ones(1)], "holds a list, expected tensors by name"),
    "nothing": ({}, "expected tensors by name"),
    "settings": ({"a": torch.ones(1), "lr": 0.1}, "'lr' is a float, expected a tensor"),
    "numbered": ({0: torch.ones(1)}, "expected a tensor"),
    "sparse": ({"a": torch.eye(2).to_sparse()}, "that safetensors lacks"),
    "unfolding": ({"a": torch.ones(1).expand(9000, 9000)}, "its tensors take 324,000,000 bytes"),
    "a module": (torch.nn.Linear(1, 1), r"names torch\.nn\.modules\.linear\.Linear"),
    "cut off": (b"\x80\x02}q\x00", "is damaged"),
    "compressed": (zipped, "is compressed"),
}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("case", HOLDS)
def test_other_than_tensors_is_refused_and_nothing_written(case: str, tmp_path: Path) -> None:
    content, message = HOLDS[case]
    file = tmp_path / "pytorch_model.bin"
    if content is zipped:
        zipped(file)
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ModelError, match=message):
        import_pickles(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("in_process")
def test_names_of_one_tensor_and_views_keep_their_numbers(tmp_path: Path) -> None:
    table = torch.arange(12.0).view(4, 3)
    state = {
        "table": table, "tied": table, "column": table[:, 1], "row": table[2], "turned": table.T,
        "half": table.half(), "ids": torch.arange(3), "empty": torch.ones(0, 3),
        "learnt": torch.nn.Parameter(table[1:3]),
    }  # fmt: skip
    torch.save(state, tmp_path / "pytorch_model.bin")
    (file,) = import_pickles(tmp_path)
    assert (file.tensors, file.source.name) == (9, "pytorch_model.bin")
    loaded = load_file(tmp_path / "model.safetensors")
    assert set(loaded) == set(state)
    for name, value in state.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value), name


@pytest.mark.parametrize(
    ("code", "message"),
    [(-9, "was killed, most often for want of memory"), (3, r"exit code 3 \(out of luck\)")],
)
def test_a_process_that_dies_is_named_and_nothing_is_written(
    code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    died = subprocess.CompletedProcess([], code, "", "first\nout of luck\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: died)
    with pytest.raises(ModelError, match=message):
        import_pickles(tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.usefixtures("in_process")
def test_a_kill_between_files_leaves_what_the_same_call_converts(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(bert, folder)
    expected = DenseEncoder.from_pretrained(folder).encode_queries(["gold"])
    in_shards(folder, pickled=True)
    real, done = conversion.commit, list[Path]()

    def commit(draft: Path, path: Path) -> None:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(path)
        real(draft, path)

    monkeypatch.setattr(conversion, "commit", commit)
    with pytest.raises(KeyboardInterrupt):
        import_pickles(folder)
    assert not list(folder.glob("*.tmp"))
    assert len(pickled_weights(folder)) == 2
    with pytest.raises(ModelError, match="model import"):
        DenseEncoder.from_pretrained(folder)
    monkeypatch.setattr(conversion, "commit", real)
    import_pickles(folder)
    ours = DenseEncoder.from_pretrained(folder).encode_queries(["gold"])
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.usefixtures("in_process")
def test_shards_that_do_not_fit_their_index(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(bert, folder)
    in_shards(folder, pickled=True)
    path = folder / "pytorch_model.bin.index.json"
    index = json.loads(path.read_text())
    names = index["weight_map"]
    for changes, message in (
        ({"more": f"pytorch_{SHARDS[0]}.bin"}, "more is not in the shard it names"),
        ({"more": "../pytorch_model.bin"}, r"shard '\.\./pytorch_model.bin'; expected"),
        ({"more": "training_args.pt"}, "expected a"),
        ({"more": "pytorch_model-3.bin"}, "the model is not whole"),
        ({"more": "a.bin", "another": 5}, "expected a"),
        ({"more": f"{'a' * 300}.bin"}, "the model is not whole"),
    ):
        write_json(path, {"weight_map": {**names, **changes}})
        with pytest.raises(ModelError, match=message):
            import_pickles(folder)
    first = f"pytorch_{SHARDS[0]}.bin"
    shutil.copy(folder / first, folder / f"{SHARDS[0]}.bin")
    write_json(path, {"weight_map": {**names, "more": f"{SHARDS[0]}.bin"}})
    with pytest.raises(ModelError, match="would have the same name"):
        import_pickles(folder)
    write_json(path, {"metadata": {}})
    with pytest.raises(ModelError, match="no weight_map"):
        import_pickles(folder)
    assert not list(folder.glob("*.safetensors*"))
    left_out = sorted(names)[0]
    write_json(path, {"weight_map": {k: v for k, v in names.items() if k != left_out}})
    import_pickles(folder)
    written = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(written) == set(names)


@pytest.mark.usefixtures("in_process")
def test_links_do_not_lead_out(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    torch.save({"weight": torch.ones(1)}, tmp_path / "outside" / "pytorch_model.bin")
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "2_Dense").symlink_to(tmp_path / "outside")
    torch.save({"weight": torch.ones(1)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").symlink_to(tmp_path / "outside" / "new")
    import_pickles(folder)
    assert (folder / "model.safetensors").is_file()
    assert not (folder / "model.safetensors").is_symlink()
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["pytorch_model.bin"]


def test_only_a_folder_of_ones_own_is_converted(tmp_path: Path) -> None:
    for name, message in (
        (tmp_path / "none", "no such folder"), ("", "no such folder"),
        (tmp_path, "it has no config.json and no modules.json"),
        ("owner/model", "hf download owner/model --local-dir FOLDER"),
        ("sentence-transformers/all-MiniLM-L6-v2", "hf download sentence-tr"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            import_pickles(name)


def test_safetensors_in_shards_are_the_whole(bert: Path, texts: list[str], tmp_path: Path) -> None:
    expected = DenseEncoder.from_pretrained(bert).encode_documents(texts)
    folder = tmp_path / "m"
    shutil.copytree(bert, folder)
    in_shards(folder, pickled=False)
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    encoder = open_encoder(folder)
    np.testing.assert_array_equal(encoder.encode_documents(texts), expected)
    encoder.save_pretrained(tmp_path / "saved")
    assert open_encoder(tmp_path / "saved").fingerprint == encoder.fingerprint
    theirs = SentenceTransformerEncoder.from_pretrained(folder, device="cpu")
    assert theirs.encode_documents(texts).shape == expected.shape

    (folder / f"{SHARDS[1]}.safetensors").unlink()
    with pytest.raises(ModelError, match=f"no {SHARDS[1]}.safetensors; the model is not whole"):
        open_encoder(folder)
    with pytest.raises(ModelError, match="the model is not whole"):
        SentenceTransformerEncoder.from_pretrained(folder)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("tf_model.h5", "TensorFlow's"), ("model.gguf", "llama.cpp's"),
        ("onnx/model.onnx", "is a graph, which is not read as weights"), (None, "no weights; exp"),
    ],
)  # fmt: skip
def test_weights_that_nothing_here_reads(
    bert: Path, file: str | None, message: str, tmp_path: Path
) -> None:
    shutil.copytree(bert, tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    if file is not None:
        (tmp_path / "m" / file).parent.mkdir(exist_ok=True)
        (tmp_path / "m" / file).write_bytes(b"x")
    with pytest.raises(ModelError, match=message):
        open_encoder(tmp_path / "m")


def test_a_model_of_the_hubs_cache_without_safetensors(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models--owner--m" / "snapshots" / "1"
    shutil.copytree(bert, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ModelError, match="hf download ID --local-dir FOLDER"):
        open_encoder(folder)


@pytest.mark.parametrize("name", ["weights.bin", "../x.safetensors", "missing.safetensors", 5])
def test_other_weights_named_by_the_config(name: Any, tmp_path: Path) -> None:
    """transformers 5 reads any file that config.json names, a pickle among them."""
    folder = save_model(tmp_path / "m", "Model")
    torch.save(load_file(folder / "model.safetensors"), folder / "weights.bin")
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, "transformers_weights": name})
    for opened in (open_encoder, SentenceTransformerEncoder.from_pretrained):
        with pytest.raises(ModelError, match="transformers_weights"):
            opened(folder)
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    write_json(folder / "config.json", {**config, "transformers_weights": "other.safetensors"})
    encoder = open_encoder(folder)
    encoder.save_pretrained(tmp_path / "saved")
    assert open_encoder(tmp_path / "saved").fingerprint == encoder.fingerprint
