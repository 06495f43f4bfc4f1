"""What the processor can do, as far as kernels are written for it."""

from __future__ import annotations

from functools import cache

from llvmlite import binding  # type: ignore[import-untyped]
from numba.core import config


@cache
def has_feature(name: str) -> bool:
    """Return whether numba compiles for a processor that has a feature, as LLVM names it."""
    if config.CPU_FEATURES is not None:
        return f"+{name}" in config.CPU_FEATURES.split(",")
    if config.CPU_NAME is not None:
        return False
    return bool(binding.get_host_cpu_features().get(name, False))
