"""Picks the device and the arithmetic type that a model runs with."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from sluice.encoders.foundation.errors import ConfigError

Dtype: TypeAlias = Literal["float32", "bfloat16", "auto"]
Engine: TypeAlias = Literal["torch", "onnx", "openvino"]


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
    """Return the arithmetic type: float32, or bfloat16 (``auto``: if the hardware supports it)."""
    if dtype == "auto":
        if device.type == "cuda":
            fast = torch.cuda.is_bf16_supported()
        else:
            fast = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype not in known:
        raise ConfigError(f"dtype: {dtype!r}; expected 'float32', 'bfloat16' or 'auto'")
    return known[dtype]
