"""Sparse codes of dense vectors by a sparse autoencoder: contrastive sparse representation (CSR).

May import: `encoders.splade.term_selection`, `encoders.dense.encoder`, `encoders.transformer` and
below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.own.csr.encoder import CsrEncoder as CsrEncoder
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
