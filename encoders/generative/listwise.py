"""Rerankers that write the order of a whole list: language models, which are trained to."""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Protocol, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.encoders.encoder import EncoderBase
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.encoders.generative.constrained_decoding import writes_in_order
from sluice.encoders.generative.list_order import (
    LISTWISE,
    ListOrder,
    Ordered,
    answer_room,
    letter_choices,
    places_won,
    written_order,
)
from sluice.encoders.model_files.layout import SIDECAR, read_sidecar, write_ranker, write_sidecar
from sluice.encoders.model_files.loading import save
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import Computing, takes_options
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.rerankers.local_language_model import LocalLanguageModel
from sluice.encoders.rerankers.next_tokens import end_tokens, first_token_of
from sluice.encoders.transformer.model import Features, TransformerModel
from sluice.encoders.transformer.tokens import Ids

FULL: Final = 0  # as a window: all documents in one prompt
SETTINGS: Final = (
    "prompt", "window", "step", "passes", "first_token", "max_length", "document_length", "chat",
)  # fmt: skip

LABELLED: Final = re.compile(r"\[[0-9A-Z]+\]")

log = logging.getLogger("sluice")


class Head(Protocol):
    """A query's candidates."""

    @property
    def doc_ids(self) -> Sequence[str]:
        """Their ids, the best first."""
        ...


class DocumentTexts(Protocol):
    """Where the texts of documents are."""

    def texts(self, document_ids: Sequence[str]) -> Sequence[str]:
        """Return the texts of documents by their ids."""
        ...


class Answer(NamedTuple):
    """The tokens of an order, with the end, and the rank whose number each writes, from 1.

    0 is what writes no number: separators and the end.
    """

    tokens: list[int]
    ranks: list[int]


