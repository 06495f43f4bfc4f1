"""CIFF: against protobuf's own encoding, round trips, and one clear error for every fault."""

import gzip
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings, strategies as st
from sparse_files import read_ciff

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.exchange.formats import ciff as transposition
from sluice.retrieval.exchange.formats.ciff import write_ciff

# Two documents (a, b), two terms: gold in both with 3 and 200, river in b with 1; byte by byte.
GOLD = b"\x0a\x04gold\x10\x02\x18\xcb\x01" + b"\x22\x02\x10\x03" + b"\x22\x05\x08\x01\x10\xc8\x01"
RIVER = b"\x0a\x05river\x10\x01\x18\x01" + b"\x22\x04\x08\x01\x10\x01"
HEADER = (
    b"\x08\x01\x10\x02\x18\x02\x20\x02\x28\x02\x30\xcc\x01"
    + (b"\x39" + struct.pack("<d", 102.0))
    + b"\x42\x02hi"
)
RECORDS = [b"\x12\x01a\x18\x03", b"\x08\x01\x12\x01b\x18\xc9\x01"]


def framed(*messages: bytes) -> bytes:
    """Messages behind their lengths, all below 128 bytes."""
    return b"".join(bytes([len(message)]) + message for message in messages)


BY_HAND = framed(HEADER, GOLD, RIVER, *RECORDS)
WEIGHTS = np.array([[3, 0], [200, 1]], np.float32)


def documents(*ids: str) -> list[Document]:
    return [Document(name, "", "") for name in ids]


