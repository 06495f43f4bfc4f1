"""Separate towers: one encoder for queries, another for documents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Unpack

import torch
from torch import Tensor, nn

from sluice.encoders.backends.backend import ChosenBackend
from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.dense.static.encoder import StaticEncoder
from sluice.encoders.encoder import EncoderBase, Side, Vectors
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layout import write_sidecar
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import Computing, takes_options
from sluice.encoders.model_files.router import (
    SIDES,
    is_router,
    route_folder,
    whole_route,
    write_router,
)
from sluice.encoders.splade.encoder import SpladeEncoder
from sluice.encoders.table import ENCODERS, KNOWN, traits_of
from sluice.encoders.transformer.model import Features
from sluice.encoders.tuning.learning import learning_of
from sluice.familiar import Similarity

Tower: TypeAlias = DenseEncoder | SpladeEncoder | StaticEncoder
Frozen: TypeAlias = Literal["none", "query", "document"]

TOWERS = {name: ENCODERS[name] for name in KNOWN["towers"].sides}


class TowerEncoder(EncoderBase):
    """Two dense or two SPLADE encoders whose vectors compare, each with its own weights.

    A dense one may be static, such as that of queries, which then cost next to nothing.

    They may differ in size, tokenizer (dense only), prompts and lengths, not in kind, dimension,
    vocabulary or similarity. They are taken over: each keeps the prompt and the length of its side
    only. The tower that ``freeze`` names is not trained: its parameters need no
    gradient, it has no dropout, and no graph is kept for its vectors. (DPR, Karpukhin et al., 2020;
    efficient SPLADE, Lassance and Clinchant, 2022, arXiv 2207.03834, with a smaller query tower.)
    """

    kind = "towers"

    def __init__(self, query: Tower, document: Tower, *, freeze: Frozen = "none") -> None:
        if freeze not in ("none", *SIDES):
            raise ConfigError(f"freeze: {freeze!r}; known: none, query, document")
        check_towers(query, document)
        if document.fitted_terms is not None and document.fitted_terms.needs_floors:
            raise ConfigError(
                "document.prune_quantile: not for a tower; use prune_below, prune_ratio or "
                "document_top_k"
            )
        self.query, self.document = query, document
        self.freeze = freeze
        self.module: nn.Module = _Towers(
            {"query": query.module, "document": document.module}, freeze
        )
        for side, tower in self.towers.items():  # a tower reads one side; saved, it has one length
            tower.take_side(side)

    @classmethod
    @takes_options(Computing)
    def from_pretrained(
        cls,
        model: Annotated[
            str | Path | None, "A saved folder of two towers, instead of query and document."
        ] = None,
        *,
        query: Annotated[
            dict[str, Any] | None, "The query encoder, {type: dense, static or splade, model: ...}."
        ] = None,
        document: Annotated[
            dict[str, Any] | None,
            "The document encoder, {type: dense, static or splade, model: ...}.",
        ] = None,
        freeze: Annotated[Frozen, "The tower that is not trained."] = "none",
        **options: Unpack[Computing],
    ) -> TowerEncoder:
        """Load a folder of towers (ours, or sentence-transformers' Router), or make two.

        ``query`` and ``document`` are components, ``{type: dense | splade, model: ...}`` with that
        encoder's arguments; the same model twice is two copies. ``device``, ``dtype`` and
        ``batch_tokens`` are for both.
        """
        if model is None:
            if query is None or document is None:
                raise ConfigError("towers: needs query and document, or the model folder of both")
            made = _made(query, "query", options), _made(document, "document", options)
            _refuse_unread(*made, options)
            return cls(*made, freeze=freeze)
        if query is not None or document is not None:
            raise ConfigError(
                f"model: {str(model)!r} has both towers; leave out query and document"
            )
        folder = model_folder(str(model))
        if not is_router(folder):
            raise ModelError(
                f"{folder}: no towers; give both, query: {{type: dense, model: ...}} and "
                "document: {type: dense, model: ...}"
            )
        opened = _opened(folder, "query", options), _opened(folder, "document", options)
        _refuse_unread(*opened, options)
        return cls(*opened, freeze=freeze)

    @property
    def towers(self) -> dict[Side, Tower]:
        """Both encoders by side."""
        return {"query": self.query, "document": self.document}

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector, or the size of the vocabulary."""
        return self.document.dim

    @property
    def similarity(self) -> Similarity:
        """The similarity the vectors are made for."""
        return self.document.similarity

    @property
    def terms(self) -> Callable[[Sequence[int]], list[str]] | None:
        """The documents' names of columns; None where they are dimensions."""
        return self.document.terms

    @property
    def head_parameters(self) -> tuple[str, ...]:
        """How the names of a tower's head begin."""
        return self.query.head_parameters

    @property
    def learning_rates(self) -> dict[str, float]:
        """The learning rates of both towers' parameters that have their own, by name."""
        return {
            f"{side}.{name}": rate
            for side, tower in self.towers.items()
            for name, rate in tower.learning_rates.items()
        }

    @property
    def layer_count(self) -> int | None:
        """How many layers both towers have; None where a number is another layer in each."""
        depth = self.document.layer_count
        return depth if self.query.layer_count == depth else None

    @property
    def embed_layers(self) -> Callable[..., Tensor] | None:
        """Returns the vectors of several layers; None without layers of the same numbers."""
        return None if self.layer_count is None else self._embed_layers

    @property
    def prompts(self) -> dict[str, str]:
        """What is put before a text of each side."""
        return {side: tower.prompts[side] for side, tower in self.towers.items()}

    @property
    def lengths(self) -> dict[str, int]:
        """The longest text of each side, in tokens; a static tower may have no limit."""
        lengths = {side: tower.lengths.get(side) for side, tower in self.towers.items()}
        return {side: length for side, length in lengths.items() if length is not None}

    @property
    def device(self) -> torch.device:
        """Where both towers are."""
        return self.document.device

    @property
    def _networks(self) -> list[DenseEncoder | SpladeEncoder]:
        """The towers that are not static, the documents' first."""
        both = (self.document, self.query)
        return [tower for tower in both if not isinstance(tower, StaticEncoder)]

    @property
    def dtype(self) -> torch.dtype:
        """The arithmetic type of encoding."""
        return self._networks[0].dtype if self._networks else torch.float32

    @dtype.setter
    def dtype(self, dtype: torch.dtype) -> None:
        for tower in self._networks:
            tower.dtype = dtype

    @property
    def batch_tokens(self) -> int | None:
        """The size of one pass; None without a network."""
        return self._networks[0].batch_tokens if self._networks else None

    @batch_tokens.setter
    def batch_tokens(self, size: int) -> None:
        for tower in self._networks:
            tower.batch_tokens = size

    @property
    def backend(self) -> ChosenBackend | None:
        """The documents' back end, or else the queries'; None: torch."""
        return self.document.backend or self.query.backend

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides the vectors of either side."""
        return fingerprint_of(self.kind, self.query.fingerprint, self.document.fingerprint)

    def settings(self) -> Mapping[str, Any]:
        """Return what besides weights and tokenizers decides the vectors."""
        return {"kind": self.kind, **{side: t.settings() for side, t in self.towers.items()}}

    @property
    def tokenizer(self) -> Any:
        """The documents' tokenizer."""
        return self.document.tokenizer

    def token_ids(self, texts: Sequence[str], side: Side) -> list[list[int]]:
        """Return token ids with prompt and special tokens, cut at the side's length."""
        return self.towers[side].token_ids(texts, side)

    def tokenize(self, texts: Sequence[str], side: Side) -> Features:
        """Return the padded features of a batch, ready for ``embed``."""
        return self.towers[side].tokenize(texts, side)

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return float32 vectors ``[n, dim]``, with gradients unless the side's tower is frozen."""
        with torch.no_grad() if side == self.freeze else contextlib.nullcontext():
            return self.towers[side].embed(features, side)

    def _embed_layers(self, features: Features, side: Side, layers: Sequence[int]) -> Tensor:
        """Return the vectors of several layers side by side, see ``DenseEncoder.embed_layers``."""
        tower = self.towers[side]
        if not isinstance(tower, DenseEncoder):
            raise ConfigError(f"{side}: a {tower.kind} tower has no vectors of its layers")
        with torch.no_grad() if side == self.freeze else contextlib.nullcontext():
            return tower.embed_layers(features, side, layers)

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per query, in input order."""
        return self.query.encode_queries(texts)

    def encode_documents(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per document, in input order."""
        return self.document.encode_documents(texts)

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder that sentence-transformers loads, in one step.

        ``query`` and ``document`` in it are model folders that also open by themselves.
        """
        with replaced_folder(Path(path)) as folder:
            for side, tower in self.towers.items():
                tower.save_pretrained(folder / side)
            document = traits_of(self.document)
            write_router(
                folder,
                {side: whole_route(folder, side) for side in SIDES},
                model_type="SparseEncoder"
                if document is not None and document.form == "sparse"
                else ("SentenceTransformer"),
                prompts=self.prompts,
                similarity=self.similarity,
            )
            write_sidecar(folder, {"type": self.kind, "towers": _vectors_of(self.document)})


def check_towers(query: Tower, document: Tower) -> None:
    """Raise ``ConfigError`` unless the vectors of two encoders compare."""
    for side, tower in (("query", query), ("document", document)):
        if not isinstance(tower, DenseEncoder | SpladeEncoder | StaticEncoder):
            raise ConfigError(f"{side}: {type(tower).__name__}; a tower is dense, static or splade")
        if isinstance(tower, SpladeEncoder) and tower.query_model != "shared":
            raise ConfigError(
                f"{side}.query_model: {tower.query_model!r} needs no tower for queries; use "
                f"{{type: splade, query_model: {tower.query_model}, model: ...}} without towers"
            )
    for what, left, right in (
        ("type", _vectors_of(query), _vectors_of(document)),
        ("dimensions", query.dim, document.dim),
        ("similarity", query.similarity, document.similarity),
    ):
        if left != right:
            raise ConfigError(
                f"towers: their {what} differ: query {left}, document {right}; their vectors would "
                "not compare"
            )
    sparse = isinstance(query, SpladeEncoder) and isinstance(document, SpladeEncoder)
    if sparse and query.tokenizer.get_vocab() != document.tokenizer.get_vocab():
        raise ConfigError(
            "towers: their vocabularies differ: a dimension would be another term on each side"
        )
    shared = {id(p) for p in query.module.parameters()}
    if any(id(p) in shared for p in document.module.parameters()):
        raise ConfigError("towers: both are the same object; load the model twice, or use it alone")


def _vectors_of(tower: Tower) -> str:
    return (SpladeEncoder if isinstance(tower, SpladeEncoder) else DenseEncoder).kind


class _Towers(nn.ModuleDict):
    """Both modules; a frozen one stays in evaluation mode, even while the other trains."""

    def __init__(self, modules: Mapping[str, nn.Module], freeze: Frozen) -> None:
        super().__init__(modules)
        self._freeze = freeze
        self.train(any(module.training for module in modules.values()))
        if freeze != "none":
            self[freeze].requires_grad_(False)

    def train(self, mode: bool = True) -> _Towers:
        super().train(mode)
        if self._freeze != "none":
            self[self._freeze].eval()
        return self


def _made(spec: Mapping[str, Any], side: Side, given: Mapping[str, Any]) -> Tower:
    """Make a tower from its component; its own device and such go before those of both."""
    made: Tower = build({**_fitting(spec.get("type"), given), **spec}, TOWERS, where=side, allow=())
    return made


def _opened(folder: Path, side: Side, given: Mapping[str, Any]) -> Tower:
    from sluice.encoders.model_files.registry import kind_of

    with route_folder(folder, side) as place:
        kind = kind_of(place)
        if kind not in TOWERS:
            raise ModelError(
                f"{folder}: its {side} tower is of type {kind}; expected dense, splade, static"
            )
        spec = {"type": kind, "model": str(place), **_fitting(kind, given)}
        made: Tower = build(spec, TOWERS, where=side)
    return made


def _refuse_unread(query: Tower, document: Tower, given: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for settings of networks where neither tower has one."""
    if not isinstance(query, StaticEncoder) or not isinstance(document, StaticEncoder):
        return
    for key, usual in (("dtype", "float32"), ("batch_tokens", None)):
        if given[key] != usual:
            raise ConfigError(f"{key}: {given[key]!r}; both towers are static; leave it out")


def _fitting(kind: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of both towers that one of a kind has."""
    return {"device": given["device"]} if learning_of(str(kind)).untuned else given
