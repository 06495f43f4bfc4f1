"""Opens the folder that the authors' code saves: ``config.json`` of a dual encoder, its weights.

(Killingback, Zeng and Zamani 2025; the layout is that of github.com/jfkback/hypencoder-paper.) Its
network is named, not described: the base model that ``model_name_or_path`` names has to be here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.foundation.q_net import QNetShape
from sluice.encoders.model_files.layout import read_object
from sluice.encoders.model_files.loading import Loaded, load
from sluice.encoders.model_files.locate import local_folder
from sluice.encoders.model_files.remote_code import LOCAL
from sluice.encoders.model_files.weights.files import INDEX, WEIGHTS, check_weights, shards_in
from sluice.encoders.own.hypencoder.head import HyperHead

QUERY, PASSAGE = "query_encoder", "passage_encoder"
# What the authors train with, and these q-nets are.
CONVERTER: Final = {
    "activation_type": "relu", "do_layer_norm": True, "do_residual": True,
    "do_residual_on_last": False, "layer_norm_before_residual": True,
}  # fmt: skip


class Published(NamedTuple):
    """What the folder says: the base network, hidden layers of q-nets, and the pooling."""

    base: str
    hidden_layers: int
    dim: int
    pooling: str


def published_in(folder: Path | None) -> Published | None:
    """Return what a folder of the authors' says; None for another. ``ModelError``: not built."""
    file = folder / "config.json" if folder is not None else Path()
    config = read_object(file) if file.is_file() else {}
    query, passage = (config.get(f"{side}_kwargs") for side in (QUERY, PASSAGE))
    if not isinstance(query, dict) or "converter_kwargs" not in query:
        return None
    passage = passage if isinstance(passage, dict) else {}
    shape = dict(query["converter_kwargs"] or {})
    sizes: Any = shape.get("vector_dimensions")
    pooling = passage.get("pooling_type", "cls")
    base = query.get("model_name_or_path")
    others = [name for name, own in CONVERTER.items() if shape.get(name, own) != own]
    same = config.get("shared_encoder") is True and base == passage.get("model_name_or_path")
    if not same or not isinstance(base, str):
        raise ModelError(f"{file}: two networks; expected shared_encoder: true")
    whole = isinstance(sizes, list) and len(sizes) > 1 and all(type(n) is int for n in sizes)
    if not whole or sizes[-1] != 1 or len({*sizes[:-1]}) != 1 or sizes[0] < 1:
        raise ModelError(f"{file}: vector_dimensions {sizes!r:.80}; expected [d, ..., d, 1]")
    if others or pooling != "cls":
        raise ModelError(
            f"{file}: {', '.join(others) or f'pooling_type {pooling!r}'}: not what the authors' "
            "models were published with, and not built"
        )
    return Published(base, len(sizes) - 2, sizes[0], pooling)


def with_published_weights(folder: Path, noted: Published) -> tuple[Loaded, dict[str, Any]]:
    """Return the base network with the folder's weights, and the state of its hyper-head."""
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoTokenizer

    check_weights(folder, folder)
    files = {WEIGHTS}
    if not (folder / WEIGHTS).exists():
        files = {*shards_in(folder / INDEX, ".safetensors").values()}
    state = {n: v for name in files for n, v in load_file(folder / name).items()}
    if local_folder(noted.base) is None:
        raise ModelError(
            f"{folder}: its network is {noted.base}, which is not on this machine; fetch it, or "
            "name its folder in query_encoder_kwargs and passage_encoder_kwargs of config.json"
        )
    loaded = load(AutoModel, noted.base)
    sides = [f"{side}.transformer." for side in (QUERY, PASSAGE)]
    network = {n.removeprefix(b): v for b in sides for n, v in state.items() if n.startswith(b)}
    own = loaded.model.state_dict()
    fresh = {name for name in own if "pooler" in name or name.endswith("position_ids")}
    needed, none = sorted(own.keys() - fresh), torch.empty(0)
    wrong = [n for n in needed if network.get(n, none).shape != own[n].shape]
    if wrong:
        raise ModelError(
            f"{folder}: {wrong[0]} is missing or of another size than {noted.base} has it"
        )
    loaded.model.load_state_dict({**own, **{n: v for n, v in network.items() if n in own}})
    tokenizer = loaded.tokenizer
    if (folder / "tokenizer_config.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
    return loaded._replace(folder=folder, tokenizer=tokenizer), _head(state, noted, folder)


def made_head(network: Any, state: dict[str, Any], noted: Published, folder: Path) -> HyperHead:
    """Return the hyper-head with its weights."""
    hidden = int(network.config.hidden_size)
    if noted.dim != hidden:
        raise ModelError(
            f"{folder}: q-nets over {noted.dim} dimensions, and documents have {hidden}: the "
            "network is another than it was trained with"
        )
    head = HyperHead(hidden, QNetShape(hidden, noted.hidden_layers), "repository")
    own = head.state_dict()
    for name in own:
        if state[name].shape != own[name].shape:
            raise ModelError(f"{folder}: {name} of its hyper-head is {list(state[name].shape)}")
    head.load_state_dict({name: state[name].float() for name in own})
    return head


def _head(state: dict[str, Any], noted: Published, folder: Path) -> dict[str, Any]:
    """Return the hyper-head's tensors by our names."""
    count = noted.hidden_layers + 1
    head = {}
    sides = [("weight", n) for n in range(count)] + [("bias", n) for n in range(count - 1)]
    for kind, number in sides:
        place = number + count * (kind == "bias")
        base = "matrices" if kind == "weight" else "vectors"
        ours = f"{'weights' if kind == 'weight' else 'biases'}.{number}."
        theirs = {
            "base": f"hyper_base_{base}.{number}",
            "table": f"{kind}_query_embeddings.{number}",
            **{f"update.{p}": f"{kind}_hyper_projection.{number}.{p}" for p in ("weight", "bias")},
            **{f"key.{p}": f"key_projections.{place}.{p}" for p in ("weight", "bias")},
            **{f"value.{p}": f"value_projections.{place}.{p}" for p in ("weight", "bias")},
        }
        for name, other in theirs.items():
            if f"{QUERY}.{other}" not in state:
                raise ModelError(f"{folder}: no {QUERY}.{other} in its weights")
            value = state[f"{QUERY}.{other}"]
            head[ours + name] = (
                value[0] if name in ("base", "table") and value.dim() == 3 else value
            )
    return head
