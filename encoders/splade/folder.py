"""Reads and writes a SPLADE encoder's folder.

It holds one network, or a network for documents and term weights for queries (sentence-
transformers' inference-free layout: a Router with ``query`` and ``document``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import map_array
from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout import (
    FLOORS,
    Layout,
    append_module,
    length_in,
    network_config,
    read_object,
    read_sidecar,
    transformer_folder,
    write_sidecar,
    write_splade,
)
from sluice.encoders.model_files.loading import Loaded, lowers, save
from sluice.encoders.model_files.router import (
    PROMPTS,
    is_router,
    read_routes,
    route_folder,
    whole_route,
    write_router,
)
from sluice.encoders.splade.settings import check_static
from sluice.encoders.splade.terms import (
    STATIC_TYPE,
    read_idf_json,
    read_query_weights,
    write_query_weights,
)

if TYPE_CHECKING:
    from torch import Tensor

    from sluice.encoders.splade.encoder import SpladeEncoder


# Settings of the encoder in ``sluice.json``, which sentence-transformers' files cannot hold.
NOTED = (
    "query_model", "lexical", "prune_below", "prune_ratio", "query_top_k", "document_top_k",
    "prune_quantile", "term_frequency",
)  # fmt: skip
IDF_FILE = "idf.json"  # token -> weight: query weights in a folder of one network
LONGEST = 1_000_000  # tokens; tokenizers without a limit claim more


class SpladeFolder(NamedTuple):
    """Where the parts of a saved encoder are.

    ``network`` is the network's model folder, ``weights`` the folder of the query's term weights or
    a file ``idf.json`` (None: neither), ``sidecar`` the contents of ``sluice.json``.
    """

    network: Path
    weights: Path | None
    sidecar: dict[str, Any]

    @classmethod
    @contextlib.contextmanager
    def opened(cls, folder: Path) -> Iterator[SpladeFolder]:
        """Yield the parts of a folder, ours or sentence-transformers'."""
        sidecar = read_sidecar(folder)
        if is_router(folder):
            weights = read_routes(folder)["query"][0][1]
            with route_folder(folder, "document") as network:
                yield cls(network, weights, sidecar)
        else:
            file = folder / IDF_FILE
            yield cls(folder, file if file.exists() else None, sidecar)

    @property
    def is_static(self) -> bool:
        """Whether the folder is one of sentence-transformers' inference-free encoders."""
        return self.weights is not None and self.weights.name != IDF_FILE and not self.sidecar

    def query_weights(self, tokenizer: Any, size: int) -> Tensor | None:
        """Return the query's term weights ``[size]``, None without any."""
        if self.weights is None:
            return None
        if self.weights.name == IDF_FILE:
            return read_idf_json(self.weights, tokenizer, size)
        return read_query_weights(self.weights, size)

    def term_floors(self) -> NDArray[np.float32] | None:
        """Return the weights that ``prune_quantile`` cuts at, ``[vocab]``, None without any."""
        file = self.network / FLOORS
        if not file.exists():
            return None
        try:
            floors = np.array(map_array(file))
        except (OSError, ValueError) as error:
            raise ModelError(f"{file}: not readable as an array ({error})") from None
        if floors.dtype != np.float32 or floors.ndim != 1 or not np.isfinite(floors).all():
            raise ModelError(
                f"{file}: {floors.dtype} {list(floors.shape)}, expected finite float32"
            )
        return cast("NDArray[np.float32]", floors)

    def query_length(self, tokenizer: Any) -> int | None:
        """Return the length at which sentence-transformers cuts a query, special tokens counted."""
        if not self.is_static or self.weights is None:
            return None
        noted = read_object(self.weights / "tokenizer_config.json").get("model_max_length")
        if not isinstance(noted, int) or noted > LONGEST:
            return None
        return noted + int(tokenizer.num_special_tokens_to_add())

    def settings(
        self, layout: Layout, loaded: Loaded, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the settings that the folder notes, replaced by those of ``arguments``."""
        given = {key: value for key, value in arguments.items() if value is not None}
        prompts = self.network / PROMPTS
        most = length_in(read_object(prompts), "max_active_dims", prompts)
        settings = {
            **({} if most is None else {"query_top_k": most, "document_top_k": most}),
            "pooling": layout.splade_pooling or "max",
            "activation": layout.activation,
            **{key: layout.sidecar[key] for key in NOTED if key in layout.sidecar},
            **({"query_model": "idf"} if self.is_static else {}),
            **given,
        }
        query_model = settings.get("query_model", "shared")
        # Only what is asked for: a folder may note what an earlier version did not refuse.
        check_static(query_model, given.get("lexical", "none"), given.get("query_top_k"))
        if query_model == "idf":
            size = int(loaded.model.config.vocab_size)
            settings["idf"] = self.query_weights(loaded.tokenizer, size)
        if settings.get("prune_quantile") == self.sidecar.get("prune_quantile"):
            settings["term_floors"] = self.term_floors()  # another quantile has others
        return settings


def has_mlm_head(folder: Path) -> bool:
    """Return whether a model folder's architecture is a masked language model."""
    config = network_config(transformer_folder(folder))
    names = read_object(config).get("architectures")
    return isinstance(names, list) and any(str(name).endswith("ForMaskedLM") for name in names)


def save_splade(encoder: SpladeEncoder, folder: Path) -> None:
    """Write an encoder into an empty folder."""
    static = encoder.query_model == "idf" and encoder.queries is not None
    network = folder / "document" if static else folder
    network.mkdir(exist_ok=True)
    save(encoder.model, network)
    encoder.tokenizer.save_pretrained(network)
    write_splade(
        network,
        vocabulary=encoder.dim,
        pooling=encoder.pooling,
        activation=encoder.activation,
        lengths={"document": encoder.lengths["document"]} if static else encoder.lengths,
        prompts=encoder.prompts,
        lower_case=lowers(encoder.tokenizer),
    )
    facts = {
        "type": encoder.kind,
        "query_length": encoder.lengths["query"],
        "document_length": encoder.lengths["document"],
        "query_model": encoder.query_model,
        "query_top_k": encoder.top_k["query"],
        "document_top_k": encoder.top_k["document"],
        "lexical": encoder.lexical,
        "prune_below": encoder.prune_below,
        "prune_ratio": encoder.prune_ratio,
        "prune_quantile": encoder.prune_quantile,
    }
    if encoder.term_frequency is not None:
        facts["term_frequency"] = asdict(encoder.term_frequency)
    settings = {key: facts.get(key) for key in NOTED}
    if encoder.prune_quantile is not None or (static and encoder.top_k["query"] is not None):
        append_module(network, "pruning")
    elif any(value not in (None, "none", "shared", "idf") for value in settings.values()):
        place = append_module(network, "TermWeights")
        special = sorted(i for i in encoder.tokenizer.all_special_ids if i < encoder.dim)
        write_json(place / "config.json", {"settings": settings, "special": special})
    if encoder.term_floors is not None:
        np.save(network / FLOORS, encoder.term_floors)
    write_sidecar(folder, {**facts, **encoder.save_backend(folder)})
    if not static or encoder.queries is None:
        return
    write_sidecar(network, {**facts, "query_model": "bow"})  # what it is by itself
    extra = int(encoder.tokenizer.num_special_tokens_to_add())
    length = encoder.lengths["query"]
    write_query_weights(folder / "query", encoder.queries, encoder.tokenizer, length - extra)
    write_router(
        folder,
        {"query": [(STATIC_TYPE, "query")], "document": whole_route(folder, "document")},
        model_type="SparseEncoder",
        prompts=encoder.prompts,
        similarity=encoder.similarity,
    )
