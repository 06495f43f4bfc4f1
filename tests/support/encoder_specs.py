"""What each type of encoder needs to be made of tiny models."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sparse_codes import save_csr
from static_embeddings import save_static
from tiny_generators import save_t5

from sluice.encoders import PrecomputedEncoder, VocabularyEncoder
from sluice.encoders.dense.error_adapter import ErrorAdapter
from sluice.encoders.table import MATCHING
from sluice.retrieval.testing.rules import TEXTS


def encoder_specs(bert: Path, masked_bert: Path, pair_bert: Path, tmp_path: Path) -> dict[str, Any]:
    """What a type needs to be made; others are opened from a tiny BERT."""
    vectors = np.random.default_rng(0).random((len({*TEXTS, ""}), 4), np.float32)
    PrecomputedEncoder(sorted({*TEXTS, ""}), vectors).save_pretrained(tmp_path / "precomputed")
    VocabularyEncoder(sorted({*" ".join(TEXTS).split()})).save_pretrained(tmp_path / "vocabulary")
    save_static(tmp_path / "static")
    (tmp_path / "concepts.txt").write_text("river\ngold\nsearch\n")
    light = {kind: {"model": str(tmp_path / "static")} for kind in MATCHING if kind != "knrm"}
    return {
        **light,
        "bm25": {},
        "concepts": {
            "model": str(bert),
            "vocabulary": str(tmp_path / "concepts.txt"),
            "threshold": 0.0,
        },
        "cross_encoder": {"model": str(pair_bert)},
        "csr": {"model": str(save_csr(bert, tmp_path / "csr"))},
        "experts": {"model": str(bert), "experts": 2},
        "precomputed": {"model": str(tmp_path / "precomputed")},
        "pyramid": {"model": str(pair_bert)},
        "rrra": {"model": str(adapted(bert, tmp_path / "adapted"))},
        "splade": {"model": str(masked_bert)},
        "static": {"model": str(tmp_path / "static")},
        "true_false": {"model": str(save_t5(tmp_path / "t5", initializer_factor=1.0))},
        "three_heads": {"model": str(three_heads(bert, tmp_path / "heads")), "head": "sparse"},
        "towers": {
            "query": {"type": "dense", "model": str(bert), "query_prompt": "query: "},
            "document": {"type": "dense", "model": str(bert)},
        },
        "vocabulary": {"model": str(tmp_path / "vocabulary")},
    }


def adapted(bert: Path, folder: Path) -> Path:
    """A tiny BERT with an error adapter beside it."""
    shutil.copytree(bert, folder)
    torch.manual_seed(2)
    adapter = ErrorAdapter(32, 4)
    torch.nn.init.normal_(adapter.outer.weight)
    adapter.save(folder)
    return folder


def three_heads(bert: Path, folder: Path) -> Path:
    """A tiny BERT with two heads beside it, in BGE-M3's layout."""
    from safetensors.torch import save_file

    shutil.copytree(bert, folder)
    drawn = torch.Generator().manual_seed(4)
    for name, outputs in (("sparse", 1), ("colbert", 8)):
        head = {"weight": torch.randn(outputs, 32, generator=drawn), "bias": torch.ones(outputs)}
        save_file(head, folder / f"{name}_linear.safetensors")
    return folder
