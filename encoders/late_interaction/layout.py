"""Reads the settings of token encoders from PyLate's, sentence-transformers' and ColBERT's folders.

- PyLate: modules Transformer and Dense, all else in ``config_sentence_transformers.json``;
- sentence-transformers 6: modules Transformer, Dense, MultiVectorMask, Normalize, token pooling;
- ColBERT (Stanford): ``linear.weight`` among the network's weights, ``artifact.metadata``.

Any other encoder's folder has a transformer only, to which a projection is added.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.encoders.encoder import Side
from sluice.encoders.foundation.disk.files import read_model_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.late_interaction.pruning import VORONOI, PoolBy
from sluice.encoders.model_files.layout import (
    SETTINGS,
    VectorModule,
    length_in,
    read_modules,
    read_object,
    read_sidecar,
    token_layout,
    transformer_folder,
)
from sluice.encoders.model_files.router import PROMPTS

UNUSED: dict[Side, str] = {"query": "[unused0]", "document": "[unused1]"}  # ColBERT's, in BERTs
ADDED: dict[Side, str] = {"query": "[Q] ", "document": "[D] "}  # PyLate's, added to others


def usual_markers(tokenizer: Any) -> dict[Side, str]:
    """Return the markers of a new encoder: unused tokens of its vocabulary, else two new ones."""
    known = tokenizer.get_vocab()
    return UNUSED if all(marker in known for marker in UNUSED.values()) else ADDED


def know_markers(tokenizer: Any, markers: Mapping[Side, str]) -> None:
    """Let each marker that the vocabulary has, with or without a space after it, be one token.

    Where they were trained as tokens before the text, a tokenizer may yet take them apart
    (``[unused0]`` into ``[``, ``unused0`` and ``]``). Others stay ordinary text.
    """
    from transformers import AddedToken

    known = tokenizer.get_vocab()
    apart = list[str]()
    for marker in markers.values():
        forms: Sequence[str] = [marker, *marker.split()[:1]] if marker.strip() else ()
        form = next((form for form in forms if form in known), None)
        if form is not None and tokenizer.tokenize(form) != [form]:
            apart.append(form)
    tokens = [AddedToken(each, normalized=False, special=True) for each in apart]
    tokenizer.add_tokens(tokens, special_tokens=True)


STANFORD = "artifact.metadata"
PUNCTUATION = tuple(string.punctuation)
QUERY_LENGTH, DOCUMENT_LENGTH = 32, 180  # of a model that says nothing, as PyLate has them
_ORDER = re.compile(
    r"Transformer( Dense)*( MultiVectorMask| Normalize)*( HierarchicalTokenPooling)?"
)
_DENSE_ORDER = re.compile(r"|(MLM)?Transformer( Pooling( Dense)*( Normalize)?| SpladePooling)?")
_PASSAGES = ("document", "passage", "corpus")


@dataclass(slots=True)
class TokenLayout:
    """What a folder says of a token encoder besides weights and tokenizer.

    ``expand_to`` is the number of tokens that queries are filled up to with ``mask`` (None: the
    tokenizer's mask token), 0 for none. ``trained`` is False for another encoder's folder.
    """

    trained: bool = False
    projections: tuple[VectorModule, ...] = ()  # the Dense modules, in order
    linear: Path | None = None  # the file with ColBERT's linear.weight
    normalize: bool = True
    markers: dict[Side, str] = field(default_factory=dict)
    prompts: dict[Side, str] = field(default_factory=dict)  # after the markers
    query_length: int | None = QUERY_LENGTH
    document_length: int | None = DOCUMENT_LENGTH
    max_length: int | None = None  # of sides without a length of their own
    expand_to: int | None = None  # None: as the caller chooses
    attend: bool = False
    mask: str | None = None
    skip_words: tuple[str, ...] = PUNCTUATION
    pool_factor: float = 1.0
    protected_tokens: int = 1
    normalize_pooled: bool = True
    pool_by: PoolBy = "ward"
    sidecar: dict[str, Any] = field(default_factory=dict)

    @property
    def prunes(self) -> bool:
        """Whether tokens of documents go, rather than share a vector."""
        return self.pool_factor > 1 and self.pool_by == VORONOI


def read_token_layout(folder: Path) -> TokenLayout:
    """Read a folder's settings; another encoder's folder has those of an untrained one."""
    layout = TokenLayout(sidecar=read_sidecar(folder))
    settings = read_object(folder / PROMPTS)
    _read_prompts(layout, settings, folder)
    own = read_object(transformer_folder(folder) / SETTINGS)
    layout.max_length = length_in(own, "max_seq_length", folder)
    kind = token_layout(folder)
    if kind == "colbert":
        _read_stanford(layout, folder)
    elif kind == "pylate":
        _read_pylate(layout, settings, folder)
    elif kind == "modules":
        _read_modules(layout, folder)
    else:
        _read_other(layout, folder)
    pruning = layout.sidecar.get(VORONOI)
    if isinstance(pruning, dict):
        layout.pool_by = VORONOI
        layout.pool_factor = _factor(pruning.get("pool_factor", 1.0), folder)
        layout.protected_tokens = length_in(pruning, "protected_tokens", folder) or 0
    return layout


def _read_prompts(layout: TokenLayout, settings: dict[str, Any], folder: Path) -> None:
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not isinstance(default, str | None):
        raise ModelError(f"{folder / PROMPTS}: prompts is not a mapping")
    usual = prompts.get(default or "")
    names: dict[Side, tuple[str, ...]] = {"query": ("query",), "document": _PASSAGES}
    for side, keys in names.items():
        known = [prompts[key] for key in keys if key in prompts]
        layout.prompts[side] = str((known or [usual])[0] or "")


def _read_stanford(layout: TokenLayout, folder: Path) -> None:
    """ColBERT: markers are two unused tokens, queries are always filled up."""
    path = folder / STANFORD
    facts = read_model_json(path)
    facts = {} if facts is None else facts
    if not isinstance(facts, dict):
        raise ModelError(f"{path}: a {type(facts).__name__}, expected a JSON object")
    layout.trained = True
    layout.linear = transformer_folder(folder) / "model.safetensors"
    layout.markers = {
        "query": _text(facts, "query_token_id", path) or "[unused0]",
        "document": _text(facts, "doc_token_id", path) or "[unused1]",
    }
    layout.query_length = layout.expand_to = length_in(facts, "query_maxlen", folder) or 32
    layout.document_length = length_in(facts, "doc_maxlen", folder)
    layout.attend = _flag(facts, "attend_to_mask_tokens", path) or False
    layout.skip_words = () if _flag(facts, "mask_punctuation", path) is False else PUNCTUATION


def _read_pylate(layout: TokenLayout, settings: dict[str, Any], folder: Path) -> None:
    """PyLate: queries are filled up to their length unless it says otherwise."""
    path = folder / PROMPTS
    entries = read_modules(folder)
    _check_order(entries, _ORDER, folder)
    layout.trained = True
    layout.projections = _projections(entries)
    keys: tuple[tuple[Side, str], ...] = (
        ("query", "query_prefix"), ("document", "document_prefix"),
    )  # fmt: skip
    for side, key in keys:
        layout.markers[side] = _text(settings, key, path) or ""
        layout.prompts[side] = layout.prompts[side].removeprefix(layout.markers[side])
    layout.document_length = length_in(settings, "document_length", folder)
    layout.query_length = length_in(settings, "query_length", folder)
    if _flag(settings, "do_query_expansion", path) is False:
        layout.expand_to = 0
    else:
        layout.query_length = layout.expand_to = layout.query_length or 32
    layout.attend = _flag(settings, "attend_to_expansion_tokens", path) or False
    words = settings.get("skiplist_words")
    layout.skip_words = PUNCTUATION if words is None else _words(words, path)


def _read_modules(layout: TokenLayout, folder: Path) -> None:
    """sentence-transformers 6: each module has its own settings."""
    entries = read_modules(folder)
    _check_order(entries, _ORDER, folder)
    layout.trained, layout.normalize, layout.skip_words = True, False, ()
    layout.projections = _projections(entries)
    for kind, place in entries:
        path = place / "config.json"
        facts = read_object(path)
        if kind in ("Dense", "Normalize"):
            reads = facts.get("module_input_name", "token_embeddings" if kind == "Dense" else "")
            if reads != "token_embeddings":
                raise ModelError(
                    f"{path}: module_input_name is {reads!r}; expected 'token_embeddings', the "
                    "vectors of tokens"
                )
            layout.normalize |= kind == "Normalize"
        elif kind == "MultiVectorMask":
            layout.skip_words = _words(facts.get("skiplist_words") or [], path)
            _documents_alone(facts, "skiplist_tasks", path)
            if facts.get("keep_only_token_ids"):
                raise ModelError(
                    f"{path}: keep_only_token_ids is for images; expected a model of texts"
                )
        elif kind == "HierarchicalTokenPooling":
            _documents_alone(facts, "tasks", path)
            layout.pool_factor = _factor(facts.get("pool_factor", 1.0), path)
            layout.protected_tokens = length_in(facts, "num_protected_tokens", place) or 0
            layout.normalize_pooled = _flag(facts, "normalize_embeddings", path) or False
    own = read_object(transformer_folder(folder) / SETTINGS)
    layout.query_length = length_in(own, "query_length", folder)
    layout.document_length = length_in(own, "document_length", folder)
    _read_expansion(layout, own.get("query_expansion"), folder)


def _read_expansion(layout: TokenLayout, facts: Any, folder: Path) -> None:
    layout.expand_to = 0
    if facts is None:
        return
    path = folder / SETTINGS
    if not isinstance(facts, dict) or facts.get("strategy") not in ("fixed", "min"):
        raise ModelError(f"{path}: query_expansion is {facts!r}; expected a strategy, fixed or min")
    layout.expand_to = length_in(facts, "length", folder) or 32
    if facts["strategy"] == "fixed":
        layout.query_length = layout.expand_to
    elif layout.query_length is not None:
        layout.query_length = max(layout.query_length, layout.expand_to)
    layout.attend = _flag(facts, "attend", path) or False
    layout.mask = _text(facts, "token", path)


def _read_other(layout: TokenLayout, folder: Path) -> None:
    """Another encoder: its projection, if it has one, maps tokens instead of pooled vectors."""
    entries = read_modules(folder)
    _check_order(entries, _DENSE_ORDER, folder)
    layout.projections = _projections(entries)


def _projections(entries: list[tuple[str, Path]]) -> tuple[VectorModule, ...]:
    return tuple(VectorModule(kind, place) for kind, place in entries if kind == "Dense")


def _check_order(entries: list[tuple[str, Path]], order: re.Pattern[str], folder: Path) -> None:
    kinds = [kind for kind, _ in entries]
    if not order.fullmatch(" ".join(kinds)):
        raise ModelError(
            f"{folder / 'modules.json'}: modules {', '.join(kinds)}; a token encoder is made of "
            "Transformer, any number of Dense, MultiVectorMask, Normalize, "
            "HierarchicalTokenPooling, in this order"
        )


def _documents_alone(facts: dict[str, Any], key: str, path: Path) -> None:
    tasks = facts.get(key) or ["document"]
    if tasks not in (["document"], "document"):
        raise ModelError(f"{path}: {key} is {tasks!r}; expected documents alone: ['document']")


def _factor(value: Any, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 1e6:
        raise ModelError(f"{path}: pool_factor is {value!r}, expected a number, 1 or more")
    return float(value)


def _text(facts: dict[str, Any], key: str, path: Path) -> str | None:
    value = facts.get(key)
    if not isinstance(value, str | None):
        raise ModelError(f"{path}: {key} is {value!r}, expected a text")
    return value


def _flag(facts: dict[str, Any], key: str, path: Path) -> bool | None:
    value = facts.get(key)
    if not isinstance(value, bool | None):
        raise ModelError(f"{path}: {key} is {value!r}, expected true or false")
    return value


def _words(value: Any, path: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ModelError(f"{path}: skiplist_words is {value!r}, expected a list of words")
    return tuple(value)
