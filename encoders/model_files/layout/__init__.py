"""Reads both spellings of sentence-transformers' folder layout, and writes the legacy one.

Old and new versions of sentence-transformers load the legacy layout. What it cannot express (a
length per side, top-k, SPLADE-doc) is in ``sluice.json`` beside it.

May import: `encoders.foundation`, `encoders.model_files.router`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.model_files.layout.read import (
        ADAPTER as ADAPTER,
        AUTOENCODER as AUTOENCODER,
        FLOORS as FLOORS,
        OWN_HOME as OWN_HOME,
        RUN_THERE as RUN_THERE,
        SETTINGS as SETTINGS,
        SIDECAR as SIDECAR,
        VECTOR_MODULES as VECTOR_MODULES,
        VERSION as VERSION,
        Layout as Layout,
        VectorModule as VectorModule,
        append_module as append_module,
        check_modules as check_modules,
        is_model2vec as is_model2vec,
        is_static_folder as is_static_folder,
        length_in as length_in,
        network_config as network_config,
        own_modules as own_modules,
        position_limit as position_limit,
        read_layout as read_layout,
        read_modules as read_modules,
        read_object as read_object,
        read_sidecar as read_sidecar,
        refuse_others as refuse_others,
        token_layout as token_layout,
        transformer_folder as transformer_folder,
        write_sidecar as write_sidecar,
    )
    from sluice.encoders.model_files.layout.write import (
        write_dense as write_dense,
        write_lower_case as write_lower_case,
        write_modules as write_modules,
        write_ranker as write_ranker,
        write_splade as write_splade,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
