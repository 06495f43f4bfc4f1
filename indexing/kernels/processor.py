"""What the processor can do, as far as kernels are written for it; its prefetch instruction."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils, config, types
from numba.extending import intrinsic

LINE = 32  # 16-bit numbers in a line of the cache
_READ, _KEEP, _DATA = 0, 3, 1  # the arguments of llvm.prefetch


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing_context: Any, array: Any, place: Any) -> Any:
    """Begin to load ``array[place]`` into the cache; any place is allowed, none is ever read."""
    signature = types.void(array, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        structure = context.make_array(array_type)(context, builder, arguments[0])
        pointer = cgutils.get_item_pointer(
            context, builder, array_type, structure, [arguments[1]], wraparound=False
        )
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, number, number, number]),
            "llvm.prefetch.p0",
        )
        flags = [number(_READ), number(_KEEP), number(_DATA)]
        builder.call(function, [builder.bitcast(pointer, byte), *flags])
        return context.get_dummy_value()

    return signature, generate


@cache
def has_feature(name: str) -> bool:
    """Return whether numba compiles for a processor that has a feature, as LLVM names it."""
    if config.CPU_FEATURES is not None:
        return f"+{name}" in config.CPU_FEATURES.split(",")
    if config.CPU_NAME is not None:
        return False
    return bool(binding.get_host_cpu_features().get(name, False))
