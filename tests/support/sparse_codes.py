"""Folders of sparse autoencoders over a dense encoder, as they are published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

LATENTS = 96
SIBLINGS = "sentence_transformers.sparse_encoder.models"


def save_csr(
    bert: Path, folder: Path, *, k: int = 8, normalize: bool = False, unit: bool = False,
    similarity: str | None = "dot", limit: int | None = None,
) -> Path:  # fmt: skip
    """Write a random CSR folder over ``bert``, with the files and keys of sentence-transformers 5.

    ``unit`` puts a Normalize module before the autoencoder, ``limit`` is its ``max_active_dims``.
    """
    import torch
    from published import modules
    from safetensors.torch import save_file

    shutil.copytree(bert, folder)
    modules(folder, "mean", normalize=unit, similarity=similarity)
    entries = json.loads((folder / "modules.json").read_text())
    place = folder / f"{len(entries)}_SparseAutoEncoder"
    entries.append({"idx": len(entries), "name": str(len(entries)), "path": place.name,
                    "type": f"{SIBLINGS}.SparseAutoEncoder"})  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(entries))
    settings = json.loads((folder / "config_sentence_transformers.json").read_text())
    settings |= {"model_type": "SparseEncoder", **({"max_active_dims": limit} if limit else {})}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    place.mkdir()
    facts: dict[str, Any] = {"input_dim": 32, "hidden_dim": LATENTS, "k": k, "k_aux": 16,
                             "normalize": normalize, "dead_threshold": 30}  # fmt: skip
    (place / "config.json").write_text(json.dumps(facts))
    drawn = torch.Generator().manual_seed(9)
    save_file(
        {
            "decoder.linear.weight": torch.randn(LATENTS, 32, generator=drawn),
            "latent_bias": torch.randn(LATENTS, generator=drawn) / 5,
            "pre_bias": torch.randn(32, generator=drawn) / 5,
            "stats_last_nonzero": torch.arange(LATENTS),
        },
        place / "model.safetensors",
        {"encoder.weight": "decoder.linear.weight"},
    )
    return folder
