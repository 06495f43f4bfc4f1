"""Keeps what each dev query had at every evaluation, for the comparison with the start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.training.protocol import DevMeasures

VALUES = "dev-values.json"  # in the output of a training run: every dev query's value by step


def note_values(output: Path, step: int, measures: Mapping[str, float]) -> None:
    """Keep every query's value at a step, for the comparison with the start."""
    if isinstance(measures, DevMeasures):
        path = output / VALUES
        noted = read_json(path) if path.exists() and step else {}
        write_json(path, {**noted, str(step): list(measures.by_query)})
