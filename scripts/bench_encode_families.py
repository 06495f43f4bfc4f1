"""Folders of each family of published encoders at a size worth measuring, for bench_encode.py."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"
LENGTH = 256  # tokens of a text that both sides read
LAYERS = 4
# Four layers of 256 dimensions, whatever the family calls them.
SIZES = {
    "hidden_size": 256, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "intermediate_size": 1024, "initializer_range": 0.05, "max_position_embeddings": LENGTH + 8,
    "num_key_value_heads": 2, "head_dim": 64, "query_pre_attn_scalar": 64,
    "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    "local_attention": 64, "sliding_window": 64,
    "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": LAYERS, "initializer_factor": 1.0,
}  # fmt: skip
HEADS = {"num_heads": 4}


def folders() -> Iterator[tuple[str, Path]]:
    """Yield each family's name and folder, with random weights, in the layout it is published in.

    The folders are those of ``tests/support/families.py``, made larger.
    """
    sys.path.insert(0, str(SUPPORT))
    import families  # type: ignore[import-not-found]
    import published  # type: ignore[import-not-found]

    def network(folder: Path, architecture: str, **settings: Any) -> None:
        larger = {key: (SIZES | HEADS).get(key, value) for key, value in settings.items()}
        published.network(folder, architecture, **larger)

    modules = partial(published.modules, hidden=SIZES["hidden_size"])
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-families-")))
        stack.enter_context(patch.object(families, "network", network))
        stack.enter_context(patch.object(families, "modules", modules))
        for name, build in families.FAMILIES.items():
            folder = build(base / name.replace(" ", "-").replace(",", ""))
            settings = {"max_seq_length": LENGTH, "do_lower_case": False}
            published.write_json(folder / "sentence_bert_config.json", settings)
            yield name, folder