def saved(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "x.ciff"
    path.write_bytes(data)
    return path


def test_a_file_made_by_hand_is_read(tmp_path: Path) -> None:
    found = read_ciff(saved(tmp_path, BY_HAND))
    assert found.documents == documents("a", "b")
    assert found.terms == ["gold", "river"]
    assert found.weights.dtype == np.float32
    np.testing.assert_array_equal(found.weights.toarray(), WEIGHTS)


def test_the_same_bytes_are_written(tmp_path: Path) -> None:
    path = tmp_path / "x.ciff"
    # The columns are not in the order of the terms' bytes; the file is.
    swapped = sp.csr_array(WEIGHTS[:, ::-1])
    header = write_ciff(path, documents("a", "b"), ["river", "gold"], swapped, description="hi")
    assert path.read_bytes() == BY_HAND
    assert (header.total_terms, header.average_length) == (204, 102.0)
    packed = tmp_path / "x.ciff.gz"
    write_ciff(packed, documents("a", "b"), ["river", "gold"], swapped, description="hi")
    assert gzip.decompress(packed.read_bytes()) == BY_HAND
    assert read_ciff(packed).terms == ["gold", "river"]


def test_records_in_any_order_and_with_any_docids(tmp_path: Path) -> None:
    gold = b"\x0a\x04gold\x10\x02" + b"\x22\x04\x08\x07\x10\x03" + b"\x22\x04\x08\x02\x10\x05"
    records = [b"\x08\x09\x12\x01b", b"\x08\x07\x12\x01a"]
    path = saved(tmp_path, framed(b"\x08\x01\x10\x01\x18\x02", gold, *records))
    found = read_ciff(path)
    assert [document.id for document in found.documents] == ["b", "a"]
    np.testing.assert_array_equal(found.weights.toarray(), [[5], [3]])


def test_unknown_fields_and_other_orders_of_fields_are_read(tmp_path: Path) -> None:
    later = b"\x2d\x00\x00\x80\x3f" + b"\x4a\x03abc" + b"\x31" + bytes(8) + b"\x40\x07"
    posting = b"\x22\x09\x10\x03\x08\x00\x1a\x03xyz"
    gold = later + posting + b"\x18\x03\x10\x01\x0a\x04gold"
    data = framed(b"\x08\x01\x10\x01\x18\x01", gold, later + RECORDS[0])
    found = read_ciff(saved(tmp_path, data))
    assert (found.terms, found.weights.toarray().tolist()) == (["gold"], [[3.0]])


@pytest.mark.parametrize("rows", [0, 1])
def test_nothing_is_a_file_too(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "x.ciff"
    write_ciff(path, documents(*"a"[:rows]), ["gold"], sp.csr_array((rows, 1), dtype=np.float32))
    found = read_ciff(path)
    assert (len(found.documents), found.terms, found.weights.shape) == (rows, [], (rows, 0))


def protobuf_classes() -> dict[str, Any]:
    """The messages of CommonIndexFileFormat.proto, made by protobuf itself."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="ciff.proto", package="t", syntax="proto3")
    kinds = {"int32": 5, "int64": 3, "double": 1, "string": 9, "message": 11}
    schema = {
        "Header": "int32 version,int32 num_postings_lists,int32 num_docs,"
        "int32 total_postings_lists,int32 total_docs,int64 total_terms_in_collection,"
        "double average_doclength,string description",
        "Posting": "int32 docid,int32 tf",
        "PostingsList": "string term,int64 df,int64 cf,message postings",
        "DocRecord": "int32 docid,string collection_docid,int32 doclength",
    }
    for name, spelled in schema.items():
        message = file.message_type.add(name=name)
        for number, field in enumerate(spelled.split(","), 1):
            kind, label = field.split()
            made = message.field.add(name=label, number=number, type=kinds[kind], label=1)
            if kind == "message":
                made.label, made.type_name = 3, ".t.Posting"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(find(f"t.{name}")) for name in schema}


def by_protobuf(ids: list[str], terms: list[str], weights: np.ndarray, told: str) -> bytes:
    classes = protobuf_classes()
    lists = []
    for term, column in sorted(zip(terms, weights.T.tolist(), strict=True)):
        rows = [row for row, weight in enumerate(column) if weight]
        gaps = [after - before for before, after in pairwise([0, *rows])]
        postings = [{"docid": gap, "tf": int(column[row])} for gap, row in zip(gaps, rows)]  # noqa: B905
        if rows:
            lists.append(
                classes["PostingsList"](
                    term=term, df=len(rows), cf=int(sum(column)), postings=postings
                )
            )
    lengths = weights.sum(axis=1).astype(int).tolist()
    header = classes["Header"](
        version=1, num_postings_lists=len(lists), num_docs=len(ids),
        total_postings_lists=len(lists), total_docs=len(ids),
        total_terms_in_collection=sum(lengths),
        average_doclength=sum(lengths) / len(ids) if ids else 0.0, description=told,
    )  # fmt: skip
    records = [
        classes["DocRecord"](docid=row, collection_docid=name, doclength=lengths[row])
        for row, name in enumerate(ids)
    ]
    from google.protobuf.internal.encoder import _VarintBytes

    parts = [message.SerializeToString() for message in (header, *lists, *records)]
    return b"".join(_VarintBytes(len(part)) + part for part in parts)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[str], list[str], np.ndarray]:
    names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
    ids = draw(st.lists(names, max_size=6, unique=True))
    terms = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    weight = st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 2**24))
    row = st.lists(weight, min_size=len(terms), max_size=len(terms))
    weights = draw(st.lists(row, min_size=len(ids), max_size=len(ids)))
    return ids, terms, np.array(weights, np.float32).reshape(len(ids), len(terms))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(world=worlds(), run=st.integers(1, 6), cut=st.integers(0, 6))
def test_bytes_are_protobufs_and_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    world: tuple[list[str], list[str], np.ndarray],
    run: int,
    cut: int,
) -> None:
    ids, terms, weights = world
    path = tmp_path_factory.getbasetemp() / "p.ciff"
    before = transposition.RUN
    transposition.RUN = run  # so that a few entries make several runs and ranges
    try:
        parts = [sp.csr_array(weights[:cut]), sp.csr_array(weights[cut:])]
        write_ciff(path, documents(*ids), terms, parts, description="told")
        found = read_ciff(path)
    finally:
        transposition.RUN = before
    assert path.read_bytes() == by_protobuf(ids, terms, weights, "told")
    assert [document.id for document in found.documents] == ids
    used = sorted(term for column, term in enumerate(terms) if weights[:, column].any())
    assert found.terms == used
    columns = [terms.index(term) for term in used]
    np.testing.assert_array_equal(found.weights.toarray(), weights[:, columns])


def replaced(old: bytes, new: bytes) -> bytes:
    assert BY_HAND.count(framed(old)) == 1
    return BY_HAND.replace(framed(old), framed(new))


MINUS = b"\xff" * 9 + b"\x01"  # -1 as a varint
FAULTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "ends before the Header"),
    "json": (b'{"id": "a", "contents": "no", "vector": {}}' * 9, "not a Header of CIFF version 1"),
    "long": (b"\xff\xff\xff\xff\x7f", "more than 2 GiB"),
    "version": (b"\x02\x08\x02" + BY_HAND, "version 2"),
    "text version": (framed(b"\x0a\x01x"), "field 1 is not an integer"),
    "header field": (framed(b"\x08\x01\x42\x70x"), "goes beyond the message"),
    "wire type": (framed(b"\x08\x01\x43"), "wire type 3"),
    "negative count": (framed(b"\x08\x01\x10" + MINUS), "counts"),
    "list is cut": (BY_HAND[:40], "the file ends"),
    "record is cut": (BY_HAND[:-1], "ends inside DocRecord 1"),
    "record is missing": (framed(HEADER, GOLD, RIVER, RECORDS[0]), "ends before DocRecord 1"),
    "more behind": (BY_HAND + b"\x00", "more bytes after the last of 2 DocRecords"),
    "df": (replaced(RIVER, RIVER.replace(b"\x10\x01\x18", b"\x10\x02\x18")), "df is 2"),
    "same docid": (
        replaced(GOLD, GOLD.replace(b"\x22\x05\x08\x01", b"\x22\x05\x08\x00")),
        "posting 1 has a docid that is not above",
    ),
    "gap runs backwards": (
        replaced(RIVER, b"\x0a\x05river\x10\x01" + b"\x22\x0d\x08" + MINUS + b"\x10\x01"),
        "posting 0 has a docid that is not above",
    ),
    "negative tf": (
        replaced(RIVER, b"\x0a\x05river\x10\x01" + b"\x22\x0b\x10" + MINUS),
        "posting 0 has a negative tf",
    ),
    "huge tf": (
        replaced(RIVER, b"\x0a\x05river\x10\x01" + b"\x22\x06\x10\xff\xff\xff\xff\x0f"),
        "beyond 31 bits",
    ),
    "posting is cut": (
        replaced(RIVER, b"\x0a\x05river\x10\x01" + b"\x22\x02\x08\xff"),
        "posting 0 is not a Posting",
    ),
    "list is garbage": (replaced(RIVER, b"\x0a\x7f"), "not a PostingsList message"),
    "no record": (
        replaced(RIVER, RIVER.replace(b"\x08\x01", b"\x08\x02")),
        "no DocRecord has docid 2",
    ),
    "term twice": (replaced(RIVER, RIVER.replace(b"\x05river", b"\x04gold")), "'gold' again"),
    "term is not UTF-8": (replaced(RIVER, RIVER.replace(b"river", b"riv\xff\xff")), "utf-8"),
    "id twice": (
        replaced(RECORDS[1], RECORDS[1].replace(b"b", b"a")),
        "DocRecord 1: id 'a' again, first in ",
    ),
    "docid twice": (replaced(RECORDS[1], b"\x12\x01b"), "both have docid 0"),
    "no id": (replaced(RECORDS[1], b"\x08\x01"), "collection_docid is empty"),
    "negative docid": (replaced(RECORDS[1], b"\x08" + MINUS + b"\x12\x01b"), "is negative"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_one_clear_error(tmp_path: Path, fault: str) -> None:
    data, message = FAULTS[fault]
    path = saved(tmp_path, data)
    with pytest.raises(DataError) as caught:
        read_ciff(path)
    assert message in str(caught.value)
    assert "x.ciff" in str(caught.value)


def test_every_cut_and_every_flipped_byte_is_refused_or_read(tmp_path: Path) -> None:
    for size in range(len(BY_HAND)):
        with pytest.raises(DataError):
            read_ciff(saved(tmp_path, BY_HAND[:size]))
    for place in range(len(BY_HAND)):
        for bits in (0x01, 0x80, 0xFF):
            data = bytearray(BY_HAND)
            data[place] ^= bits
            try:
                read_ciff(saved(tmp_path, bytes(data)))
            except DataError as error:
                assert "x.ciff" in str(error)  # noqa: PT017


def test_damaged_gzip_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "x.ciff.gz"
    path.write_bytes(gzip.compress(BY_HAND)[:-20])
    with pytest.raises(DataError, match=r"x\.ciff\.gz.*fetch the file again"):
        read_ciff(path)
    path.write_bytes(BY_HAND)
    with pytest.raises(DataError, match=r"x\.ciff\.gz"):
        read_ciff(path)
    with pytest.raises(DataError, match="no such file"):
        read_ciff(tmp_path / "none.ciff")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda m: m * 0.5, "some weights are not integers"),
        (lambda m: m * -1, "of at least 0"),
        (lambda m: m * np.float32(np.nan), "nan"),
        (lambda m: m * 2.0**30, "31 bits"),
        (lambda m: sp.hstack([m, m], format="csr"), "4 columns, but 2 terms"),
        (lambda m: m[:1], "1 rows for 2 documents"),
    ],
)
def test_what_cannot_be_written_leaves_no_file(
    tmp_path: Path, spoil: Callable[[Any], Any], message: str
) -> None:
    path = tmp_path / "x.ciff"
    with pytest.raises(DataError, match=message):
        write_ciff(path, documents("a", "b"), ["x", "y"], spoil(sp.csr_array(WEIGHTS)))
    with pytest.raises(DataError, match="'x' again in column 1"):
        write_ciff(path, documents("a", "b"), ["x", "x"], sp.csr_array(WEIGHTS))
    assert list(tmp_path.iterdir()) == []
