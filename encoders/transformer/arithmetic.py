"""Float32, bfloat16 or bytes: the arithmetic a transformer computes in on this machine."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from sluice.encoders.backends.backend import check_dtype, has_bfloat16, say_used
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.measured import Measured, forced, measured
from sluice.encoders.model_files.options import Dtype
from sluice.encoders.transformer.packed.linear import PackedLinear, packed_linear

WORDS = 8_192  # outputs from which a linear layer is taken for the one over the vocabulary
_WORK = 1.5e8  # operations of one timing: a millisecond or two

log = logging.getLogger("sluice")


class Shape(NamedTuple):
    """A linear layer's numbers of inputs and of outputs."""

    inputs: int
    outputs: int


TYPICAL = (Shape(384, 384), Shape(384, 1536), Shape(1536, 384))  # where no model is at hand


def pick_dtype(
    dtype: Dtype, device: torch.device, module: nn.Module | None = None, *, bytewise: bool = False
) -> torch.dtype:
    """Return the arithmetic type: the one that is asked for, if the hardware is faster in it.

    ``auto`` is float32 or bfloat16. On a CPU the model's products are timed, once for a machine
    (``measured``): a processor may have the instructions and be slow in them, or only imitate them.
    Then it computes in what is faster, whatever was asked; a line says so. int8 are products of
    bytes (``ByteProduct``). They are ``bytewise`` models' alone.
    ``$SLUICE_ARITHMETIC`` overrides what is measured.
    """
    check_dtype(dtype)
    if dtype == "float32":
        return torch.float32
    if device.type != "cpu":
        if dtype == "int8":
            raise ConfigError(f"dtype: int8 is for CPUs, not {device}; write bfloat16 or auto")
        half = dtype == "bfloat16" or has_bfloat16(device.type)
        return torch.bfloat16 if half else torch.float32
    chosen = _fastest(dtype, module, bytewise=bytewise)
    if dtype not in ("auto", chosen):
        decided = chosen == forced()
        say_used(f"dtype: {dtype}: {_OVERRULED if decided else 'slower here'}", TYPES[chosen])
    return TYPES[chosen]


_OVERRULED = "$SLUICE_ARITHMETIC says otherwise"
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


def _fastest(dtype: Dtype, module: nn.Module | None, *, bytewise: bool) -> str:
    wish = forced()
    if wish in ("float32", "bfloat16"):
        return wish
    if bytewise and "int8" in (wish, dtype):
        from sluice.encoders.transformer.packed.eight_bits import multiplies_bytes  # loads numba

        if multiplies_bytes() and (
            wish == "int8" or product_times(shapes_of(module), bytewise=True).fastest == "int8"
        ):
            return "int8"
    return "bfloat16" if is_faster_in_halves(module) else "float32"


def is_faster_in_halves(module: nn.Module | None = None) -> bool:
    """Return whether this CPU computes a model's products faster in bfloat16 than in float32."""
    wish = forced()
    if wish in ("float32", "bfloat16"):
        return wish == "bfloat16"
    if not has_bfloat16("cpu"):
        return False
    times = product_times(shapes_of(module))
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


def product_times(shapes: Sequence[Shape], *, bytewise: bool = False) -> Measured:
    """Return the seconds that products of these shapes take in each arithmetic, here.

    They are one thread's, as those of a packed pass are: each thread has texts of its own.
    """
    rows = int(min(1024, max(16, _WORK / sum(2 * a * b for a, b in shapes))))

    def products(dtype: torch.dtype) -> Callable[[], object]:
        parts: list[tuple[PackedLinear, torch.Tensor]] = []

        def run() -> None:
            for inputs, outputs in shapes if not parts else ():
                layer = packed_linear([nn.Linear(inputs, outputs, bias=False)], dtype)
                floats = torch.float32 if dtype is torch.int8 else dtype
                parts.append((layer, torch.randn(rows, inputs).to(floats)))
            for layer, x in parts:
                layer(x)

        return run

    sizes = " ".join(f"{shape.inputs}x{shape.outputs}" for shape in shapes)
    task = f"products of {rows} rows, {sizes}; torch {torch.__version__}"
    names = ("float32", "bfloat16", "int8") if bytewise else ("float32", "bfloat16")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return measured(task, {name: products(TYPES[name]) for name in names})
    finally:
        torch.set_num_threads(threads)


@functools.cache
def _say(line: str) -> None:
    log.info("%s", line)
