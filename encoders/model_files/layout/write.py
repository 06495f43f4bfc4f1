"""Writes the module files of sentence-transformers' legacy layout, which all its versions load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.model_files.layout.read import OWN, OWN_HOME, POOLINGS, SETTINGS, append_module
from sluice.encoders.model_files.router import PROMPTS, write_prompts


def write_dense(
    folder: Path,
    *,
    hidden: int,
    pooling: str | Sequence[str],
    pool_prompt: bool,
    layers: Sequence[str] = (),
    normalize: bool,
    lengths: Mapping[str, int],
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
    write_modules(folder, [(kind, f"sentence_transformers.models.{kind}") for kind in kinds])
    config: dict[str, Any] = {"word_embedding_dimension": hidden * top_layers}
    modes = [pooling] if isinstance(pooling, str) else list(pooling)
    if modes == [ours for ours in POOLINGS if ours in modes]:
        config |= {key: ours in modes for ours, (key, _) in POOLINGS.items()}
    else:  # an order of their own, which sentence-transformers reads from 6 on
        config["pooling_mode"] = [POOLINGS[ours][1] for ours in modes]
    config["include_prompt"] = pool_prompt
    write_json(folder / "1_Pooling" / "config.json", config)
    _write_settings(folder, "SentenceTransformer", prompts, similarity, lengths, lower_case)
    return [folder / f"{number}_{kind}" for number, kind in enumerate(layers, start=2)]


def write_splade(
    folder: Path,
    *,
    vocabulary: int,
    pooling: str,
    activation: str,
    lengths: Mapping[str, int],
    prompts: dict[str, str],
    lower_case: bool,
) -> None:
    """Write the module files of a SPLADE encoder."""
    kinds = ("MLMTransformer", "SpladePooling")
    home = "sentence_transformers.sparse_encoder.models"
    write_modules(folder, [(kind, f"{home}.{kind}") for kind in kinds])
    config = {
        "pooling_strategy": pooling,
        "activation_function": activation,
        "word_embedding_dimension": vocabulary,
    }
    write_json(folder / "1_SpladePooling" / "config.json", config)
    # Without a model type, sentence-transformers would try to convert the folder.
    _write_settings(folder, "SparseEncoder", prompts, "dot", lengths, lower_case)


def write_ranker(folder: Path, *parts: str) -> Path:
    """Write the module files of a reranker that other libraries run as all of ``parts`` or not.

    Return the folder of the first, which is made: elsewhere than at the top, where a classifier of
    random weights would be taken for it.
    """
    places = [append_module(folder, part) for part in parts]
    places[0].mkdir()
    write_json(folder / PROMPTS, {"model_type": "CrossEncoder"})
    return places[0]


def write_lower_case(folder: Path, lower_case: bool) -> None:
    """Note in a folder without modules that texts are lower-cased before the tokenizer."""
    if lower_case:
        write_json(folder / SETTINGS, {"do_lower_case": True})


def _write_settings(
    folder: Path,
    model_type: str,
    prompts: dict[str, str],
    similarity: str,
    lengths: Mapping[str, int],
    lower_case: bool,
) -> None:
    write_prompts(folder, model_type, prompts, similarity)
    settings = {"max_seq_length": max(lengths.values()), "do_lower_case": lower_case}
    if len(set(lengths.values())) > 1:  # read by sentence-transformers 6
        settings |= {f"{side}_length": length for side, length in lengths.items()}
    write_json(folder / SETTINGS, settings)


def write_modules(folder: Path, modules: list[tuple[str, str]]) -> dict[str, Path]:
    """Write ``modules.json`` and make the folders; return the last of each kind."""
    entries, places = list[dict[str, Any]](), dict[str, Path]()
    for number, (kind, target) in enumerate(modules):
        path = f"{number}_{kind}" if number else ""
        places[kind] = folder / path
        places[kind].mkdir(exist_ok=True)
        if kind in OWN:
            target = f"{OWN_HOME}.{kind}"
            write_json(places[kind] / "config.json", {"opened_by": "sluice"})
        entries.append({"idx": number, "name": str(number), "path": path, "type": target})
    write_json(folder / "modules.json", entries)
    return places
