"""Whether tensors are still what they were, told without reading them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


def versions(tensors: Iterable[Tensor]) -> tuple[object, ...]:
    """Return what changes when a tensor is replaced or, as torch counts it, written to."""
    return tuple(
        part for tensor in tensors for part in (_place(tensor), tensor.data_ptr(), tensor._version)
    )


def _place(tensor: Tensor) -> StorageWeakRef:
    """Return what equals only itself: an address may be given again to what replaces a tensor."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
