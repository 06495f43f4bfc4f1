"""Writes token encoders' folders: PyLate's layout, or where it cannot say all, that of ST 6."""

from __future__ import annotations

from pathlib import Path

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.late_interaction.layout import TokenLayout
from sluice.encoders.model_files.layout import SETTINGS, read_object, write_modules, write_sidecar
from sluice.encoders.model_files.router import PROMPTS
from sluice.encoders.transformer.vector_layers import VectorLayer, write_layers

_NATIVE = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "MultiVectorMask": (
        "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
    ),
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "HierarchicalTokenPooling": (
        "sentence_transformers.multi_vector_encoder.modules.token_pooling.HierarchicalTokenPooling"
    ),
}
_TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


def write_token_folder(
    folder: Path, layout: TokenLayout, projection: VectorLayer | None, *, lower_case: bool
) -> None:
    """Write the module files; the caller writes network and tokenizer."""
    layers = [] if projection is None else projection.chain
    says_all = (
        layers
        and layout.normalize
        and all(layout.markers.values())
        and layout.expand_to in (0, layout.query_length)
        and layout.mask is None
        and layout.pool_factor == 1
    )
    write = _write_pylate if says_all else _write_native
    write(folder, layout, len(layers), lower_case)
    places = [folder / f"{number}_Dense" for number in range(1, len(layers) + 1)]
    write_layers(projection, places)
    for place in () if says_all else places:
        path = place / "config.json"
        write_json(path, {**read_object(path), **_TOKENS})
    write_sidecar(folder, {"type": "tokens"})


def _write_pylate(folder: Path, layout: TokenLayout, layers: int, lower_case: bool) -> None:
    kinds = [
        ("Transformer", "sentence_transformers.models.Transformer"),
        *[("Dense", "pylate.models.Dense.Dense")] * layers,
    ]
    write_modules(folder, kinds)
    settings = {
        "model_type": "ColBERT",
        "prompts": {side: prompt for side, prompt in layout.prompts.items() if prompt},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": layout.markers["query"],
        "document_prefix": layout.markers["document"],
        "query_length": layout.query_length,
        "document_length": layout.document_length,
        "do_query_expansion": bool(layout.expand_to),
        "attend_to_expansion_tokens": layout.attend,
        "skiplist_words": list(layout.skip_words),
    }
    write_json(folder / PROMPTS, settings)
    longest = max(layout.query_length or 0, layout.document_length or 0)
    write_json(folder / SETTINGS, {"max_seq_length": longest, "do_lower_case": lower_case})


def _write_native(folder: Path, layout: TokenLayout, layers: int, lower_case: bool) -> None:
    names = [
        "Transformer",
        *["Dense"] * layers,
        "MultiVectorMask",
        *(["Normalize"] if layout.normalize else []),
        *(["HierarchicalTokenPooling"] if layout.pool_factor > 1 else []),
    ]
    places = write_modules(folder, [(name, _NATIVE[name]) for name in names])
    mask = {
        "skiplist_words": list(layout.skip_words), "skiplist_tasks": ["document"],
        "keep_only_token_ids": None,
    }  # fmt: skip
    write_json(places["MultiVectorMask"] / "config.json", mask)
    if layout.normalize:
        write_json(places["Normalize"] / "config.json", _TOKENS)
    if layout.pool_factor > 1:
        pooling = {
            "pool_factor": layout.pool_factor,
            "num_protected_tokens": layout.protected_tokens,
            "normalize_embeddings": layout.normalize_pooled,
            "tasks": ["document"],
        }
        write_json(places["HierarchicalTokenPooling"] / "config.json", pooling)
    settings = {
        "model_type": "MultiVectorEncoder", "prompts": {
            side: marker + layout.prompts[side] for side, marker in layout.markers.items()
        },
        "default_prompt_name": None, "similarity_fn_name": "maxsim",
    }  # fmt: skip
    write_json(folder / PROMPTS, settings)
    expansion = {
        "strategy": "fixed" if layout.expand_to == layout.query_length else "min",
        "attend": layout.attend, "token": layout.mask, "length": layout.expand_to,
    }  # fmt: skip
    own = {
        "transformer_task": "feature-extraction",
        "modality_config": {
            "text": {"method": "forward", "method_output_name": "last_hidden_state"}
        },
        "module_output_name": "token_embeddings",
        "query_length": layout.query_length,
        "document_length": layout.document_length,
        "query_expansion": expansion if layout.expand_to else None,
        **({"do_lower_case": True} if lower_case else {}),
    }
    write_json(folder / SETTINGS, own)
