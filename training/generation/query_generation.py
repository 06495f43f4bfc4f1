"""Generates queries for documents, with a language model or from their own sentences."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.generative.constrained_decoding import Continuations, writes_in_order
from sluice.encoders.model_files.layout import read_object
from sluice.encoders.model_files.loading import lengths_of
from sluice.training.generation.decoding import DiverseBeams, Hypothesis, TopKSampling
from sluice.training.generation.inverse_cloze import Passage, sentences
from sluice.training.generation.query_prompt import (
    QueryPrompt,
    SoftPrompt,
    end_tokens,
    line_breaks,
)

if TYPE_CHECKING:
    from torch import Tensor


DOCUMENT_LENGTH = 384
PROMPTS = {True: "{text}", False: "Document: {text}\nQuery:"}  # by: has an encoder of its own


class Generator(Protocol):
    """Makes queries from documents, the same ones for the same documents."""

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever a query would."""
        ...

    def queries(self, documents: Sequence[Passage]) -> list[list[str]]:
        """Return each document's queries, the best first, no two alike."""
        ...


class ModelGenerator:
    """A transformers model with an encoder and a decoder (doc2query), or a decoder alone.

    ``prompt`` is what the model reads, with ``{text}`` for title and text of the document, which is
    cut to ``document_length`` tokens (384, or fewer if the model has less room). A ``soft`` prompt,
    learnt with the same model, has both and is read before them, its example pairs too. What a
    decoder alone writes ends at the first line break, and what stands in the prompt is dropped: a
    small model repeats its examples. ``by`` is ``DiverseBeams`` or ``TopKSampling``. Only
    safetensors are loaded and no code of the folder is run. ``ModelError`` for a model that does
    not write from left to right.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        by: DiverseBeams | TopKSampling,
        prompt: Annotated[
            str | None, "TEXT", "The model's input, with {text} for the document."
        ] = None,
        document_length: Annotated[int | None, "Most tokens of a document."] = None,
        soft: SoftPrompt | None = None,
        batch: Annotated[int, "Documents in one batch."] = 8,
        seed: Annotated[int, "Random seed."] = 13,
        device: Annotated[str, "cpu, cuda, ..."] = "cpu",
        name: str = "generator",
    ) -> None:
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        if soft is not None and (prompt is not None or document_length is not None):
            raise ConfigError("prompt, document_length: a soft prompt has its own; leave them out")
        self.prompt = PROMPTS[self.encoder_decoder] if prompt is None else prompt
        length = DOCUMENT_LENGTH if document_length is None else document_length
        if soft is not None:
            self.prompt, length = soft.prompt, soft.document_length
        if length < 1 or batch < 1:
            raise ConfigError(f"document_length {length}, batch {batch}: expected 1 or more")
        self.by = by
        self.name = name
        self.soft = soft
        self.model = model.eval().to(device)
        self.tokenizer = tokenizer
        self.device = device
        self.ends = end_tokens(model, tokenizer)
        self.breaks = [] if self.encoder_decoder else line_breaks(tokenizer)
        padding = tokenizer.pad_token_id
        self.pad = self.ends[0] if padding is None else int(padding)  # is masked either way
        if soft is None and document_length is None:
            room = self.room(by.length) - self.prompted_by(self.prompt, 1).fixed(0)
            length = min(length, max(room, 1))
        self._length = length
        self._batch = batch
        self._seed = seed
        self._query_prompt = self.prompted_by(self.prompt, length)
        self._before: Tensor | None = None
        self._shown: list[int] = []
        if soft is not None:
            self._take(soft)
        if not self.encoder_decoder and not writes_in_order(self.model):
            raise ModelError(
                f"{name}: {type(model).__name__} reads a text from both sides and cannot write "
                "one; take a decoder, or an encoder with a decoder"
            )

    def _take(self, soft: SoftPrompt) -> None:
        """Read a soft prompt; ``ModelError`` for one that was learnt with another model."""
        import torch

        width = self.model.get_input_embeddings().weight.shape[1]
        if soft.model != self.weights or soft.vectors.shape[1] != width:
            raise ModelError(
                f"{self.name}: the soft prompt was learnt with other weights, and means nothing to "
                "these; take the model it was learnt with, or learn one with this model"
            )
        self._before = torch.from_numpy(soft.vectors).to(self.device)
        self._shown = self._query_prompt.shown(soft.shots, soft.length)

    def prompted_by(self, prompt: str, document_length: int) -> QueryPrompt:
        """Return what builds this model's input of documents."""
        return QueryPrompt(
            self.tokenizer, prompt, document_length, special=self.encoder_decoder, end=self.ends[0]
        )

    def room(self, written: int) -> int:
        """Return the tokens that the model can read where it writes ``written`` tokens more."""
        _, longest = lengths_of(self.tokenizer, self.model.config)
        return longest if self.encoder_decoder else longest - written

    @classmethod
    def from_pretrained(cls, model: str | Path, **options: Any) -> ModelGenerator:
        """Load a generator by folder or hub id; ``options`` are those of the class."""
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        from sluice.encoders.model_files.layout import transformer_folder
        from sluice.encoders.model_files.loading import load
        from sluice.encoders.model_files.locate import model_folder

        home = transformer_folder(model_folder(str(model)))
        if not (home / "config.json").exists():
            raise ModelError(f"{home}: no config.json; expected a transformers model folder")
        both = bool(read_object(home / "config.json").get("is_encoder_decoder"))
        auto_class = AutoModelForSeq2SeqLM if both else AutoModelForCausalLM
        # An encoder that was made of a decoder may note that it reads from both sides.
        network, tokenizer, _, _ = load(
            auto_class, str(model), fresh=lambda key, model: False, is_causal=True
        )
        return cls(network, tokenizer, name=str(model), **options)

    @cached_property
    def weights(self) -> str:
        """A hash of the weights and the vocabulary."""
        weights = hashlib.sha256()
        for name, value in sorted(self.model.state_dict().items()):
            weights.update(name.encode())
            weights.update(value.detach().cpu().contiguous().numpy().tobytes())
        return fingerprint_of(weights.hexdigest(), self.tokenizer.get_vocab())

    @property
    def fingerprint(self) -> str:
        """A hash of weights, vocabulary and everything that decides what is written."""
        settings = [self.prompt, repr(self.by), self._length, self._seed, self.ends]
        return fingerprint_of(self.weights, settings, self.soft and self.soft.fingerprint)

    def queries(self, documents: Sequence[Passage]) -> list[list[str]]:
        """Return each document's queries, best (or first drawn) first, no two alike."""
        import torch

        # Like lengths beside each other are less padding; what is written does not depend on it.
        order = sorted(range(len(documents)), key=lambda place: -len(documents[place].text))
        queries: list[list[str]] = [[] for _ in documents]
        with torch.inference_mode():
            for start in range(0, len(order), self._batch):
                places = order[start : start + self._batch]
                batch = self._written([documents[place] for place in places])
                for place, hypotheses in zip(places, batch, strict=True):
                    texts = (self._text(each) for each in hypotheses)
                    queries[place] = distinct(text for text in texts if text not in self.prompt)
        return queries

    def _written(self, documents: Sequence[Passage]) -> list[list[Hypothesis]]:
        ids, mask = self._tokens(documents)
        rows = Continuations(self.model, ids, mask, self.by.copies, self._before)
        if isinstance(self.by, DiverseBeams):
            by_text = self.by.search(rows, self.ends, self.breaks)
            return [sorted(each, key=lambda one: -one.score) for each in by_text]
        keys = [document.id for document in documents]
        return self.by.draw(rows, self.ends, keys, self._seed, self.breaks)

    def _tokens(self, documents: Sequence[Passage]) -> tuple[Tensor, Tensor]:
        texts = [f"{document.title} {document.text}".strip() for document in documents]
        rows = self._query_prompt.rows(texts, self._shown)
        return self.padded(rows, left=not self.encoder_decoder)

    def padded(self, rows: Sequence[Sequence[int]], *, left: bool) -> tuple[Tensor, Tensor]:
        """Return ids and mask ``[n, longest]``."""
        import torch

        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self.pad)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            place = slice(width - len(row), width) if left else slice(0, len(row))
            ids[number, place] = torch.tensor(row, dtype=torch.long)
            mask[number, place] = 1
        return ids.to(self.device), mask.to(self.device)

    def _text(self, hypothesis: Hypothesis) -> str:
        text = str(self.tokenizer.decode(hypothesis.tokens, skip_special_tokens=True))
        return (text if self.encoder_decoder else text.split("\n")[0]).strip()


