"""Every type of encoder keeps the rules that ``sluice.retrieval.testing`` ships."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_specs import encoder_specs

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.table import ENCODERS, RERANKERS
from sluice.retrieval.testing import BrokenRule, check_encoder
from sluice.retrieval.testing.rules import TEXTS

# Of ``http``, which needs a server, dense/test_http_encoder.py looks at the rules; SEAL and DSI
# have no vectors: their queries are written with an index, see test_seal and test_dsi. Listwise
# rerankers score no pair, see test_listwise.
OTHERS = ("http", "seal", "dsi", "listwise")
TYPES = {name: make for name, make in {**ENCODERS, **RERANKERS}.items() if name not in OTHERS}


@pytest.fixture(scope="module")
def specs(
    bert: Path, masked_bert: Path, pair_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    return encoder_specs(bert, masked_bert, pair_bert, tmp_path_factory.mktemp("specs"))


# The same type with one thing changed that decides its vectors.
CHANGES: dict[str, list[dict[str, Any]]] = {
    "bm25": [{"k1": 2.0}, {"b": 0.1}],
    "conv_knrm": [{"kernels": 5}, {"ngrams": 2}, {"filters": 16}, {"seed": 1}],
    "cross_encoder": [{"max_length": 12}],
    "csr": [{"top_k": 3}, {"normalize": True}, {"document_length": 12}],
    "dense": [
        {"query_prompt": "query: "},
        {"pooling": "cls"},
        {"document_length": 12},
        {"top_layers": 2},
        {"top_layers": 2, "projection": 8},
        {"top_layers": 2, "dim": 24},
    ],
    "drmm": [{"bins": 10}, {"hidden": 4}],
    "duet": [{"filters": 8}, {"query_terms": 4}, {"document_terms": 9}],
    "gaussian": [
        {"variance_token": ""},
        {"variance_token": "[SPREAD]"},
        {"start_variance": 0.2},
        {"variance_floor": 0.01},
        {"beta": 2.0},
        {"normalize": False},
        {"query_prompt": "query: "},
        {"variance_token": "", "projection": {"dim": 8, "layers": 2}, "normalize": False},
        {"pooling": "cls", "layers": 1, "query_length": 20},
    ],
    "concepts": [
        {"read": "tokens"},
        {"scale": 10.0},
        {"threshold": 0.1},
        {"pooling": "cls"},
        {"document_length": 12},
    ],
    "experts": [{"experts": 3}, {"expert_layers": [2]}, {"pooling": "cls"}, {"seed": 1}],
    "hypencoder": [
        {"hidden_layers": 1},
        {"scaling": "repository"},
        {"product": True},
        {"pooling": "mean"},
        {"normalize": True},
        {"projection": 8},
        {"seed": 1},
        {"query_length": 12},
    ],
    "knrm": [{"kernels": 5}, {"vectors": "table"}, {"seed": 1}, {"document_length": 12}],
    "match_pyramid": [{"filters": 4}, {"rows": 2}, {"columns": 4}, {"hidden": 8}],
    "pacrr": [{"ngrams": 2}, {"filters": 4}, {"top": 1}, {"hidden": 4}],
    "pseudo_queries": [
        {"centroids": 3},
        {"rounds": 2},
        {"sharpness": 5.0},
        {"pooling": "cls"},
        {"normalize": False},
        {"projection": 8},
        {"document_length": 12},
        {"projection": {"dim": 8, "layers": 2}, "normalize": False},
        {"layers": 1, "query_prompt": "query: ", "query_length": 20},
    ],
    "pyramid": [
        {"lower_layers": 0},
        {"query_length": 4},
        {"title_tokens": 3},
        {"body_length": 5},
        {"head": "similarity"},
    ],
    "rrra": [{"weight": 0.5}, {"weight": None}],
    "splade": [
        {"pooling": "sum"},
        {"document_top_k": 3},
        {"query_model": "bow", "query_length": 9},
        {"term_frequency": {"k1": 1.5, "length": 60}},
    ],
    "static": [
        {"normalize": True},
        {"dim": 4},
        {"projection": 4},
        {"query_prompt": "query: "},
        {"document_length": 2},
    ],
    "three_heads": [{"head": "dense"}, {"head": "tokens"}, {"document_length": 12}],
    "tokens": [
        {"query_length": 12},
        {"document_length": 12},
        {"expand_queries": False},
        {"expand_queries": 12},
        {"attend_to_expansion": True},
        {"skip_words": ["river"]},
        {"pool_factor": 2},
        {"pool_factor": 2, "protected_tokens": 3},
        {"dim": 12},
        {"seed": 1},
        {"query_marker": "the"},
        {"document_prompt": "document: "},
        {"projection": False},
        {"normalize": False},
        {"layers": 1},
    ],
    "true_false": [
        {"prompt": "{document} {query}"},
        {"answers": ["gold", "stone"]},
        {"max_length": 16},
    ],
    "towers": [{"document": {"type": "dense", "pooling": "cls"}}],
}
QUERIES_ONLY = ("precomputed", "vocabulary")


@pytest.mark.parametrize("name", TYPES)
def test_types_of_the_table(name: str, specs: dict[str, Any], bert: Path, tmp_path: Path) -> None:
    spec = specs.get(name, {"model": str(bert)})

    def make(**changes: Any) -> Any:
        merged = {
            key: {**spec.get(key, {}), **value} if isinstance(value, dict) else value
            for key, value in changes.items()
        }
        encoder = build({"type": name, **spec, **merged}, TYPES, where="encoder")
        return encoder.fit(TEXTS) if isinstance(encoder, BM25Encoder) else encoder

    others = [make(**changes) for changes in CHANGES.get(name, [])]
    made = make()
    check_encoder(
        made,
        same=[make()],
        others=others,
        queries_only=name in QUERIES_ONLY,
        tolerance=1e-4,
    )
    # No setting is lost, nor in saving what was opened; an adapter's weight is of the call alone.
    for number, encoder in enumerate(others if name != "rrra" else ()):
        opened = encoder
        for again in (f"{number}", f"{number} again"):
            opened.save_pretrained(tmp_path / again)
            opened = open_encoder(tmp_path / again)
            assert type(opened) is type(encoder)
            assert opened.fingerprint == encoder.fingerprint, CHANGES[name][number]
        compared(opened, encoder)
    if "batch_tokens" in vars(made) and name not in QUERIES_ONLY:
        small = make()
        small.batch_tokens = 40
        compared(small, made, 1e-5)


def compared(one: Any, other: Any, tolerance: float = 0.0) -> None:
    """Check that two encoders make the same of the texts."""
    if hasattr(one, "score"):
        pairs = list(itertools.pairwise(TEXTS))
        np.testing.assert_allclose(one.score(pairs), other.score(pairs), atol=tolerance)
        return
    for side in ("encode_queries", "encode_documents"):
        ours, theirs = (getattr(each, side)(TEXTS) for each in (one, other))
        for rows in zip(*map(plain, (ours, theirs)), strict=True):
            np.testing.assert_allclose(*rows, atol=tolerance)


def plain(vectors: Any) -> Any:
    """Return rows that numpy compares: of sparse ones, and the vectors of each text's tokens."""
    return vectors.toarray() if hasattr(vectors, "toarray") else vectors


