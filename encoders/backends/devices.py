"""Picks the device and the arithmetic type that a model runs with."""

from __future__ import annotations

import functools
import logging
import platform
from typing import Literal, TypeAlias, get_args

import torch

from sluice.encoders.foundation.errors import ConfigError

Dtype: TypeAlias = Literal["float32", "bfloat16", "auto"]
Engine: TypeAlias = Literal["torch", "onnx", "openvino"]

log = logging.getLogger("sluice")


def pick_device(device: str) -> torch.device:
    """Return the device of a name; ``auto`` is CUDA, else MPS, else the CPU."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).cpu()  # fails if torch or the machine has no such device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        line = str(error).partition("\n")[0]
        raise ConfigError(
            f"device: {device!r} cannot be used here ({line}); leave device out, or write cpu"
        ) from error
    return chosen


def pick_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """Return the arithmetic type: float32, or bfloat16 (``auto``: if the hardware computes in it).

    A CPU that only imitates bfloat16 is several times slower and less exact in it than in
    float32, so float32 is used there whatever was asked, and a warning says so once.
    """
    if dtype not in get_args(Dtype):
        raise ConfigError(f"dtype: {dtype!r}; expected 'float32', 'bfloat16' or 'auto'")
    wanted = dtype == "bfloat16" or (dtype == "auto" and has_bfloat16(device.type))
    if wanted and device.type == "cpu" and not has_bfloat16("cpu"):
        warn_of_float32("dtype: bfloat16")
        return torch.float32
    return torch.bfloat16 if wanted else torch.float32


@functools.cache
def has_bfloat16(device: str) -> bool:
    """Return whether a type of device multiplies in bfloat16 itself and does not imitate it."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    if device != "cpu":
        return False
    if platform.machine().lower() in ("x86_64", "amd64", "i686"):
        return bool(torch.cpu._is_avx512_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@functools.cache
def warn_of_float32(setting: str) -> None:
    """Say, once for each setting, that float32 is used in place of bfloat16."""
    log.warning(
        "%s: this processor has no bfloat16 arithmetic and is slower in it; float32 is used",
        setting,
    )
