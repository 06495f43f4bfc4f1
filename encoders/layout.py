"""The sentence-transformers folder layout: both spellings read, the legacy one written.

The legacy layout loads in old and new versions of sentence-transformers alike. What it has no room
for (a length per side, top-k, SPLADE-doc) is in ``sluice.json`` beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoders.errors import ModelError

SIDECAR = "sluice.json"
_SPELLINGS = {  # ours -> sentence-transformers' (legacy key, new value)
    "cls": ("pooling_mode_cls_token", "cls"),
    "mean": ("pooling_mode_mean_tokens", "mean"),
    "max": ("pooling_mode_max_tokens", "max"),
    "mean_sqrt": ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    "weighted_mean": ("pooling_mode_weightedmean_tokens", "weightedmean"),
    "last": ("pooling_mode_lasttoken", "lasttoken"),
}


@dataclass(slots=True)
class Layout:
    """What a model folder says about itself beyond weights and tokenizer."""

    modules: tuple[str, ...] = ()  # class names in order: Transformer, Pooling, Dense, Normalize
    pooling: str | None = None
    pool_prompt: bool = True
    splade_pooling: str | None = None
    activation: str = "relu"
    projection: Path | None = None  # the Dense module's folder
    max_length: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str | None = None
    sidecar: dict[str, Any] = field(default_factory=dict)


def read_layout(folder: Path) -> Layout:
    """Read what ``folder`` says; a bare transformers folder gives an empty ``Layout``."""
    layout = Layout(sidecar=_json(folder / SIDECAR))
    entries = _json(folder / "modules.json") or []
    layout.modules = tuple(str(entry["type"]).rsplit(".", 1)[-1] for entry in entries)
    for entry, kind in zip(entries, layout.modules, strict=True):
        place = folder / str(entry["path"])
        if kind == "Pooling":
            _read_pooling(layout, place)
        elif kind == "SpladePooling":
            config = _json(place / "config.json")
            layout.splade_pooling = str(config.get("pooling_strategy", "max"))
            layout.activation = str(config.get("activation_function", "relu"))
        elif kind == "Dense":
            if layout.projection:
                raise ModelError(f"{folder}: several Dense modules; one is supported")
            layout.projection = place
        elif kind not in ("Transformer", "MLMTransformer", "Normalize"):
            raise ModelError(
                f"{folder / 'modules.json'}: module {entry['type']!r} is not one Sluice runs "
                "(Transformer, Pooling, Dense, Normalize, SpladePooling)"
            )
    lengths = _json(folder / "sentence_bert_config.json").get("max_seq_length")
    layout.max_length = int(lengths) if lengths else None
    settings = _json(folder / "config_sentence_transformers.json")
    layout.prompts = {k: str(v) for k, v in (settings.get("prompts") or {}).items()}
    layout.default_prompt = settings.get("default_prompt_name")
    layout.similarity = settings.get("similarity_fn_name")
    return layout


def _read_pooling(layout: Layout, place: Path) -> None:
    config = _json(place / "config.json")
    mode = config.get("pooling_mode")
    named = [ours for ours, (key, _) in _SPELLINGS.items() if config.get(key)]
    if mode is not None:
        modes = [mode] if isinstance(mode, str) else list(mode)
        named = [ours for ours, (_, new) in _SPELLINGS.items() if new in modes]
    if len(named) != 1:
        raise ModelError(f"{place / 'config.json'}: one pooling mode is supported, found {named}")
    layout.pooling = named[0]
    layout.pool_prompt = bool(config.get("include_prompt", True))


def write_dense(
    folder: Path,
    *,
    hidden: int,
    pooling: str,
    pool_prompt: bool,
    projected: bool,
    normalize: bool,
    max_length: int,
    prompts: dict[str, str],
    similarity: str,
) -> None:
    """Write the module files of a dense encoder (weights and tokenizer are the caller's)."""
    kinds = ["Transformer", "Pooling"]
    kinds += ["Dense"] if projected else []
    kinds += ["Normalize"] if normalize else []
    _write_modules(folder, [(kind, f"sentence_transformers.models.{kind}") for kind in kinds])
    config: dict[str, Any] = {"word_embedding_dimension": hidden}
    config |= {key: ours == pooling for ours, (key, _) in _SPELLINGS.items()}
    config["include_prompt"] = pool_prompt
    _write(folder / "1_Pooling" / "config.json", config)
    _write_settings(folder, "SentenceTransformer", prompts, similarity, max_length)


def write_splade(
    folder: Path,
    *,
    vocabulary: int,
    pooling: str,
    activation: str,
    max_length: int,
    prompts: dict[str, str],
) -> None:
    """Write the module files of a SPLADE encoder."""
    pooling_type = "sentence_transformers.sparse_encoder.models.SpladePooling"
    _write_modules(
        folder,
        [
            ("Transformer", "sentence_transformers.models.Transformer"),
            ("SpladePooling", pooling_type),
        ],
    )
    config = {
        "pooling_strategy": pooling,
        "activation_function": activation,
        "embedding_dimension": vocabulary,
    }
    _write(folder / "1_SpladePooling" / "config.json", config)
    # Without the model type, sentence-transformers takes the folder for one to convert.
    _write_settings(folder, "SparseEncoder", prompts, "dot", max_length, task="fill-mask")


def _write_settings(
    folder: Path,
    model_type: str,
    prompts: dict[str, str],
    similarity: str,
    max_length: int,
    task: str | None = None,
) -> None:
    _write(
        folder / "config_sentence_transformers.json",
        {
            "model_type": model_type,
            "prompts": prompts,
            "default_prompt_name": None,
            "similarity_fn_name": similarity,
        },
    )
    settings: dict[str, Any] = {"max_seq_length": max_length, "do_lower_case": False}
    if task:
        settings |= {
            "transformer_task": task,
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "token_embeddings",
        }
    _write(folder / "sentence_bert_config.json", settings)


def _write_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    entries = []
    for number, (kind, target) in enumerate(modules):
        path = "" if number == 0 else f"{number}_{kind}"
        if path:
            (folder / path).mkdir(exist_ok=True)
        entries.append({"idx": number, "name": str(number), "path": path, "type": target})
    _write(folder / "modules.json", entries)


def write_sidecar(folder: Path, facts: dict[str, Any]) -> None:
    """Write ``sluice.json``: the kind of encoder and what the layout has no room for."""
    _write(folder / SIDECAR, {"version": 1, **facts})


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _json(path: Path) -> Any:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not readable as JSON ({error})") from None