class Letters:
    """Counts of letters."""

    def __init__(self, letters: str = "abcdefghijklmnopqrstuvwxyz") -> None:
        self.letters = letters

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("letters", self.letters)

    def encode_queries(self, texts: Sequence[str]) -> Any:
        return self.encode_documents(texts)

    def encode_documents(self, texts: Sequence[str]) -> Any:
        counts = [[text.count(letter) for letter in self.letters] for text in texts]
        return np.array(counts, np.float32).reshape(len(texts), len(self.letters))

    def save_pretrained(self, path: str | Path) -> None:
        Path(path).mkdir()
        (Path(path) / "letters.json").write_text(json.dumps(self.letters))

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Letters:
        return cls(json.loads((Path(path) / "letters.json").read_text()))


def encoding(change: Any) -> dict[str, Any]:
    return {"encode_documents": lambda self, texts: change(Letters.encode_documents(self, texts))}


def centred(vectors: Any) -> Any:
    return vectors - vectors.mean(axis=0) if len(vectors) else vectors


CALLS = count()
BROKEN: dict[str, dict[str, Any]] = {
    "has_methods": {"save_pretrained": None},
    "form_of_vectors": encoding(lambda vectors: vectors.astype(np.float64)),
    "no_texts": encoding(lambda vectors: vectors if len(vectors) else np.zeros((0, 3), np.float32)),
    "order_of_texts": encoding(lambda vectors: np.sort(vectors, axis=0)),
    "batches_of_texts": encoding(centred),
    "encoded_twice": encoding(lambda vectors: vectors + np.float32(1e-7) * next(CALLS)),
    "blank_text": encoding(
        lambda vectors: np.where(vectors.any(axis=1)[:, None], vectors, np.float32(np.nan))
    ),
    "optional_hooks": {"normalize": True},
    "fingerprint": {"fingerprint": property(lambda self: f"call {next(CALLS)}")},
    "saved_and_loaded": {"from_pretrained": classmethod(lambda cls, path: Letters("xyz"))},
}


def test_a_right_one_passes() -> None:
    check_encoder(Letters(), same=[Letters()], others=[Letters("abc")])


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_ones_are_found_out(rule: str) -> None:
    broken = type("Broken", (Letters,), BROKEN[rule])()
    with pytest.raises(BrokenRule, match=rf"^encoder Broken: .* \({rule}\)\n"):
        check_encoder(broken)


def test_fingerprints_of_others() -> None:
    with pytest.raises(BrokenRule, match=r"others\[1\] has the same"):
        check_encoder(Letters(), others=[Letters("abc"), Letters()])
    with pytest.raises(BrokenRule, match=r"same\[0\] has another"):
        check_encoder(Letters(), same=[Letters("abc")])
    with pytest.raises(ConfigError, match="three or more"):
        check_encoder(Letters(), ["one", "two"])
