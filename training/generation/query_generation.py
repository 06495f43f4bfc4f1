"""Generates queries for documents, with a language model or from their own sentences."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.input.same_text import same_text_key
from sluice.encoders.generative.continuations import Continuations
from sluice.training.generation.decoding import DiverseBeams, Hypothesis, TopKSampling
from sluice.training.generation.inverse_cloze import Passage, sentences

if TYPE_CHECKING:
    from torch import Tensor

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

    ``prompt`` is what the model reads, with ``{text}`` for title and text of the document. What a
    decoder alone writes is cut at the first line break. ``by`` is ``DiverseBeams`` or
    ``TopKSampling``. Only safetensors are loaded and no code of the folder is run. The document is
    cut to ``document_length`` tokens.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        by: DiverseBeams | TopKSampling,
        prompt: str | None = None,
        document_length: int = 384,
        batch: int = 8,
        seed: int = 13,
        device: str = "cpu",
        name: str = "generator",
    ) -> None:
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self.prompt = PROMPTS[self.encoder_decoder] if prompt is None else prompt
        if "{text}" not in self.prompt:
            raise ConfigError(f"prompt: {self.prompt!r}; expected {{text}} where the document goes")
        if document_length < 1 or batch < 1:
            raise ConfigError(
                f"document_length {document_length}, batch {batch}: expected 1 or more"
            )
        self.by = by
        self.name = name
        self._model = model.eval().to(device)
        self._tokenizer = tokenizer
        self._length = document_length
        self._batch = batch
        self._seed = seed
        self._device = device
        self._ends = _ends(model, tokenizer)
        padding = tokenizer.pad_token_id
        self._pad = self._ends[0] if padding is None else int(padding)  # is masked either way
        self._fingerprint: str | None = None

    @classmethod
    def from_pretrained(cls, model: str | Path, **options: Any) -> ModelGenerator:
        """Load a generator by folder or hub id; ``options`` are those of the class."""
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        from sluice.encoders.model_files.layout import read_object, transformer_folder
        from sluice.encoders.model_files.loading import load
        from sluice.encoders.model_files.locate import model_folder

        home = transformer_folder(model_folder(str(model)))
        if not (home / "config.json").exists():
            raise ModelError(f"{home}: no config.json; expected a transformers model folder")
        both = bool(read_object(home / "config.json").get("is_encoder_decoder"))
        auto_class = AutoModelForSeq2SeqLM if both else AutoModelForCausalLM
        network, tokenizer, _, _ = load(auto_class, str(model), fresh=lambda key, model: False)
        return cls(network, tokenizer, name=str(model), **options)

    @property
    def fingerprint(self) -> str:
        """A hash of weights, vocabulary and everything that decides what is written."""
        if self._fingerprint is None:
            weights = hashlib.sha256()
            for name, value in sorted(self._model.state_dict().items()):
                weights.update(name.encode())
                weights.update(value.detach().cpu().contiguous().numpy().tobytes())
            settings = [self.prompt, repr(self.by), self._length, self._seed, self._ends]
            vocabulary = self._tokenizer.get_vocab()
            self._fingerprint = fingerprint_of(weights.hexdigest(), vocabulary, settings)
        return self._fingerprint

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
                    queries[place] = distinct(self._text(each) for each in hypotheses)
        return queries

    def _written(self, documents: Sequence[Passage]) -> list[list[Hypothesis]]:
        ids, mask = self._tokens(documents)
        rows = Continuations(self._model, ids, mask, self.by.copies)
        if isinstance(self.by, DiverseBeams):
            by_text = self.by.search(rows, self._ends)
            return [sorted(each, key=lambda one: -one.score) for each in by_text]
        return self.by.draw(rows, self._ends, [document.id for document in documents], self._seed)

    def _tokens(self, documents: Sequence[Passage]) -> tuple[Tensor, Tensor]:
        import torch

        before, _, after = self.prompt.partition("{text}")
        tokenizer, special = self._tokenizer, self.encoder_decoder
        frame = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, after)]
        texts = [f"{document.title} {document.text}".strip() for document in documents]
        inner = tokenizer(texts, add_special_tokens=False, truncation=True, max_length=self._length)
        rows = [[*frame[0], *own, *frame[1]] for own in inner["input_ids"]]
        if special:
            first, last = _special(tokenizer)
            rows = [[*first, *row, *last] for row in rows]
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self._pad)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            place = slice(0, len(row)) if special else slice(width - len(row), width)
            ids[number, place] = torch.tensor(row, dtype=torch.long)
            mask[number, place] = 1
        return ids.to(self._device), mask.to(self._device)

    def _text(self, hypothesis: Hypothesis) -> str:
        text = str(self._tokenizer.decode(hypothesis.tokens, skip_special_tokens=True))
        return (text if self.encoder_decoder else text.lstrip().split("\n")[0]).strip()


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
        return [self._chosen(document) for document in documents]

    def _chosen(self, document: Passage) -> list[str]:
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


def _special(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after a text."""
    bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    full = list(tokenizer("a")["input_ids"])
    start = next(n for n in range(len(full)) if full[n : n + len(bare)] == bare)
    return full[:start], full[start + len(bare) :]


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end what a model writes, as its folder says."""
    settings = getattr(model, "generation_config", None)
    for home in (settings, model.config, tokenizer):
        ends = getattr(home, "eos_token_id", None)
        if ends is not None:
            return [int(token) for token in (ends if isinstance(ends, list) else [ends])]
    raise ModelError(f"{type(model).__name__}: has no end token; a generator needs one")