class KeySentences:
    """A baseline without a model: the title, then the sentences of a document's frequent words.

    A sentence is worth the mean count, over the document, of its words of four letters or more.
    """

    def __init__(self, count: int = 3) -> None:
        if count < 1:
            raise ConfigError(f"count: {count}, expected 1 or more")
        self._count = count

    @property
    def fingerprint(self) -> str:
        """A hash of the count."""
        return fingerprint_of("key sentences", self._count)

    def queries(self, documents: Sequence[Passage]) -> list[list[str]]:
        """Return up to ``count`` queries of each document."""
        return [self._choose_sentences(document) for document in documents]

    def _choose_sentences(self, document: Passage) -> list[str]:
        parts = sentences(document.text)
        counts = Counter(_words(document.text))
        worth = {
            place: sum(counts[word] for word in words) / len(words)
            for place, part in enumerate(parts)
            if (words := _words(part))
        }
        best = sorted(worth, key=lambda place: (-worth[place], place))
        return distinct([document.title, *(parts[place] for place in best)])[: self._count]


def distinct(texts: Iterable[str]) -> list[str]:
    """Return the texts that are not blank, without those that differ in case and spacing only."""
    by_key: dict[str, str] = {}
    for text in texts:
        if text.strip():
            by_key.setdefault(same_text_key(text), text.strip())
    return list(by_key.values())


def _words(text: str) -> list[str]:
    words = ("".join(filter(str.isalnum, word)).casefold() for word in text.split())
    return [word for word in words if len(word) >= 4]
