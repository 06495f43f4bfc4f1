"""A document store with changed arrays, and checksums that agree, is refused in one error."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forging import forge

from sluice.encoders.foundation.errors import IndexFormatError
from sluice.retrieval.documents import columns, segment
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.store import open_documents, write_documents
from sluice.retrieval.documents.where import conditions, matching_rows

Change = Callable[[Any], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "documents"
    documents = [
        Document(
            f"d{n}", "title" * (n % 2), f"text of {n}", {"year": n, "lang": "en", "tags": ["a"]}
        )
        for n in range(100)
    ]
    write_documents(path, documents).delete([3])
    return path


@pytest.fixture
def store(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "documents"))


def forged(store: Path, file: str, change: Change) -> None:
    """Change an array, or the bytes of another file, and make the checksums agree."""
    name = json.loads((store / "manifest.json").read_text())["generation"]
    target = next((store / name).glob(f"*{file}"))
    if target.suffix == ".npy":
        values = np.load(target)
        np.save(target, values if (changed := change(values)) is None else changed)
    else:
        data = bytearray(target.read_bytes())
        changed = change(data)
        target.write_bytes(changed if isinstance(changed, bytes) else bytes(data))
    forge(store, target)


def used(store: Path) -> Iterator[object]:
    """Do all that reads the files."""
    opened = open_documents(store)
    yield opened.rows(["d5", "d99", "nobody"])
    yield opened.documents([0, 50, 99])
    yield list(opened)
    yield opened.sorted_id_hashes()
    yield matching_rows(opened, conditions({"lang": "en", "year": {"gte": 3}, "tags": "a"}))


def put(place: Any, value: int) -> Change:
    def change(values: Any) -> None:
        values[place] = value

    return change


def replaced(old: bytes, new: bytes) -> Change:
    def change(data: bytearray) -> bytes:
        assert old in data
        return bytes(data).replace(old, new, 1)

    return change


CHANGES: list[tuple[str, Change]] = [
    *(("id-rows.npy", put(7, value)) for value in (-1, 100, 2**62)),
    *(("id-offsets.npy", put(place, value)) for place, value in ((0, 1), (50, -9), (50, 2**40))),
    ("id-offsets.npy", put(-1, 2**40)),
    ("id-hashes.npy", lambda values: values[:-1]),
    ("id-hashes.npy", lambda values: values.astype(np.float64)),
    ("ids.bin", put(0, 255)),
    ("ids.bin", lambda data: b""),
    *(("blocks.npy", put((1, 0), value)) for value in (-1, 2**40, 0)),
    *(("blocks.npy", put((1, 1), value)) for value in (-1, 2**40, 0)),
    # The size when decompressed: a few bytes would ask for any memory.
    *(("blocks.npy", put((0, 2), value)) for value in (-1, 2**62, 2**31, 3)),
    ("blocks.npy", lambda values: values[:1]),
    ("blocks.npy", lambda values: values[:, :2]),
    ("texts.bin", put(20, 255)),
    ("texts.bin", lambda data: b""),
    ("deleted.npy", put(0, 100)),
    ("deleted.npy", put(0, -1)),
    ("deleted.npy", lambda values: np.array([[3]])),
    ("deleted.npy", lambda values: np.array([3, 3])),
    ("columns.json", replaced(b'"year"', b"7")),
    ("columns.json", replaced(b'"integer"', b'"text"')),
    ("columns.json", lambda _: b"[["),
    ("columns.json", replaced(b'"byte_ends": [', b'"byte_ends": [9')),
    ("columns.json", replaced(b'"values": [0', b'"values": [-8')),
    ("columns.json", replaced(b'"values": [0, 100]', b'"values": [0, -1]')),
    ("columns.json", replaced(b'"values": [0, 100]', b'"values": [0, %d]' % 10**30)),
    ("columns.bin", lambda data: bytes(255 for _ in data)),
]  # fmt: skip


def test_a_sound_store_is_used(store: Path) -> None:
    assert len(list(used(store))) == 5


@pytest.mark.parametrize(
    ("file", "change"), [("id-rows.npy", put(7, 8)), ("id-hashes.npy", put(50, 0))]
)
def test_ids_of_other_rows_are_refused_in_a_small_store(
    store: Path, file: str, change: Change
) -> None:
    forged(store, file, change)
    with pytest.raises(IndexFormatError, match="rebuild"):
        open_documents(store)


@pytest.mark.parametrize("whole", [True, False], ids=["small", "large"])
@pytest.mark.parametrize(("file", "change"), CHANGES, ids=[name for name, _ in CHANGES])
def test_a_forged_store_is_refused(
    store: Path, file: str, change: Change, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:  # of a large one, opening looks at the ends only, and reading at the rest
        monkeypatch.setattr(segment, "WHOLLY_CHECKED", 0)
        monkeypatch.setattr(columns, "WHOLLY_CHECKED", 0)
    forged(store, file, change)
    with pytest.raises(IndexFormatError, match=r"rebuild|damaged"):
        list(used(store))


@pytest.mark.parametrize(
    "facts",
    [{"segments": [0]}, {"segments": [-1]}, {"segments": "x"}, {"segments": [10**40]},
     {"segments": [100, 100]}, {"deleted": -1}, {"deleted": None}, {"deleted": 101}],
)  # fmt: skip
def test_a_manifest_of_other_counts_is_refused(store: Path, facts: dict[str, Any]) -> None:
    manifest = store / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **facts}))
    with pytest.raises(IndexFormatError, match="rebuild"):
        open_documents(store)


def test_a_document_of_no_end_is_refused_when_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.encoders.foundation.errors import DataError

    monkeypatch.setattr(segment, "LARGEST_DOCUMENT", 10)
    with pytest.raises(DataError, match="document 'a': 11 bytes of text, at most 10 are stored"):
        write_documents(tmp_path / "documents", [Document("a", "", "x" * 11)])


def test_hashes_that_repeat_are_refused(store: Path) -> None:
    """Looking up one id would read all of them: a small file could take all the memory."""
    one = segment.id_hash("d5")
    forged(store, "id-hashes.npy", lambda values: np.full_like(values, one))
    with pytest.raises(IndexFormatError, match="its hashes do not ascend, or repeat"):
        open_documents(store).rows(["d5"])
