"""Keeps twenty texts with their vectors beside a saved model, and computes them again.

A fingerprint says that weights and settings are the same. It does not say which setting was changed
where they are not, nor that a newer library computes something else from the same files.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import check_version, read_model_json, write_json
from sluice.encoders.foundation.errors import ModelError, SluiceError
from sluice.encoders.foundation.provenance import versions
from sluice.encoders.foundation.tokens import TokenVectors, counting_tokens
from sluice.encoders.model_files.layout import (
    OWN_HOME,
    SIDECAR,
    append_module,
    read_object,
    read_sidecar,
)
from sluice.encoders.table import RERANKERS, traits_of


def add_module(folder: Path, kind: str, facts: dict[str, Any], *, target: str = "") -> Path:
    """Add a module to ``modules.json`` and ``facts`` to ``sluice.json``; return its own folder.

    ``target`` is the name of sentence-transformers' class. It has none of the modules that are ours
    alone and refuses the folder, where it would make other vectors.
    """
    place = append_module(folder, kind, target or f"{OWN_HOME}.{kind}")
    write_json(place / "config.json", {"opened_by": "sluice"})
    write_json(folder / SIDECAR, {**read_sidecar(folder), **facts})
    return place


PROBES = "probes.json"
VERSION = 1
QUERIES = (
    "what is a sluice", "Protein-protein binding at 37 degrees (n = 12)?", "x",
    "who washed GOLD from the river in 1849?", "Größe der Schleuse über dem Fluß",
    "¿dónde está el oro?", "水の流れと金", "how to learn to rank, with 1,000 documents",
    "C++ vs. Python 3.11: memory-mapped files", "https://example.org/a?b=c&d=e",
)  # fmt: skip
DOCUMENTS = (
    "A sluice is a channel for water with a gate at its head.",
    "Gold is heavy: it sinks to the bottom of the box, and water carries the gravel away.",
    "In vitro, the receptor's affinity (K_d) fell from 3.2 nM to 0.4 nM.", "42",
    "THE RIVER ROSE. Nobody had seen it coming; everybody said so afterwards.",
    "L'orpailleur lave le sable à l'aube, l'été comme l'hiver.", "Золото моют в реке.",
    "def search(query: str, k: int = 10) -> list[Hit]:\n    return index.search(query, k)",
    "كتاب عن البحث", "An inverted index holds, for each term, the documents that contain it. " * 4,
)  # fmt: skip
NEAR, NEAR_IN_HALF = 1e-4, 5e-2  # the relative distance of vectors that count as the same
# Keys about the tools that wrote a file.
VOLATILE = frozenset({"transformers_version", "__version__", "_name_or_path", "name_or_path"})
COMPARED = ("*.json", "*/*.json", "*.txt", "*.model", "*.jinja")
VOCABULARIES = ("tokenizer.json", "vocab.json")
WHOLE = 20_000  # bytes of a settings file that is kept, not only its hash

Array = NDArray[np.float32]
Encode = Callable[[], "list[Array]"]
log = logging.getLogger("sluice")


class Row(NamedTuple):
    """What an encoder made of a text: values, and the terms that they weigh if it is sparse."""

    values: Array
    terms: NDArray[np.int32] | None = None


class Verified(NamedTuple):
    """What became of a model's probes: their number, what they are, and what differs, in words."""

    texts: int
    differences: list[str]
    kind: str = "vectors"

    def __str__(self) -> str:
        """Return what was compared."""
        if self.kind == "vectors":
            return f"the vectors of {self.texts} texts"
        return f"the scores of {self.texts // 2} {self.kind}"


def write_probes(folder: Path, encoder: Any, *, exact: bool = True) -> None:
    """Write the probes of an encoder or reranker that is saved in ``folder``, last of its files.

    One that cannot encode by itself is saved without; those of an encoder inside it are removed
    from its folder, as they are not its own. ``exact=False`` is for one that answers a little
    otherwise each time; arithmetic in half precision and graphs count as such.
    """
    hooks = hooks_of(encoder)
    rough = not exact or "16" in str(hooks.dtype) or hooks.backend is not None
    try:
        with counting_tokens():  # they count for nobody
            vectors = _vectors(encoder)
    except SluiceError as error:
        log.info("%s: saved without probe texts: %s", folder, error)
        (folder / PROBES).unlink(missing_ok=True)
        return
    write_json(
        folder / PROBES,
        {
            "version": VERSION,
            "packages": versions(),
            "near": NEAR_IN_HALF if rough else NEAR,
            "queries": QUERIES,
            "documents": DOCUMENTS,
            "tokens": _tokens(encoder),
            "vectors": [_packed(each) for each in vectors],
            "files": {name: _file_facts(folder / name) for name in _names(folder)},
        },
    )


