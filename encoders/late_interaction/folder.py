"""A token encoder's folder: its settings with a caller's arguments, and how it is written."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.encoder import Side
from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.late_interaction.layout import TokenLayout, know_markers, usual_markers
from sluice.encoders.late_interaction.pruning import VORONOI
from sluice.encoders.model_files.layout import SETTINGS, read_object, write_modules, write_sidecar
from sluice.encoders.model_files.loading import lengths_of as model_lengths
from sluice.encoders.model_files.router import PROMPTS
from sluice.encoders.transformer.added_tokens import make_tokens
from sluice.encoders.transformer.projection import (
    as_projection,
    begins_as_inputs,
    cut_vectors,
    draw_projection,
)
from sluice.encoders.transformer.vector_layers import (
    VectorLayer,
    linear_projection,
    read_layers,
    write_layers,
)

log = logging.getLogger("sluice")
DIM = 128  # of a new projection
SEED = 13  # of what is drawn, where none is given


class Given(NamedTuple):
    """What a caller says of the parts that a model may lack; None is as the folder says."""

    projection: int | bool | dict[str, Any] | None
    dim: int | None
    query_marker: str | None
    document_marker: str | None
    seed: int | None


def new_parts(
    layout: TokenLayout, folder: Path, model: Any, tokenizer: Any, given: Given
) -> tuple[VectorLayer | None, dict[str, Any]]:
    """Return the projection and both markers, and make tokens of the markers.

    A projection drawn at random is warned of, and a ``seed`` that draws nothing is refused.
    """
    seed = SEED if given.seed is None else whole_number(given.seed, "seed", 0)
    known = layout.trained or layout.projections or layout.linear is not None
    drawn = not known if given.projection is None else given.projection is not False
    words = len(tokenizer)
    head = head_of(layout, int(model.config.hidden_size), given.projection, given.dim, seed)
    markers = markers_of(layout, model, tokenizer, given.query_marker, given.document_marker, seed)
    if drawn and head is not None and not begins_as_inputs(head):
        log.warning(
            "%s: a new projection to %s dimensions was drawn at random; train it before it is "
            "searched with",
            folder,
            head.outputs,
        )
    if given.seed is not None and not drawn and len(tokenizer) == words:
        raise ConfigError(
            f"seed: {given.seed}: draws a new projection or marker, and {folder} gets none; leave "
            "seed out, or give projection: 128, to be trained"
        )
    return head, markers


def head_of(
    layout: TokenLayout, hidden: int, spec: int | bool | dict[str, Any] | None, dim: int | None,
    seed: int,
) -> VectorLayer | None:  # fmt: skip
    """Return the projection over states of ``hidden`` dimensions: new, the folder's, or none."""
    if spec is True:
        raise ConfigError("projection: true; expected a number of dimensions, or false for none")
    if spec is not None:
        if dim is not None:
            raise ConfigError(
                "dim: beside projection, which has its own number of dimensions; remove one of them"
            )
        return draw_projection(hidden, spec, seed, bias=False) if spec is not False else None
    if dim is not None:
        whole_number(dim, "dim", 1)
    if layout.linear is not None:
        head: VectorLayer | None = linear_projection(layout.linear, hidden)
    elif layout.projections or layout.trained:
        head = read_layers(layout.projections, hidden)
    else:
        return draw_projection(hidden, DIM if dim is None else dim, seed, bias=False)
    cut = cut_vectors(head, hidden, dim, {})
    return cut.projection if cut.shortened is None else as_projection(hidden, cut.shortened)


def markers_of(
    layout: TokenLayout, model: Any, tokenizer: Any, query: str | None, document: str | None,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the markers of both sides, and make tokens of them."""
    markers = layout.markers if layout.trained else usual_markers(tokenizer)
    new: dict[Side, str] = {}
    sides: tuple[tuple[Side, str | None], ...] = (("query", query), ("document", document))
    for side, marker in sides:
        if marker is not None:
            new[side] = marker
    if layout.trained:
        know_markers(tokenizer, markers)
    both = {**markers, **new}
    make_tokens(model, tokenizer, (new if layout.trained else both).values(), seed)
    return {f"{side}_marker": both.get(side, "") for side, _ in sides}


def lengths_of(
    layout: TokenLayout, model: Any, tokenizer: Any, query: int | None, document: int | None
) -> dict[str, int]:
    """Return the length of each side in tokens: as given, as noted, or as long as texts may be."""
    usual, limit = model_lengths(tokenizer, model.config, layout.max_length)
    lengths = {}
    for name, given, noted in (
        ("query_length", query, layout.query_length),
        ("document_length", document, layout.document_length),
    ):
        length = min(noted or usual, limit) if given is None else given
        lengths[name] = whole_number(length, name, 4, limit)
    return lengths


def expansion_of(layout: TokenLayout, length: int, given: bool | int | None) -> int:
    """Return the number of tokens that queries are filled up to."""
    if given is None:
        noted = length if layout.expand_to is None else layout.expand_to
        # A length given anew goes for both, where queries were of one length.
        return length if noted and noted == layout.query_length else min(noted, length)
    if isinstance(given, bool):
        return length if given else 0
    return whole_number(given, "expand_queries", 1)


def check_words(tokenizer: Any, words: Sequence[str]) -> None:
    """Log a warning that names the words without a token of their own."""
    known = tokenizer.get_vocab()
    unknown = [word for word in words if word not in known]
    if unknown:
        log.warning(
            "skip_words: %s: not one token each in the model's vocabulary; they keep their vectors",
            " ".join(unknown),
        )


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
    own = {"pool_factor": layout.pool_factor, "protected_tokens": layout.protected_tokens}
    write_sidecar(folder, {"type": "tokens", **({VORONOI: own} if layout.prunes else {})})


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
    pools = layout.pool_factor > 1 and not layout.prunes  # theirs knows Ward's clusters alone
    names = [
        "Transformer",
        *["Dense"] * layers,
        "MultiVectorMask",
        *(["Normalize"] if layout.normalize else []),
        *(["HierarchicalTokenPooling"] if pools else []),
    ]
    places = write_modules(folder, [(name, _NATIVE[name]) for name in names])
    mask = {
        "skiplist_words": list(layout.skip_words), "skiplist_tasks": ["document"],
        "keep_only_token_ids": None,
    }  # fmt: skip
    write_json(places["MultiVectorMask"] / "config.json", mask)
    if layout.normalize:
        write_json(places["Normalize"] / "config.json", _TOKENS)
    if pools:
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
