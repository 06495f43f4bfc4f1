"""Each text classified among all entries of a dictionary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.table import Learnt as Form
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase, Want
from sluice.training.losses.distillation.vectors import Sides
from sluice.training.losses.math.reduction import floor_of, mean_by_row, weighted_mean, whitened
from sluice.training.protocol import Example, Text

SAME = 4  # decimals to which the vectors of two entries are compared


@dataclass(eq=False)
@checked("entries.")
class Entries(LossBase):
    """Mean over texts of the cross-entropy of ``softmax_e(cos(f(x), w_e) / t)`` with x's entry.

    The entries e are the texts of all positives of the training, each once: the names that
    definitions define, the titles of documents. w_e is made by the encoder before the first step
    and not trained: the mean vector of e's queries (``of: definitions``, as in the paper; entries
    with the same queries are one) or the vector of its own text (``of: entry``), whitened over all
    entries (mean 0, covariance 1, by C^(-1/2), so that directions stay near the encoder's own). A
    query's class is its positive; of several the losses are averaged, and no other relevant entry
    counts against it. A positive's class is itself: ``sides`` says whether queries, documents or
    both are classified. Negatives do not count, nor does the size of a batch: every entry is there
    at every step. ``temperature`` is t; without ``whitening`` w_e is the vector as it is.

    (The paper trains in rounds, each with entries that the model of the last one makes; here a
    round is a training run, and the next begins with its model.)
    """

    summary = "each text classified among all entries of a dictionary, by fixed whitened vectors"
    paper = "Liu 2024 (DefSent+, arXiv 2405.16153)"

    forms: ClassVar[tuple[Form, ...]] = ("dense",)  # what it trains
    wants: ClassVar[frozenset[Want]] = frozenset({"all_examples"})

    temperature: Annotated[float, Gt(0), "Divides the cosines."] = 0.05
    of: Annotated[
        Literal["definitions", "entry"],
        "What makes an entry's vector: the mean of its definitions (queries), or its own text.",
    ] = "definitions"
    sides: Annotated[Sides, "The texts that are classified: queries, their positives, or both."] = (
        "both"
    )
    whitening: Annotated[
        bool, "Whether the entries' vectors are whitened: mean 0, covariance 1."
    ] = True

    def __post_init__(self) -> None:
        self._encoder: Any = None
        self._vectors: Tensor | None = None
        self._classes: Mapping[str, int] = {}
        self._relevant: Mapping[str, frozenset[int]] = {}

    def bind(self, encoder: Any, seed: int) -> None:
        """Remember the encoder, which the entries are encoded with."""
        self._encoder = encoder

    def bind_examples(self, examples: Sequence[Example]) -> None:
        """Make the vectors of the entries: the positives of these examples.

        Raises ``DataError`` for an entry without a vector, for two that the encoder cannot tell
        apart, for ids that stand for two texts, and for too few entries to whiten.
        """
        texts, self._classes = _entries(examples)
        if self.of == "definitions":
            texts, self._classes, vectors = self._defined(examples, texts, self._classes)
        else:
            vectors = np.asarray(self._encoder.encode_documents(texts), np.float64)
        self._relevant = _relevant(examples, self._classes)
        _check(texts, vectors)
        if self.whitening:
            vectors = whitened(vectors, "entries", "set whitening: false")
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
        self._vectors = torch.from_numpy(units)
        self._encoder = None

    def _defined(
        self, examples: Sequence[Example], texts: Sequence[str], classes: Mapping[str, int]
    ) -> tuple[list[str], dict[str, int], NDArray[np.float64]]:
        """Return entries as before, those with the same definitions as one, and their vectors."""
        defined: list[set[str]] = [set() for _ in texts]
        for example in examples:
            for document in _positives(example):
                defined[classes[document.id]].add(example.query.text)
        places: dict[frozenset[str], int] = {}
        merged = [places.setdefault(frozenset(each), len(places)) for each in defined]
        rows = {text: row for row, text in enumerate(sorted(set().union(*defined)))}
        queries = np.asarray(self._encoder.encode_queries(list(rows)), np.float64)
        means = [queries[sorted(rows[text] for text in each)].mean(axis=0) for each in places]
        firsts = dict(zip(reversed(merged), reversed(texts), strict=True))
        kept = [firsts[place] for place in range(len(places))]
        return kept, {name: merged[at] for name, at in classes.items()}, np.array(means)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean cross-entropy; a text weighs what its query weighs."""
        if self._vectors is None:
            raise ConfigError("entries: call bind and bind_examples before the first batch")
        fixed = self._vectors.to(batch.queries)  # [E, dim]
        if batch.queries.shape[1] != fixed.shape[1]:
            raise ConfigError(
                f"entries: they have {fixed.shape[1]} dimensions and these vectors "
                f"{batch.queries.shape[1]}; put it beside losses of shorter vectors, in a sum"
            )
        count, device = len(batch.queries), fixed.device
        names = batch.ids["document"]
        known = torch.tensor([self._classes.get(name, -1) for name in names], device=device)
        columns = torch.arange(len(known), device=device)
        own = (batch.labels > 0)[batch.owners, columns] & batch.mask[batch.owners, columns]
        columns = columns[own & (known >= 0)]  # the positives
        right, owners = known[columns], batch.owners[columns]
        values, weights = [], []
        if self.sides != "document":
            scores = normalize(batch.queries, dim=1) @ fixed.T / self.temperature
            entropies = self._entropies(scores[owners], right, owners, batch.ids["query"])
            means, counted = mean_by_row(entropies, owners, count)
            values.append(means[counted])
            weights.append(counted.nonzero()[:, 0])
        if self.sides != "query":
            scores = normalize(batch.documents[columns], dim=1) @ fixed.T / self.temperature
            values.append(scores.logsumexp(dim=1) - scores.gather(1, right[:, None])[:, 0])
            weights.append(owners)
        every = torch.cat(values)
        shares = None if batch.weights is None else batch.weights[torch.cat(weights)]
        return weighted_mean(every, torch.ones_like(every), shares)

    def _entropies(
        self, scores: Tensor, right: Tensor, owners: Tensor, queries: Sequence[str]
    ) -> Tensor:
        """``[n]``: of each (query, entry), less the query's other relevant entries."""
        cells = [
            (row, other)
            for row, (owner, entry) in enumerate(zip(owners.tolist(), right.tolist(), strict=True))
            for other in self._relevant.get(queries[owner], ())
            if other != entry
        ]
        own = scores.gather(1, right[:, None])[:, 0]
        if cells:
            left_out = torch.zeros_like(scores, dtype=torch.bool)
            left_out[tuple(torch.tensor(cells, device=scores.device).T)] = True
            scores = scores.masked_fill(left_out, floor_of(scores))
        return scores.logsumexp(dim=1) - own

    def state(self) -> dict[str, Tensor]:
        """Return the entries' vectors, with which a resumed training continues."""
        return {} if self._vectors is None else {"vectors": self._vectors.float()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take the vectors of a checkpoint; raises ``DataError`` where the entries are others."""
        vectors = state["vectors"]
        if self._vectors is not None and vectors.shape != self._vectors.shape:
            raise DataError(
                f"entries: the checkpoint has {len(vectors)} entries and these examples "
                f"{len(self._vectors)}; train in another folder"
            )
        self._vectors = vectors


def _entries(examples: Sequence[Example]) -> tuple[list[str], dict[str, int]]:
    """Return the different texts of the positives, and the place of each document's among them."""
    places: dict[str, int] = {}
    texts: list[str] = []
    classes: dict[str, int] = {}
    for example in examples:
        for document in _positives(example):
            key = same_text_key(document.text)
            place = places.setdefault(key, len(places))
            if place == len(texts):
                texts.append(document.text)
            if classes.setdefault(document.id, place) != place:
                raise DataError(
                    f"entries: {document.id!r} is {texts[classes[document.id]]!r} in one example "
                    f"and {document.text!r} in another; give every entry an id of its own"
                )
    return texts, classes


def _relevant(examples: Sequence[Example], classes: Mapping[str, int]) -> dict[str, frozenset[int]]:
    """Return for each query's id the entries relevant to its text, in whichever example."""
    by_text: dict[str, set[int]] = defaultdict(set)
    for example in examples:
        names = {document.id for document in _positives(example)} | example.relevant
        by_text[same_text_key(example.query.text)] |= {classes[n] for n in names if n in classes}
    return {e.query.id: frozenset(by_text[same_text_key(e.query.text)]) for e in examples}


def _positives(example: Example) -> list[Text]:
    pairs = zip(example.documents, example.labels, strict=True)
    return [document for document, label in pairs if label > 0]


def _check(texts: Sequence[str], vectors: NDArray[np.float64]) -> None:
    """Raise ``DataError`` for an entry without a vector, or two with the same."""
    lengths = np.linalg.norm(vectors, axis=1)
    for place in np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))[:1]:
        raise DataError(
            f"entries: the encoder has no vector for the entry {_short(texts[place])}; drop it "
            "from the positives"
        )
    units = np.round(vectors / lengths[:, None], SAME) + 0.0
    seen: dict[bytes, int] = {}
    for place, row in enumerate(units):
        first = seen.setdefault(row.tobytes(), place)
        if first != place:
            raise DataError(
                f"entries: {_short(texts[first])} and {_short(texts[place])} have the same vector, "
                "and no text can be told to be of one of them; make them one entry, drop one, or, "
                "where texts only begin alike, encode more of them (encoder.document_length, "
                "encoder.query_length)"
            )


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