def note_files(folder: Path) -> None:
    """Take a saved model's settings as they are now for those it was saved with.

    For whoever completes a folder after the encoder has written it.
    """
    noted = read_object(folder / PROBES)
    if noted:
        files = {name: _file_facts(folder / name) for name in _names(folder)}
        write_json(folder / PROBES, {**noted, "files": files})


def verify_probes(folder: Path, encoder: Any) -> Verified | None:
    """Compute the probes of a folder's opened model again; None for a folder without any.

    Of two towers, those of both. Raises ``ModelError`` for a damaged file.
    """
    towers = hooks_of(encoder).towers
    if towers:
        sides = [verify_probes(folder / side, tower) for side, tower in towers.items()]
        known = [each for each in sides if each is not None]
        differences = [text for each in known for text in each.differences]
        return Verified(sum(each.texts for each in known), differences) if known else None
    noted = read_object(folder / PROBES)
    if not noted:
        return None
    check_version(noted.get("version"), VERSION, folder / PROBES, ModelError)
    try:
        texts = len(noted["queries"]) + len(noted["documents"])
        stored = [_unpacked(each) for each in noted["vectors"]]
        known_texts = (tuple(noted["queries"]), tuple(noted["documents"])) == (QUERIES, DOCUMENTS)
        files, packages = dict(noted["files"]), dict(noted["packages"])
        tokens = None if noted["tokens"] is None else [str(ids) for ids in noted["tokens"]]
        near = min(float(noted["near"]), NEAR_IN_HALF)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{folder / PROBES}: damaged ({error}); save the model again") from None
    if not known_texts:
        raise ModelError(f"{folder / PROBES}: its texts were changed; save the model again")
    changes = [*_changed_files(folder, files), *_changed_tokens(encoder, tokens)]
    moved = _moved(stored, _vectors(encoder), near)
    if moved and not changes:
        changes = [_unexplained(packages)]
    return Verified(texts, [*changes, *([moved] if moved else [])], _kind(encoder))


def _kind(encoder: Any) -> str:
    """Return what a model is compared by: vectors, or scores of each query with its document."""
    kind = hooks_of(encoder).kind
    if _ranks_lists(encoder):
        return "queries with two documents each"
    return "pairs of a query and a document" if kind in RERANKERS else "vectors"


def _ranks_lists(encoder: Any) -> bool:
    """Whether it is a reranker that writes the order of a list."""
    traits = traits_of(encoder)
    return traits is not None and traits.scores and bool(traits.writes)


def _vectors(encoder: Any) -> list[Row]:
    """Return the vectors of the queries and documents, or the scores of both in pairs or lists."""
    if _ranks_lists(encoder):
        lists = [(each, DOCUMENTS[at : at + 2]) for at, each in enumerate(QUERIES)]
        return [Row(encoder.log_probabilities(lists).astype(np.float32))]
    if hooks_of(encoder).kind in RERANKERS:
        pairs = list(zip(QUERIES, DOCUMENTS, strict=True))
        return [Row(np.asarray(encoder.score(pairs), np.float32))]
    return [
        *_rows(encoder.encode_queries(list(QUERIES))),
        *_rows(encoder.encode_documents(list(DOCUMENTS))),
    ]


def _rows(vectors: Any) -> Iterator[Row]:
    """Yield each text's vector, of token vectors all of a text."""
    if isinstance(vectors, sp.csr_array):
        for start, stop in zip(vectors.indptr[:-1], vectors.indptr[1:], strict=True):
            terms, weights = vectors.indices[start:stop], vectors.data[start:stop]
            order = np.argsort(terms)
            yield Row(weights[order].astype(np.float32), terms[order].astype(np.int32))
    else:
        texts = vectors if isinstance(vectors, TokenVectors) else np.asarray(vectors, np.float32)
        yield from map(Row, texts)


def _tokens(encoder: Any) -> list[str] | None:
    """Return the token ids of each text, with spaces; None where an encoder does not tell."""
    token_ids = hooks_of(encoder).token_ids
    if token_ids is None:
        return None
    ids = [*token_ids(list(QUERIES), "query"), *token_ids(list(DOCUMENTS), "document")]
    return [" ".join(str(int(token)) for token in text) for text in ids]


