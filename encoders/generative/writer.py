"""What encoders share whose queries a language model writes: prompts, batches, logits, folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, Unpack

import torch
from torch import Tensor

from sluice.encoders.encoder import EncoderBase
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.generative.constrained_decoding import writes_in_order
from sluice.encoders.model_files.layout import (
    append_module,
    read_object,
    read_sidecar,
    transformer_folder,
    write_sidecar,
)
from sluice.encoders.model_files.loading import lengths_of, load, save
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import Computing
from sluice.encoders.transformer.model import Features, TransformerModel

BATCH: Final = 8  # queries decoded together
SHOWN_FROM: Final = 32  # queries; fewer show no progress
WRITTEN: Final = 16  # tokens that a decoder may write beyond the query it reads


class Writer(TransformerModel, EncoderBase):
    """A language model that reads a query in its ``prompt`` and writes tokens an index allows.

    An encoder with a decoder, or a decoder alone, which writes at most ``length`` tokens after
    ``query_length`` of the prompt and the query. ``ModelError`` for a model that does not write
    from left to right.
    """

    prompts_by_default: ClassVar[Mapping[bool, str]]  # has it an encoder?
    own_settings: ClassVar[tuple[str, ...]] = ()
    prompt: str

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        length: int,
        prompt: str | None,
        query_length: int | None,
        **computing: Unpack[Computing],
    ) -> None:
        super().__init__(model, tokenizer, **computing)
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self.length = whole_number(length, "length", 1)
        self.prompt = self.prompts_by_default[self.encoder_decoder] if prompt is None else prompt
        if self.prompt.count("{query}") != 1:
            raise ConfigError(
                f"prompt: {self.prompt!r}; expected {{query}} once, where the query goes"
            )
        usual, longest = lengths_of(tokenizer, model.config)
        self.written = usual if self.encoder_decoder else max(self.length, WRITTEN)
        self._frame = self._frame_of(tokenizer)
        most = usual if self.encoder_decoder else longest - self.written
        self.query_length = min(usual, most)
        if query_length is not None:
            self.query_length = whole_number(query_length, "query_length", 1)
        self._check_room(most)
        if not self.encoder_decoder:
            self._check_causal()

    @classmethod
    def opened(
        cls, model: str | Path, given: Mapping[str, Any]
    ) -> tuple[Any, Any, dict[str, Any], Path]:
        """Return network, tokenizer, settings and folder of a model, by folder or hub id.

        The settings are those ``given`` that are not None, else those the folder was saved with.
        """
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        folder = model_folder(str(model))
        home = transformer_folder(folder)
        if not (home / "config.json").exists():
            raise ModelError(f"{home}: no config.json; expected a transformers model folder")
        noted = read_sidecar(folder)
        if noted and noted.get("type") != cls.kind:
            raise ModelError(
                f"{folder}: an encoder of type {noted.get('type')!r}, which writes nothing for "
                f"{cls.kind}; take a language model: a decoder, or an encoder with a decoder"
            )
        both = bool(read_object(home / "config.json").get("is_encoder_decoder"))
        auto_class = AutoModelForSeq2SeqLM if both else AutoModelForCausalLM
        try:
            network, tokenizer, _, _ = load(auto_class, str(model), fresh=lambda key, model: False)
        except ModelError as error:
            raise ModelError(f"{cls.kind} needs a model that writes text: {error}") from None
        settings = {name: noted[name] for name in cls.own_settings if noted.get(name) is not None}
        settings |= {name: value for name, value in given.items() if value is not None}
        return network, tokenizer, settings, folder

    def settings(self) -> Mapping[str, Any]:
        """Return what decides queries besides weights and tokenizer."""
        return {name: getattr(self, name) for name in self.own_settings}

    @property
    def lengths(self) -> Mapping[str, int]:
        """The most tokens of a query; documents are read whole."""
        return {"query": self.query_length}

    @property
    def fingerprint(self) -> str:
        """A hash of weights, tokenizer and settings."""
        return fingerprint_of(self.weights_hash(), self.kind, dict(self.settings()))

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder that ``from_pretrained`` and transformers open, in one step."""
        with replaced_folder(Path(path)) as folder:
            save(self.model, folder)
            self.tokenizer.save_pretrained(folder)
            write_sidecar(folder, {"type": self.kind, **self.settings()})
            self._save_own(folder)
            append_module(folder, "generation")

    def _save_own(self, folder: Path) -> None:
        """Write what a type has besides weights, tokenizer and settings."""

    def encode_queries(self, texts: Sequence[str]) -> NoReturn:
        """Raise ``ModelError``: queries are written with the index that they search."""
        raise ModelError(
            f"a query of a {self.kind} encoder is written with the index that it searches: it has "
            "no vector; search by the retriever, or leave out what needs queries' vectors"
        )

    def tokenize(self, texts: Sequence[str], side: str) -> Features:
        """Return queries as the model reads them, padded: on the left for a decoder alone."""
        before, after = self._frame
        room = self.query_length - len(before) - len(after)
        plain = self.tokenizer(
            [f" {text}" for text in texts], add_special_tokens=False, verbose=False
        ).input_ids
        rows = [[*before, *ids[:room], *after] for ids in plain]
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), int(self.tokenizer.pad_token_id))
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            start = 0 if self.encoder_decoder else width - len(row)
            ids[number, start : start + len(row)] = torch.tensor(row, dtype=torch.long)
            mask[number, start : start + len(row)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def span_logits(self, features: Features, spans: Tensor) -> Tensor:
        """Return logits ``[n * s, L, vocabulary]`` of each token of ``spans`` ``[n, s, L]``.

        Those before a token are read, those after it are not; n is the number of queries, of which
        each has s spans, padded with any token at the end.
        """
        count, copies, width = spans.shape
        flat = spans.reshape(count * copies, width)
        mask = features["attention_mask"].repeat_interleave(copies, dim=0)
        if self.encoder_decoder:
            from transformers.modeling_outputs import BaseModelOutput

            encoded = self.model.get_encoder()(**features).last_hidden_state
            start = self.model.config.decoder_start_token_id
            start = self.model.config.pad_token_id if start is None else start
            shifted = torch.cat([torch.full_like(flat[:, :1], int(start)), flat[:, :-1]], dim=1)
            output = self.model(
                encoder_outputs=BaseModelOutput(
                    last_hidden_state=encoded.repeat_interleave(copies, dim=0)
                ),
                attention_mask=mask,
                decoder_input_ids=shifted,
                use_cache=False,
            )
            logits: Tensor = output.logits
            return logits
        ids = torch.cat([features["input_ids"].repeat_interleave(copies, dim=0), flat], dim=1)
        mask = torch.cat([mask, torch.ones_like(flat)], dim=1)
        places = (mask.cumsum(dim=1) - 1).clamp_min(0)
        output = self.model(
            input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False
        )
        logits = output.logits[:, -width - 1 : -1]
        return logits

    def _plain(self, text: str) -> list[int]:
        """Return a text's tokens as they stand inside a text: after a space."""
        return list(self.tokenizer(f" {text}", add_special_tokens=False, verbose=False).input_ids)

    def _frame_of(self, tokenizer: Any) -> tuple[list[int], list[int]]:
        """Return the tokens before and after a query: the prompt's, and special ones."""
        parts = self.prompt.split("{query}")
        before, after = (
            list(tokenizer(part, add_special_tokens=False).input_ids) for part in parts
        )
        if not self.encoder_decoder:
            return before, after
        bare = list(tokenizer("a", add_special_tokens=False).input_ids)
        full = list(tokenizer("a").input_ids)
        at = next(n for n in range(len(full)) if full[n : n + len(bare)] == bare)
        return [*full[:at], *before], [*after, *full[at + len(bare) :]]

    def _check_room(self, most: int) -> None:
        """Raise ``ConfigError`` where the settings leave no room for a query of ``most`` tokens."""
        framed = sum(map(len, self._frame))
        if framed >= most:
            raise ConfigError(
                f"length: {self.written} tokens to write and {framed} of the prompt leave no room "
                "for a query in this model; lower length, or shorten the prompt"
            )
        if not framed < self.query_length <= most:
            raise ConfigError(
                f"query_length: {self.query_length}; the prompt takes {framed} tokens and the "
                f"model {most}: expected {framed + 1} to {most}"
            )

    def _check_causal(self) -> None:
        """Raise ``ModelError`` where what comes later changes what came before."""
        with self.arithmetic():
            in_order = writes_in_order(self.model)
        if not in_order:
            raise ModelError(
                f"{type(self.model).__name__} reads a text from both sides and cannot write one; "
                f"{self.kind} takes a decoder, or an encoder with a decoder"
            )
