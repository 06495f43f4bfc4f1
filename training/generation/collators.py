"""The batches by which models learn to write identifiers, spans and orders of documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.collator import Batch
from sluice.training.batches.forward import IGNORED, TrainedModule, drawn_bytes
from sluice.training.batches.processes import rank, shares, world
from sluice.training.protocol import Example, Features, LetterWriter, Text


class DrawingCollator(ABC):
    """Makes features of queries alone; what it draws is a function of seed, epoch and query.

    So the order of the queries, and how many processes share a batch, change nothing.
    """

    def __init__(self, encoder: Any, seed: int) -> None:
        self.encoder = encoder
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next batches are drawn by."""
        self.epoch = epoch

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Return the features of this process's part of the queries, and the ids of all."""
        parts = [examples[part] for part in shares(len(examples), world())]
        return {
            "features": {"query": self.features(parts[rank()])},
            "sizes": {"query": [len(part) for part in parts]},
            "ids": {"query": tuple(e.query.id for e in examples), "document": ()},
        }

    @abstractmethod
    def features(self, examples: Sequence[Example]) -> Features:
        """Return tokenised queries, and ``labels``: the tokens to write, or ``IGNORED``."""

    def digest(self, example: Example) -> bytes:
        """Return the bytes, 32 of them, that decide an example's draws in this epoch."""
        return drawn_bytes(self.seed, self.epoch, example.query.id)

    def chance(self, example: Example) -> np.random.Generator:
        """Return the generator of an example's draws in this epoch."""
        return np.random.default_rng(int.from_bytes(self.digest(example)[:16], "little"))


class IdentifierCollator(DrawingCollator):
    """Takes the identifier of one positive of each query, drawn by seed, epoch and query.

    ``DataError`` for a positive that the encoder was not assigned an identifier of.
    """

    def features(self, examples: Sequence[Example]) -> Features:
        """Return the queries' features, and ``labels`` ``[n, 1, longest]``."""
        codes = [self.draw(each) for each in examples]
        labels = np.full((len(examples), 1, max(map(len, codes), default=1)), IGNORED, np.int64)
        for row, code in enumerate(codes):
            labels[row, 0, : len(code)] = code
        features: Features = dict(self.encoder.tokenize([e.query.text for e in examples], "query"))
        features["labels"] = torch.from_numpy(labels)
        return features

    def draw(self, example: Example) -> tuple[int, ...]:
        """Return the identifier of one of an example's positives."""
        positives = [
            text.id for text, label in zip(example.documents, example.labels, strict=True)
            if label > 0
        ]  # fmt: skip
        name = positives[int.from_bytes(self.digest(example)[:8], "little") % len(positives)]
        code: tuple[int, ...] | None = self.encoder.codes.get(name)
        if code is None:
            raise DataError(
                f"query {example.query.id!r}: its document {name!r} has no identifier; it is not "
                "in the corpus that identifiers were assigned to"
            )
        return code


class RankingCollator(DrawingCollator):
    """Shows each query's documents in an order drawn by seed, epoch and query.

    What is to be written is their order by label; documents of equal labels follow as they are
    shown. Of an example that orders nothing no token counts. With ``letters`` features tell where
    the first letter is written, and those of each list.
    """

    encoder: LetterWriter  # without ``letters`` any ListWriter

    def __init__(self, encoder: Any, seed: int, *, letters: bool = False) -> None:
        super().__init__(encoder, seed)
        self.letters = letters

    def features(self, examples: Sequence[Example]) -> Features:
        """Return the prompts' features, and ``labels`` and ``ranks`` ``[n, longest]``.

        With ``letters`` also ``first`` ``[n]``, the column of the first letter in ``labels``, and
        ``letters`` and ``grades`` ``[n, documents]``, the letters' tokens by rank, and of each the
        number of grades below its own.
        """
        shown = [self.shown(each) for each in examples]
        lists = [
            (each.query.text, [each.documents[place].text for place in places])
            for each, places in zip(examples, shown, strict=True)
        ]
        answers, firsts = [], []
        for each, places, (query, texts) in zip(examples, shown, lists, strict=True):
            labels = np.array([each.labels[place] for place in places])
            order = np.argsort(-labels, kind="stable").tolist()
            tokens, ranks = self.encoder.answer(query, texts, order)
            answers.append((tokens if orders(each) else [IGNORED] * len(tokens), ranks))
            if self.letters:
                column, own = self.encoder.first_letters(query, texts)
                grades = np.unique(labels, return_inverse=True)[1][order]
                firsts.append((column, [own[place] for place in order], grades.tolist()))
        features: Features = dict(self.encoder.tokenize_lists(lists))
        features["labels"] = _pad_rows([tokens for tokens, _ in answers], IGNORED)
        features["ranks"] = _pad_rows([ranks for _, ranks in answers], 0)
        if self.letters:
            features["first"] = torch.tensor([column for column, _, _ in firsts])
            features["letters"] = _pad_rows([own for _, own, _ in firsts], 0)
            features["grades"] = _pad_rows([grades for _, _, grades in firsts], IGNORED)
        return features

    def shown(self, example: Example) -> list[int]:
        """Return the places of an example's documents in the order they are shown."""
        places: list[int] = self.chance(example).permutation(len(example.documents)).tolist()
        return places