def _changed_tokens(encoder: Any, stored: Sequence[str] | None) -> Iterator[str]:
    now = _tokens(encoder)
    if stored is None or now is None or now == stored:
        return
    texts = [*QUERIES, *DOCUMENTS]
    for text, before, after in zip(texts, stored, now, strict=False):
        if before != after:
            yield f"the tokens of {text!r:.40} are {after:.40}, and were {before:.40}"
            return


def _moved(stored: Sequence[Row], now: Sequence[Row], near: float) -> str:
    """Return how far vectors moved, in words; empty: not at all."""
    distances = [_distance(old, new) for old, new in zip(stored, now, strict=False)]
    far = [each for each in distances if not each <= near]
    if len(stored) == len(now) and not far:
        return ""
    return (
        f"{len(far)} of {len(stored)} probe vectors are not what they were (the relative distance "
        f"is up to {max(distances, default=float('inf')):.2g})"
    )


def _distance(before: Row, after: Row) -> float:
    """Return the distance of a text's vectors, relative to the length of the old."""
    old, new = before.values.astype(np.float64), after.values.astype(np.float64)
    if before.terms is not None and after.terms is not None:
        both = np.concatenate([before.terms, after.terms])
        terms, places = np.unique(both, return_inverse=True)
        weights = np.concatenate([old, new])
        old, new = np.zeros((2, len(terms)))
        old[places[: len(before.terms)]] = weights[: len(before.terms)]
        new[places[len(before.terms) :]] = weights[len(before.terms) :]
    if old.shape != new.shape:
        return float("inf")
    difference = float(np.linalg.norm(new - old))
    return difference / max(float(np.linalg.norm(old)), 1e-12) if difference else 0.0


def _unexplained(packages: Mapping[str, str]) -> str:
    now = versions()
    other = [
        f"{name} is {now.get(name, 'missing')}, and was {before}"
        for name, before in packages.items()
        if now.get(name) != before
    ]
    return (
        "its settings and tokens are what they were: either the weights were changed, or another "
        f"version computes otherwise ({', '.join(other) or 'the versions are the same'})"
    )


def _names(folder: Path) -> list[str]:
    """Return the files beside the weights that decide vectors."""
    files = {file for pattern in COMPARED for file in folder.glob(pattern) if file.is_file()}
    names = (file.relative_to(folder).as_posix() for file in files)
    return sorted(name for name in names if name not in (PROBES, "manifest.json"))


def _file_facts(file: Path) -> Any:
    """Return the settings of a small JSON file, else the hash of its bytes."""
    data = file.read_bytes()
    if file.suffix == ".json" and len(data) <= WHOLE and file.name not in VOCABULARIES:
        return _settled(read_model_json(file))
    return hashlib.sha256(data).hexdigest()


def _changed_files(folder: Path, stored: Mapping[str, Any]) -> Iterator[str]:
    now = _names(folder)
    for name, before in stored.items():
        if name not in now:
            yield f"{name} is gone"
        elif (after := _file_facts(folder / name)) != before:
            yield f"{name}: {difference_of(before, after)}"


def _settled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _settled(item) for key, item in value.items() if key not in VOLATILE}
    return [_settled(item) for item in value] if isinstance(value, list) else value


def difference_of(before: Any, after: Any, key: str = "") -> str:
    """Return the first difference of two settings in words."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                path = f"{key}.{name}".lstrip(".")
                return difference_of(before.get(name), after.get(name), path)
    return f"{key} is {after!r:.60}, and was {before!r:.60}" if key else "its contents were changed"


def _packed(row: Row) -> dict[str, Any]:
    terms = {} if row.terms is None else {"terms": _text(row.terms, "<i4")}
    return {"shape": list(row.values.shape), "values": _text(row.values, "<f4"), **terms}


def _text(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode("ascii")


def _unpacked(entry: Mapping[str, Any]) -> Row:
    values = np.frombuffer(base64.b64decode(entry["values"], validate=True), "<f4")
    terms = None
    if "terms" in entry:
        terms = np.frombuffer(base64.b64decode(entry["terms"], validate=True), "<i4")
        if terms.shape != values.shape:
            raise ValueError("terms without weights")
    return Row(values.reshape([int(size) for size in entry["shape"]]), terms)
