"""What each trained model and each index of an experiment took to make, from their manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.numbers import duration
from sluice.retrieval.experiments.output.folder import RETRIEVERS
from sluice.retrieval.experiments.training.summary import KEY
from sluice.retrieval.retrievers.folder import HEAD, read_head

MEMORY = "peak_memory_bytes"


def made_parts(output: Path, nodes: Iterable[str]) -> list[dict[str, Any]]:
    """Return name, seconds and peak memory of the models and indexes among ``nodes``, in order.

    ``peak_memory_bytes`` is that of the process while the part was made, with all it held already;
    None for a part of an earlier version.
    """
    return [
        {"part": node, "seconds": facts.get("seconds"), MEMORY: facts.get(MEMORY)}
        for node in dict.fromkeys(nodes)
        for facts in _facts(output, node)
    ]


def _facts(output: Path, node: str) -> Iterator[dict[str, Any]]:
    kind, _, name = node.partition(".")
    if kind == "train" and (manifest := output / "models" / name / MANIFEST).exists():
        yield read_json(manifest).get(KEY) or {}
    if kind == "retrievers" and (output / RETRIEVERS / name / HEAD).exists():
        yield read_head(output / RETRIEVERS / name).origin


def parts_table(parts: Iterable[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table of the parts."""
    lines = ["| made | in | peak MB |", "|---|---|---|"]
    for part in parts:
        seconds, memory = part["seconds"], part[MEMORY]
        time = "-" if seconds is None else duration(float(seconds))
        peak = "-" if memory is None else f"{memory / 1e6:,.0f}"
        lines.append(f"| {part['part']} | {time} | {peak} |")
    return lines
