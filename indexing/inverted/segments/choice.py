"""Chooses whether compiled kernels or numpy work on a segment."""

from __future__ import annotations

from types import ModuleType

from sluice.indexing.kernels.calls import numpy_suffices

NUMPY_SECONDS = 1e-6  # for each posting without kernels


def kernels_for(postings: int) -> ModuleType:
    """Return ``kernels``, or ``numpy_kernels`` for so few postings that loading those is dearer."""
    if numpy_suffices(postings * NUMPY_SECONDS):
        from sluice.indexing.inverted.segments import numpy_kernels

        return numpy_kernels
    from sluice.indexing.inverted.segments import kernels

    return kernels
