"""The identifiers of documents, learnt and new, and beam search over those that an index has."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.errors import DataError, ModelError
from sluice.encoders.foundation.token_vectors import LARGEST_TOKEN
from sluice.encoders.generative.constrained import Continuations, Following, Keys, Ngram

Kind: TypeAlias = Literal["atomic", "semantic", "string", "title"]
KINDS: Final = get_args(Kind)
Code: TypeAlias = tuple[int, ...]
FILE: Final = "identifiers.json"
FREE: Final = LARGEST_TOKEN // 2  # from here on tokens tell new documents apart


class Places:
    """The clusters of learnt documents as an index that a decoder walks: their paths alone."""

    def __init__(self, paths: Iterable[Code]) -> None:
        self._root = Place({})
        for path in paths:
            place = self._root
            for token in path:
                place = place.below.setdefault(token, Place({}))

    def prefix(self, ngram: Sequence[int] = ()) -> Place:
        """Return the root; only that one is asked for."""
        return self._root

    def extended(self, node: Place, token: int) -> Place:
        """Return the place one token further."""
        return node.below[token]

    def continuations(self, node: Place) -> Digits:
        """Return the tokens that follow a place."""
        return Digits(np.array(sorted(node.below), np.int32), np.ones(len(node.below), np.int64))


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster, or one of clusters: what is below it by the next token."""

    below: dict[int, Place]

    @property
    def complete(self) -> bool:
        """Whether no cluster is below."""
        return not self.below

    @property
    def count(self) -> int:
        """The number of places one token further."""
        return len(self.below)


class Digits(NamedTuple):
    """Tokens, ascending, and the number of each."""

    tokens: Any
    counts: Any


def clusters(codes: Iterable[Code]) -> list[Code]:
    """Return the paths of the smallest clusters: codes without their number in it and the end.

    Numbers of several digits do not make clusters: no path begins with another one.
    """
    found: list[Code] = []
    for path in sorted({code[:-2] for code in codes}):
        if not found or path[: len(found[-1])] != found[-1]:
            found.append(path)
    return found


