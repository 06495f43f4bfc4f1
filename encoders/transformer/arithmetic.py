"""Float32, bfloat16 or bytes: the arithmetic a transformer computes in on this machine."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from sluice.encoders.backends.backend import check_dtype, has_bfloat16, say_float32
from sluice.encoders.foundation.measured import Measured, forced, measured
from sluice.encoders.model_files.options import Dtype
from sluice.encoders.transformer.packed.linear import PackedLinear

WORDS = 8_192  # outputs from which a linear layer is taken for the one over the vocabulary
_WORK = 3e8  # operations of one timing: a few milliseconds

log = logging.getLogger("sluice")


class Shape(NamedTuple):
    """A linear layer's numbers of inputs and of outputs."""

    inputs: int
    outputs: int


TYPICAL = (Shape(384, 384), Shape(384, 1536), Shape(1536, 384))  # where no model is at hand


def pick_dtype(dtype: Dtype, device: torch.device, module: nn.Module | None = None) -> torch.dtype:
    """Return the arithmetic type: float32, or bfloat16 where the hardware is faster in it.

    On a CPU the model's products are timed, once for a machine (``measured``): a processor may have
    the instructions and be slow in them, or only imitate them. It computes in float32 then,
    whatever was asked; a line says so. ``$SLUICE_ARITHMETIC`` overrides what is measured.
    """
    check_dtype(dtype)
    if dtype == "float32":
        return torch.float32
    if device.type != "cpu":
        half = dtype == "bfloat16" or has_bfloat16(device.type)
        return torch.bfloat16 if half else torch.float32
    half = is_faster_in_halves(module)
    if dtype == "bfloat16" and not half:
        say_float32("dtype: bfloat16")
    return torch.bfloat16 if half else torch.float32


def is_faster_in_halves(module: nn.Module | None = None) -> bool:
    """Return whether this CPU computes a model's products faster in bfloat16 than in float32."""
    wish = forced()
    if wish in ("float32", "bfloat16"):
        return wish == "bfloat16"
    if not has_bfloat16("cpu"):
        return False
    times = product_times(shapes_of(module), torch.get_num_threads())
    _say(f"arithmetic: {times}")
    return times.fastest == "bfloat16"


def shapes_of(module: nn.Module | None) -> tuple[Shape, ...]:
    """Return the different shapes of a model's linear layers, without that of its vocabulary."""
    shapes = {
        Shape(part.in_features, part.out_features)
        for part in (() if module is None else module.modules())
        if isinstance(part, nn.Linear) and 1 < part.out_features < WORDS
    }
    return tuple(sorted(shapes)) or TYPICAL


def product_times(shapes: Sequence[Shape], threads: int) -> Measured:
    """Return the seconds that products of these shapes take in each arithmetic, here."""
    rows = int(min(1024, max(16, _WORK / sum(2 * a * b for a, b in shapes))))

    def products(dtype: torch.dtype) -> Callable[[], object]:
        parts = [
            (PackedLinear(torch.ones(shape.outputs, shape.inputs), None, dtype),
             torch.ones(rows, shape.inputs, dtype=dtype))
            for shape in shapes
        ]  # fmt: skip
        return lambda: [linear(x) for linear, x in parts]

    names = " ".join(f"{shape.inputs}x{shape.outputs}" for shape in shapes)
    task = f"products of {rows} rows, {names}; threads {threads}; torch {torch.__version__}"
    with torch.inference_mode():
        return measured(
            task, {"float32": products(torch.float32), "bfloat16": products(torch.bfloat16)}
        )


@functools.cache
def _say(line: str) -> None:
    log.info("%s", line)