def orders(example: Example) -> bool:
    """Return whether an example has documents of different labels."""
    return len(set(example.labels)) > 1


def _pad_rows(rows: Sequence[Sequence[int]], padding: int) -> Tensor:
    values = torch.full((len(rows), max(map(len, rows), default=1)), padding)
    for number, row in enumerate(rows):
        values[number, : len(row)] = torch.tensor(row, dtype=torch.long)
    return values


class RankingModule(TrainedModule):
    """Lists to how badly the tokens of their orders are predicted."""

    def __init__(self, encoder: Any, *, importance: float, smoothing: float) -> None:
        super().__init__(encoder)
        self.encoder = encoder
        self.importance = importance
        self.smoothing = smoothing

    def forward(self, query: Features) -> dict[str, Tensor]:
        """Return ``query`` ``[n, 2]``: weighted sums of cross-entropies, and numbers of tokens.

        Where the collator tells letters ``[n, 4]``: also ``first_ranks``, and 1 for each list of
        different grades.
        """
        labels, ranks = query["labels"], query["ranks"]
        own = {"labels", "ranks", "first", "letters", "grades"}
        features = {name: query[name] for name in query if name not in own}
        logits = self.encoder.answer_logits(features, labels.clamp_min(0))
        entropies = cross_entropy(
            logits.float().flatten(0, 1) if logits.element_size() < 4 else logits.flatten(0, 1),
            labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=self.smoothing,
            reduction="none",
        ).view(labels.shape)
        sums = (entropies * importances(ranks, self.importance).to(entropies.dtype)).sum(1)
        parts = [sums, (labels != IGNORED).sum(1).to(sums.dtype)]
        if "letters" in query:
            rows = torch.arange(len(labels), device=labels.device)
            scores = logits[rows, query["first"]].gather(1, query["letters"]).to(sums.dtype)
            parts += first_ranks(scores, query["grades"])
        return {"query": torch.stack(parts, dim=1)}


def first_ranks(scores: Tensor, grades: Tensor) -> tuple[Tensor, Tensor]:
    """Return each list's weighted RankNet ``[n]``, and whether it has pairs of different grades.

    ``scores`` and ``grades`` ``[n, m]`` are in the order of grades, the best first, and
    ``IGNORED`` where a list has ended. (FIRST, Reddy et al. 2024, arXiv 2406.15657, section 3.2.)
    """
    known = grades != IGNORED
    pairs = (grades[:, :, None] > grades[:, None, :]) & known[:, :, None] & known[:, None, :]
    ranks = torch.arange(1, scores.shape[1] + 1, device=scores.device, dtype=scores.dtype)
    terms = softplus(scores[:, None, :] - scores[:, :, None]) / (ranks[:, None] + ranks)
    count = pairs.sum((1, 2))
    means = terms.where(pairs, 0.0).sum((1, 2)) / count.clamp(min=1)
    return means, (count > 0).to(scores.dtype)