class ListwiseRanker(TransformerModel, EncoderBase):
    """A language model that reads a query and numbered documents and writes their order.

    A decoder, or an encoder with a decoder. ``window: 0``, the default, is full ranking: all
    documents in one prompt; else windows of so many, ``step`` apart (half of it by default), go
    over the list ``passes`` times from its back. A document's score is the number of those that
    it is placed before. Texts are cut to ``document_length`` tokens each, and further as needed
    for the prompt and its answer to fit ``max_length``. With ``first_token`` documents have
    letters, and are ordered by how likely each letter is the first that is written.
    (Liu et al. 2025, Sliding windows are not the end, arXiv 2412.14574.)
    """

    kind = "listwise"

    def __init__(
        self,
        reader: LocalLanguageModel,
        *,
        prompt: str | None = None,
        window: int = FULL,
        step: int | None = None,
        passes: int = 1,
        first_token: bool | None = None,
    ) -> None:
        super().__init__(
            reader.model, reader.tokenizer, device=str(reader.device), dtype="float32",
            batch_tokens=reader.batch_tokens,
        )  # fmt: skip
        self.dtype = reader.dtype
        self.encoder_decoder = reader.encoder_decoder
        self.prompt, self.passes, self.first_token = prompt, passes, first_token
        self.window = whole_number(window, "window", 0)
        if step is not None and self.window == FULL:
            raise ConfigError("step: is between windows, and window: 0 is one prompt; leave it out")
        if passes != 1 and self.window == FULL:
            raise ConfigError(
                "passes: repeats windows, and window: 0 is one prompt; leave it out, or set window"
            )
        self.step = step
        self._reader = reader
        self._order = ListOrder(
            reader,
            prompt=LISTWISE if prompt is None else prompt,
            window=self.window or None,
            step=step,
            passes=passes,
            first_token=bool(first_token),
        )
        self._end = end_of(reader)
        self._known = set(inspect.signature(reader.model.forward).parameters)
        if not self.encoder_decoder:
            with self.arithmetic():
                in_order = writes_in_order(self.model)
            if not in_order:
                raise ModelError(
                    f"{type(self.model).__name__} reads a text from both sides and cannot write "
                    "one; listwise takes a decoder, or an encoder with a decoder"
                )

    @classmethod
    @takes_options(Computing)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        prompt: Annotated[
            str | None, "What the model reads, with {query} and {documents}, and perhaps {count}."
        ] = None,
        window: Annotated[int | None, "Documents in one prompt; 0, the default, is all."] = None,
        step: Annotated[
            int | None, "Places that the window moves each time; left out, half of it."
        ] = None,
        passes: Annotated[int | None, "How often the windows go over the list, 1."] = None,
        first_token: Annotated[
            bool | None, "Whether an order is read off the first letter's probabilities (FIRST)."
        ] = None,
        max_length: Annotated[
            int | None, "The most tokens of a prompt with its texts and the answer."
        ] = None,
        document_length: Annotated[
            int | None, "The most tokens of a text; left out, as many as fit."
        ] = None,
        chat: Annotated[
            bool | None,
            "Whether prompts are put into the model's chat form; left out, if it has one.",
        ] = None,
        **options: Unpack[Computing],
    ) -> Self:
        """Load a folder, or any causal or encoder-decoder model; only safetensors.

        What is left out is as in the folder, else as above. ``max_length`` are the tokens of a
        prompt with its answer, and ``chat`` says whether the tokenizer's chat template is used, if
        it has one.
        """
        folder = model_folder(str(model))
        noted = read_sidecar(folder)
        if noted and noted.get("type") != cls.kind:
            raise ModelError(
                f"{folder}: a model of type {noted.get('type')!r}, which writes no order of "
                "documents; expected a language model: a decoder, or an encoder with a decoder"
            )
        given: dict[str, Any] = {
            "prompt": prompt, "window": window, "step": step, "passes": passes,
            "first_token": first_token,
            "max_length": max_length, "document_length": document_length, "chat": chat,
        }  # fmt: skip
        said = {key: value for key, value in given.items() if value is not None}
        saved = {key: noted[key] for key in SETTINGS if noted.get(key) is not None}
        if "window" in said:  # the saved ones are of another window
            saved = {key: value for key, value in saved.items() if key not in ("step", "passes")}
        chosen = {**saved, **said}
        try:
            length = chosen.pop("max_length", None)
            if length is not None:
                whole_number(length, "max_length", 8)
            reader = LocalLanguageModel.from_pretrained(
                folder, context_length=length, document_length=chosen.pop("document_length", None),
                chat=chosen.pop("chat", None), **options,
            )  # fmt: skip
            return cls(reader, **chosen)
        except ConfigError as error:
            text = str(error).replace("context_length", "max_length")
            if not noted or said:
                raise ConfigError(text) from None
            raise ModelError(f"{folder / SIDECAR}: {text}; take it from its source again") from None

    @property
    def max_length(self) -> int:
        """The most tokens of a prompt with its texts and its answer."""
        return self._reader.context_length

    @property
    def document_length(self) -> int | None:
        """The most tokens of a text; None: as many as there is room for."""
        return self._reader.document_length

    @property
    def lengths(self) -> Mapping[str, int]:
        """The most tokens of a list."""
        return {"list": self.max_length}

    def settings(self) -> dict[str, Any]:
        """Return what decides an order besides weights and tokenizer, where it is not usual."""
        given = {name: getattr(self, name) for name in SETTINGS if name != "chat"}
        given["chat"] = self._reader.chat
        return {name: value for name, value in given.items() if value is not None}

    @property
    def fingerprint(self) -> str:
        """A hash of weights, tokenizer and settings."""
        settings = self.settings()
        template = self.tokenizer.chat_template if self._reader.chat else None
        return fingerprint_of(self.weights_hash(), self.kind, settings, template)

    def order(self, query: str, documents: Sequence[str]) -> list[int]:
        """Return the places of documents in the order that the model writes, the best first."""
        return self.ordered({"": query}, {"": documents}).orders[""]

    def ordered(self, queries: Mapping[str, str], texts: Mapping[str, Sequence[str]]) -> Ordered:
        """Return the order of each query's texts, with how many prompts were asked, and in vain."""
        with _own_words():
            return self._order.ordered(queries, texts)

    def score_lists(
        self,
        queries: Mapping[str, str],
        heads: Mapping[str, Head],
        documents: DocumentTexts | None,
    ) -> dict[str, NDArray[np.float64]]:
        """Return how many candidates each one is placed before, float64 ``[candidates]``."""
        if documents is None:
            raise ConfigError(
                "listwise: needs the documents' texts; compose it after a retriever with a "
                "document store"
            )
        ids = list(dict.fromkeys(name for head in heads.values() for name in head.doc_ids))
        texts = dict(zip(ids, documents.texts(ids), strict=True)) if ids else {}
        lists = {query: [texts[name] for name in head.doc_ids] for query, head in heads.items()}
        orders, asked, silent = self.ordered(queries, lists)
        if silent:
            log.warning(
                "listwise: %s of %s answers name no document; their lists keep the order they had",
                f"{silent:,}", f"{asked:,}",
            )  # fmt: skip
        return {query: places_won(order) for query, order in orders.items()}

    def tokenize_lists(self, lists: Sequence[tuple[str, Sequence[str]]]) -> Features:
        """Return what the model reads about queries and documents as they are shown, padded.

        On the left for a decoder alone.
        """
        with _own_words():
            rows: list[Ids] = [
                self._reader.prompt_tokens([self._order.prompt(*each)], answer_room(len(each[1])))[
                    0
                ]
                for each in lists
            ]
        features = self.pad(rows)
        if self.encoder_decoder:
            return features
        width = features["input_ids"].shape[1]
        for number, row in enumerate(rows):
            for values in features.values():
                values[number] = values[number].roll(width - len(row))
        return features

    def answer(self, query: str, shown: Sequence[str], order: Sequence[int]) -> Answer:
        """Return what is to be written about documents that are shown, in an order of places.

        A token that has a character of ``[3]`` writes that number (or letter). ``ModelError`` where
        the order takes more tokens than a search lets a model write.
        """
        prompt = self._order.prompt(query, shown)
        text = written_order(order, letters=bool(self.first_token))
        tokens, characters = self._reader.answer_tokens(prompt, text)
        room = answer_room(len(order))
        if len(tokens) + len(self._end) > room:
            raise ModelError(
                f"{plural(len(tokens), 'token')} for an order of {len(order)} documents, and a "
                f"search lets a model write {room}; take a model whose tokenizer knows numbers"
            )
        rank_of = [0] * len(text)  # each character's
        for rank, found in enumerate(LABELLED.finditer(text), 1):
            rank_of[found.start() : found.end()] = [rank] * len(found.group())
        ranks = [max(rank_of[start:end], default=0) for start, end in characters]
        return Answer([*tokens, *self._end], [*ranks, *[0] * len(self._end)])

    def first_letters(self, query: str, shown: Sequence[str]) -> tuple[int, list[int]]:
        """Return how many tokens an answer has before its first letter, and each text's letter."""
        choices = letter_choices(max(2, len(shown)))  # one alone differs from nothing
        before, own = self._reader.choice_tokens(self._order.prompt(query, shown), choices)
        return len(before), own[: len(shown)]

    def answer_logits(self, features: Features, answers: Tensor) -> Tensor:
        """Return logits ``[n, L, vocabulary]`` of each token of ``answers`` ``[n, L]``.

        Those before a token are read, those after it are not; answers are padded at the end with
        any token.
        """
        if self.encoder_decoder:
            start = torch.full_like(answers[:, :1], first_token_of(self.model.config))
            shifted = torch.cat([start, answers[:, :-1]], dim=1)
            output = self.model(**features, decoder_input_ids=shifted, use_cache=False)
            whole: Tensor = output.logits
            return whole
        width = answers.shape[1]
        ids = torch.cat([features["input_ids"], answers], dim=1)
        mask = torch.cat([features["attention_mask"], torch.ones_like(answers)], dim=1)
        options: dict[str, Any] = {}
        if "position_ids" in self._known:  # padding on the left takes no position
            options["position_ids"] = (mask.cumsum(dim=1) - 1).clamp_min(0)
        if "logits_to_keep" in self._known:  # all logits of a prompt would take gigabytes
            options["logits_to_keep"] = width + 1
        output = self.model(input_ids=ids, attention_mask=mask, use_cache=False, **options)
        logits: Tensor = output.logits[:, -width - 1 : -1]
        return logits

    def log_probabilities(self, lists: Sequence[tuple[str, Sequence[str]]]) -> NDArray[np.float64]:
        """Return how likely lists are written as they are shown, float64 ``[n]``, logarithms."""
        values = np.zeros(len(lists))
        for row, (query, shown) in enumerate(lists):
            tokens, _ = self.answer(query, shown, range(len(shown)))
            answer = torch.tensor([tokens], device=self.device)
            features = self.tokenize_lists([(query, shown)])
            with self.arithmetic():
                here = {name: each.to(self.device) for name, each in features.items()}
                logs = self.answer_logits(here, answer)[0].double().log_softmax(dim=-1)
                values[row] = float(logs.gather(1, answer.T).sum())
        return values

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder that transformers opens too, in one step."""
        with replaced_folder(Path(path)) as folder:
            save(self.model, folder)
            self.tokenizer.save_pretrained(folder)
            write_sidecar(folder, {"type": self.kind, **self.settings()})
            write_ranker(folder, "prompt")
            write_probes(folder, self)


@contextlib.contextmanager
def _own_words() -> Iterator[None]:
    """Say of a list that does not fit what may be set here."""
    try:
        yield
    except ConfigError as error:
        text = str(error).replace(
            "raise context_length", "show fewer documents, or raise max_length"
        )
        raise ConfigError(text) from None


def end_of(reader: LocalLanguageModel) -> list[int]:
    """Return the token that ends a model's answers; none where it knows none."""
    ends = end_tokens(reader.model, reader.tokenizer)
    own = reader.tokenizer.eos_token_id
    return [own] if own in ends else sorted(ends)[:1]
