"""Time encoding by each back end against sentence-transformers, interleaved in one process.

    python scripts/bench_backends.py [--passages 64] [--rounds 5] [--threads 2] [--model ID]

Passages are of 12 to 400 words, about 200 tokens on average, cut from the standard library's
documentation. A ratio is a round's time of sentence-transformers over that of the row; the table
has the median over the rounds, and the smallest cosine to sentence-transformers' vectors. What is
not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_encode import least_cosine, passages
from harness import MODEL, interleaved, options, ratios

GRAPH, INT8 = "onnx/model.onnx", "onnx/model_qint8.onnx"
ROWS = (  # name, back end, dtype, file
    ("ONNX Runtime float32", "onnx", "float32", GRAPH),
    ("ONNX Runtime int8", "onnx", "float32", INT8),
    ("OpenVINO float32", "openvino", "float32", GRAPH),
    ("OpenVINO bfloat16", "openvino", "bfloat16", GRAPH),
    ("OpenVINO int8", "openvino", "float32", INT8),
)

Encode = Callable[[list[str]], Any]


def rows(model: str, folder: Path) -> dict[str, Encode]:
    """Return what encodes, by name; sentence-transformers first."""
    from sentence_transformers import SentenceTransformer

    from sluice.encoders import DenseEncoder
    from sluice.encoders.backends.backend import open_backend, through
    from sluice.encoders.model_files.locate import model_folder

    theirs = SentenceTransformer(str(model_folder(model)), device="cpu")
    found: dict[str, Encode] = {
        "sentence-transformers": lambda texts: theirs.encode(texts, show_progress_bar=False)
    }
    for dtype in ("float32", "bfloat16"):
        encoder = DenseEncoder.from_pretrained(model, device="cpu", dtype=dtype)
        found[f"torch {dtype}"] = encoder.encode_documents
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None:
        print("onnx and onnxruntime are not installed: no exported graph is timed")
        return found
    from sluice.encoders.backends.export import export_onnx

    print(export_onnx(model, folder / "m", quantise="int8"))
    plain = DenseEncoder.from_pretrained(folder / "m", device="cpu")
    for name, engine, dtype, file in ROWS:
        if engine == "openvino" and importlib.util.find_spec("openvino") is None:
            print(f"{name}: not installed")
            continue
        backend = open_backend(folder / "m", engine, "last_hidden_state", dtype=dtype, file=file)
        found[name] = through(plain, backend).encode_documents
    return found


def run(arguments: argparse.Namespace) -> None:
    """Warm everything up once, then time it in turns and print the table."""
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    texts = passages(arguments.passages)
    with tempfile.TemporaryDirectory() as folder:
        encoders = rows(arguments.model, Path(folder))
        vectors = {name: unit(encode(texts)) for name, encode in encoders.items()}
        calls = {name: partial(encode, texts) for name, encode in encoders.items()}
        seconds = interleaved(calls, arguments.rounds)
    reference = next(iter(encoders))
    print(f"{len(texts)} passages, {torch.get_num_threads()} threads, {arguments.rounds} rounds")
    print(f"{'':<24}{'docs/s':>8}{'ratio':>8}{'spread':>14}{'min cosine':>12}")
    for name, each in ratios(seconds, reference, len(texts)).items():
        print(
            f"{name:<24}{each['rate']:>8.1f}{each['ratio']:>8.2f}"
            f"{each['least']:>9.2f}-{each['most']:.2f}"
            f"{least_cosine(vectors[name], vectors[reference]):>12}"
        )


def unit(vectors: Any) -> Any:
    """Return rows scaled to length 1."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    run(options(__doc__, {
        "--passages": 64, "--rounds": 5, "--threads": (0, "default: torch's own choice"),
        "--model": MODEL,
    }))  # fmt: skip