def free_tokens(document_id: str) -> Code:
    """Return the tokens that tell a new document apart from others of its cluster."""
    digest = hashlib.blake2b(document_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    numbers = (int.from_bytes(digest[at : at + 8], "little") for at in range(0, 16, 8))
    return tuple(FREE + number % (LARGEST_TOKEN - FREE) for number in numbers)


def next_number(path: Code, taken: set[Code], digit: Callable[[int], int], base: int) -> Code:
    """Return the first code in a cluster, without the end, that is not taken."""
    number = 0
    while True:
        digits = [number % base]
        while number >= base ** len(digits):
            digits.append(number // base ** len(digits) % base)
        code = (*path, *map(digit, reversed(digits)))
        if code not in taken:
            return code
        number += 1


def check_apart(codes: Mapping[str, Code], ids: str) -> None:
    """Raise ``DataError`` where two documents have the same identifier."""
    owners: dict[Code, str] = {}
    for name, code in codes.items():
        if code in owners:
            raise DataError(
                f"documents {owners[code]!r} and {name!r} have the same identifier with ids: "
                f"{ids}; give each one of its own, or take ids: semantic"
            )
        owners[code] = name


def write_codes(folder: Path, codes: Mapping[str, Code]) -> None:
    """Write the identifiers that a model has learnt beside it."""
    write_json(folder / FILE, {"documents": [*codes], "codes": [list(c) for c in codes.values()]})


def read_codes(folder: Path, vocabulary: int) -> dict[str, Code]:
    """Return the identifiers beside a model, none without a file.

    ``ModelError`` for a file that does not fit the model.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        noted = read_json(path)
        names, codes = noted["documents"], [tuple(code) for code in noted["codes"]]
        whole = all(type(token) is int for code in codes for token in code)
        fits = whole and all(0 <= token < vocabulary for code in codes for token in code)
        fits = fits and all(codes) and all(type(name) is str for name in names)
        fits = fits and len(names) == len(codes) == len(set(names)) == len(set(codes))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: not the identifiers of a model ({error}); train again") from None
    if not fits:
        raise ModelError(
            f"{path}: expected a document and its tokens below {vocabulary:,}, each once; train "
            "the model again"
        )
    return dict(zip(names, codes, strict=True))


def codes_hash(codes: Mapping[str, Code]) -> str:
    """Return a hash of all identifiers."""
    text = json.dumps(sorted(codes.items()), separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class IdentifierIndex(Protocol):
    """What decoding asks of an index: ``indexing.TrieIndex`` answers it."""

    def prefix(self, ngram: Sequence[int] = ()) -> Any:
        """Return the place of a beginning, which is ``complete`` where an identifier ends."""
        ...

    def extended(self, node: Any, token: int) -> Any:
        """Return the place of a beginning with one token more."""
        ...

    def continuations(self, node: Any) -> Following:
        """Return what follows a place."""
        ...


class _Beam(NamedTuple):
    ids: Ngram
    node: Any  # in the index
    score: float  # the log-probability so far
    row: int  # of the model's batch


@dataclass(frozen=True, slots=True)
class IdentifierBeams:
    """Beam search that writes whole identifiers of an index and nothing else.

    The ``beams`` most probable beginnings continue, and an identifier that is complete stands among
    them as it is, so ``beams`` as many as documents is the exact ranking of all. Probabilities are
    the model's own, not normalised over what the index allows. Tokens from ``FREE`` on tell the
    new documents of a cluster apart, of which the model knows nothing: each has the cluster's
    probability divided by the number of documents in it. (DSI; Tay et al. 2022, section 3.3;
    constrained as in De Cao et al. 2021, Autoregressive entity retrieval, section 3.2.)
    """

    beams: int

    def search(self, rows: Continuations, index: IdentifierIndex, texts: int) -> list[Keys]:
        """Return the identifiers of each text; ``rows`` has ``beams`` continuations of each."""
        root = index.prefix()
        running = [[_Beam((), root, 0.0, text * self.beams)] for text in range(texts)]
        if not root.count:
            return [{} for _ in range(texts)]
        following = rows.first()
        while True:
            scores = following.cpu().numpy()
            running = [self._best(beams, scores, index) for beams in running]
            if all(beam.node.complete for beams in running for beam in beams):
                return [{beam.ids: beam.score for beam in beams} for beams in running]
            following = rows.next(*self._laid_out(running, following.device))
            running = [
                [beam._replace(row=text * self.beams + at) for at, beam in enumerate(beams)]
                for text, beams in enumerate(running)
            ]

    def _best(self, beams: Sequence[_Beam], scores: Any, index: IdentifierIndex) -> list[_Beam]:
        """Return the best of the complete identifiers and of all continuations of the others."""
        candidates: list[tuple[float, Ngram, _Beam]] = []
        for beam in beams:
            if beam.node.complete:
                candidates.append((-beam.score, beam.ids, beam))
                continue
            tokens = index.continuations(beam.node).tokens
            if len(tokens) and tokens[-1] >= FREE:
                candidates += islice(self._new(beam, index), self.beams)
            tokens = tokens[: np.searchsorted(tokens, scores.shape[1])]
            sums = beam.score + scores[beam.row, tokens].astype(np.float64)
            least = np.partition(sums, -self.beams)[-self.beams] if len(sums) > self.beams else None
            good = np.arange(len(sums)) if least is None else np.flatnonzero(sums >= least)
            candidates += [
                (-float(sums[at]), (*beam.ids, int(tokens[at])), beam) for at in good.tolist()
            ]
        best = []
        for negative, ids, beam in sorted(candidates, key=lambda each: each[:2])[: self.beams]:
            node = beam.node
            for token in ids[len(beam.ids) :]:
                node = index.extended(node, token)
            best.append(_Beam(ids, node, -negative, beam.row))
        return best

    def _new(self, beam: _Beam, index: IdentifierIndex) -> Iterator[tuple[float, Ngram, _Beam]]:
        """Yield the new documents of a cluster, each as likely as the mean document in it."""
        negative = math.log(beam.node.count) - beam.score
        waiting: list[tuple[Ngram, Any]] = [(beam.ids, beam.node)]
        while waiting:
            ids, node = waiting.pop()
            if node.complete:
                yield negative, ids, beam
                continue
            tokens = index.continuations(node).tokens
            for token in tokens[np.searchsorted(tokens, FREE) :].tolist()[::-1]:
                waiting.append(((*ids, token), index.extended(node, token)))

    def _laid_out(
        self, running: Sequence[Sequence[_Beam]], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return each row's next token, and which row it continues; rows without are filled."""
        tokens = np.zeros(len(running) * self.beams, np.int64)
        sources = np.repeat(np.arange(len(running)) * self.beams, self.beams)
        for text, beams in enumerate(running):
            for at, beam in enumerate(beams):
                if beam.node.complete:
                    continue
                tokens[text * self.beams + at] = beam.ids[-1]
                sources[text * self.beams + at] = beam.row
        return torch.from_numpy(tokens).to(device), torch.from_numpy(sources).to(device)