def importances(ranks: Tensor, importance: float) -> Tensor:
    """Return ``1 + importance / log2(1 + r)`` for ranks r from 1, and 1 where they are 0."""
    more = importance / torch.log2(1 + ranks.clamp_min(1).double())
    return torch.where(ranks > 0, 1 + more, 1.0)


class SpanCollator(DrawingCollator):
    """Draws spans of each query's positives, as a function of seed, epoch and query.

    One positive is drawn for each span, and a span begins at a token drawn with the softmax of
    ``overlap / temperature`` over the document's spans of ``length`` tokens; ``overlap`` is the
    share of the query's character trigrams that the span has. A shorter document is one span. (The
    supervision of SEAL's code; Bevilacqua et al. 2022, section 3.4.)
    """

    def __init__(
        self, encoder: Any, *, spans: int, length: int, temperature: float, seed: int
    ) -> None:
        super().__init__(encoder, seed)
        self.spans = spans
        self.length = length
        self.temperature = temperature

    def features(self, examples: Sequence[Example]) -> Features:
        """Return the queries' features, and ``labels`` ``[n, spans, length]``."""
        features: Features = dict(self.encoder.tokenize([e.query.text for e in examples], "query"))
        features["labels"] = torch.from_numpy(np.stack([self.draw(each) for each in examples]))
        return features

    def draw(self, example: Example) -> np.ndarray:
        """Return an example's spans ``[spans, length]``, filled up with ``IGNORED``."""
        chance = self.chance(example)
        positives = [
            text for text, label in zip(example.documents, example.labels, strict=True) if label > 0
        ]
        labels = np.full((self.spans, self.length), IGNORED, np.int64)
        sequences = dict[Text, tuple[np.ndarray, np.ndarray]]()
        for row in range(self.spans):
            text = positives[chance.integers(len(positives))]
            if text not in sequences:
                ids = self.encoder.encode_documents([text.text]).ids
                sequences[text] = ids, self.chances(example.query.text, ids)
            ids, chances = sequences[text]
            if len(chances):
                start = int(chance.choice(len(chances), p=chances))
                span = ids[start : start + self.length]
                labels[row, : len(span)] = span
        return labels

    def chances(self, query: str, ids: np.ndarray) -> np.ndarray:
        """Return how likely each span of a document is drawn, by the token it begins at."""
        if not len(ids):
            return np.zeros(0)
        starts = range(max(1, len(ids) - self.length + 1))
        texts = self.encoder.terms([ids[at : at + self.length].tolist() for at in starts])
        exponents = np.array([overlap(query, text) for text in texts]) / self.temperature
        weights = np.exp(exponents - exponents.max())
        shares_of: np.ndarray = weights / weights.sum()
        return shares_of


def overlap(query: str, text: str) -> float:
    """Return the share of the query's character trigrams that a text has, from 0 to 1."""
    own, other = trigrams(query), trigrams(text)
    return sum((own & other).values()) / max(1, sum(own.values()))


def trigrams(text: str) -> Counter[str]:
    """Count the character trigrams of a text in small letters, with a space at both ends."""
    plain = f" {' '.join(text.lower().split())} "
    return Counter(plain[at : at + 3] for at in range(len(plain) - 2))


class SpanModule(TrainedModule):
    """Queries to how badly the tokens of their spans are predicted."""

    def __init__(self, encoder: Any, *, smoothing: float) -> None:
        super().__init__(encoder)
        self.encoder = encoder
        self.smoothing = smoothing

    def forward(self, query: Features) -> dict[str, Tensor]:
        """Return ``query`` ``[n, 2]``: summed cross-entropy and number of tokens of its spans."""
        labels = query["labels"]
        features = {name: values for name, values in query.items() if name != "labels"}
        logits = self.encoder.span_logits(features, labels.clamp_min(0))
        entropies = cross_entropy(
            logits.float().flatten(0, 1),
            labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=self.smoothing,
            reduction="none",
        )
        sums = entropies.view(len(labels), -1).sum(1)
        counts = (labels != IGNORED).flatten(1).sum(1).to(sums.dtype)
        return {"query": torch.stack([sums, counts], dim=1)}
