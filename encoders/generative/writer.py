"""What encoders share whose queries a language model writes: prompts, beams, logits, folders."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, Protocol, Unpack

import numpy as np
import torch
from torch import Tensor

from sluice.encoders.encoder import EncoderBase
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.generative.constrained_decoding import (
    Continuations,
    Following,
    Keys,
    Ngram,
    writes_in_order,
)
from sluice.encoders.generative.identifiers import FREE
from sluice.encoders.model_files.layout import (
    append_module,
    network_config,
    read_object,
    read_sidecar,
    transformer_folder,
    write_sidecar,
)
from sluice.encoders.model_files.loading import lengths_of, load, save
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import Computing
from sluice.encoders.transformer.model import Features, TransformerModel


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
        network_config(home)
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
