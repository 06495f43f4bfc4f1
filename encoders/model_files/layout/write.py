"""Writes the module files of sentence-transformers' legacy layout, which all its versions load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.model_files.layout.files import SETTINGS
from sluice.encoders.model_files.layout.modules import OWN
from sluice.encoders.model_files.layout.read import POOLINGS
from sluice.encoders.model_files.router import write_prompts


def write_dense(
    folder: Path,
    *,
    hidden: int,
    pooling: str | Sequence[str],
    pool_prompt: bool,
    layers: Sequence[str] = (),
    normalize: bool,
    max_length: int,
    prompts: dict[str, str],
    similarity: str,
    lower_case: bool,
    top_layers: int = 1,
    own: tuple[str, ...] = (),
) -> list[Path]:
    """Write the module files of a dense encoder; the caller writes weights and tokenizer.

    ``layers`` are the modules after the pooling, whose folders are returned: ``2_Dense``,
    ``3_LayerNorm`` ... ``own`` are modules that sentence-transformers does not have.
    """
    kinds = ["Transformer", "Pooling", *layers]
    kinds += ["Normalize"] if normalize else []
    kinds += ["TopLayers"] if top_layers > 1 else []
    kinds += own
    _write_modules(folder, [(kind, f"sentence_transformers.models.{kind}") for kind in kinds])
    config: dict[str, Any] = {"word_embedding_dimension": hidden * top_layers}
    modes = [pooling] if isinstance(pooling, str) else list(pooling)
    if modes == [ours for ours in POOLINGS if ours in modes]:
        config |= {key: ours in modes for ours, (key, _) in POOLINGS.items()}
    else:  # an order of their own, which sentence-transformers reads from 6 on
        config["pooling_mode"] = [POOLINGS[ours][1] for ours in modes]
    config["include_prompt"] = pool_prompt
    write_json(folder / "1_Pooling" / "config.json", config)
    _write_settings(folder, "SentenceTransformer", prompts, similarity, max_length, lower_case)
    return [folder / f"{number}_{kind}" for number, kind in enumerate(layers, start=2)]


def write_splade(
    folder: Path,
    *,
    vocabulary: int,
    pooling: str,
    activation: str,
    max_length: int,
    prompts: dict[str, str],
    lower_case: bool,
    term_frequency: bool = False,
) -> None:
    """Write the module files of a SPLADE encoder."""
    pooling_type = "sentence_transformers.sparse_encoder.models.SpladePooling"
    _write_modules(
        folder,
        [
            ("Transformer", "sentence_transformers.models.Transformer"),
            ("SpladePooling", pooling_type),
            *([("TermFrequency", "")] if term_frequency else []),
        ],
    )
    config = {
        "pooling_strategy": pooling,
        "activation_function": activation,
        "embedding_dimension": vocabulary,
    }
    write_json(folder / "1_SpladePooling" / "config.json", config)
    # Without a model type, sentence-transformers would try to convert the folder.
    _write_settings(
        folder, "SparseEncoder", prompts, "dot", max_length, lower_case, task="fill-mask"
    )


def write_lower_case(folder: Path, lower_case: bool) -> None:
    """Note in a folder without modules that texts are lower-cased before the tokenizer."""
    if lower_case:
        write_json(folder / SETTINGS, {"do_lower_case": True})


def _write_settings(
    folder: Path,
    model_type: str,
    prompts: dict[str, str],
    similarity: str,
    max_length: int,
    lower_case: bool,
    task: str | None = None,
) -> None:
    write_prompts(folder, model_type, prompts, similarity)
    settings: dict[str, Any] = {"max_seq_length": max_length, "do_lower_case": lower_case}
    if task:
        settings |= {
            "transformer_task": task,
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "token_embeddings",
        }
    write_json(folder / SETTINGS, settings)


def _write_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    entries = []
    for number, (kind, target) in enumerate(modules):
        path = "" if number == 0 else f"{number}_{kind}"
        if path:
            (folder / path).mkdir(exist_ok=True)
        if kind in OWN:
            target = f"sluice.{kind}"
            write_json(folder / path / "config.json", {"opened_by": "sluice"})
        entries.append({"idx": number, "name": str(number), "path": path, "type": target})
    write_json(folder / "modules.json", entries)
