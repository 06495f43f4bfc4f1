"""SEAL: documents are token sequences, and a language model writes n-grams of them for a query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from sluice.encoders.backends.devices import Dtype
from sluice.encoders.encoder import EncoderBase
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.folder_swap import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.token_vectors import TokenSequences, WeightedNgrams
from sluice.encoders.generative.constrained import (
    ConstrainedBeams,
    Keys,
    Ngram,
    NgramIndex,
    key_weight,
    likelihoods,
)
from sluice.encoders.generative.continuations import Continuations
from sluice.encoders.model_files.layout import (
    read_object,
    read_sidecar,
    transformer_folder,
    write_sidecar,
)
from sluice.encoders.model_files.loading import lengths_of, load, save
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.transformer.model import Features, TransformerModel
from sluice.encoders.transformer.tokens import check_texts

BATCH: Final = 8  # queries decoded together
OWN: Final = 32  # n-grams of each query whose likelihood is computed together
SHOWN_FROM: Final = 32  # queries; fewer show no progress
WRITTEN: Final = 16  # tokens that a decoder may write beyond the query it reads
PROMPTS: Final = {True: "{query}", False: "Question: {query}\nEvidence:"}  # has it an encoder?
SETTINGS: Final = ("beams", "length", "unigrams", "query_ngrams", "prompt", "query_length")


class SealEncoder(TransformerModel, EncoderBase):
    """Search by n-grams that a language model writes and an FM-index allows.

    A document is the sequence of its tokens. For a query the model writes, by beam search over
    what occurs in the index, n-grams of up to ``length`` tokens; all n-grams of all steps are keys,
    together with the ``unigrams`` tokens most likely at the first step and the query's own n-grams
    of up to ``query_ngrams`` tokens. A key's weight says how much likelier it is after the query
    than in the corpus, and 0 leaves it out. ``FmIndex`` scores documents by these keys.
    (SEAL; Bevilacqua et al., 2022, Autoregressive search engines.)

    The model is an encoder with a decoder, or a decoder alone, whose ``prompt`` holds ``{query}``.
    ``ModelError`` for a model that does not write from left to right. It must be trained first:
    the loss ``spans``.
    """

    kind = "seal"
    similarity: Literal["ngrams"] = "ngrams"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        beams: int = 15,
        length: int = 10,
        unigrams: int = 5_000,
        query_ngrams: int = 3,
        prompt: str | None = None,
        query_length: int | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
        batch_tokens: int | None = None,
    ) -> None:
        super().__init__(model, tokenizer, device=device, dtype=dtype, batch_tokens=batch_tokens)
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self.beams = whole_number(beams, "beams", 1)
        self.length = whole_number(length, "length", 1)
        self.unigrams = whole_number(unigrams, "unigrams", 0)
        self.query_ngrams = whole_number(query_ngrams, "query_ngrams", 0)
        self.prompt = PROMPTS[self.encoder_decoder] if prompt is None else prompt
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
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        beams: int | None = None,
        length: int | None = None,
        unigrams: int | None = None,
        query_ngrams: int | None = None,
        prompt: str | None = None,
        query_length: int | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
        batch_tokens: int | None = None,
    ) -> SealEncoder:
        """Load a saved encoder, or any causal or encoder-decoder model, by folder or hub id.

        Arguments left at None come from the folder, else from the class. ``beams``: those of the
        search, 15. ``unigrams``: so many of the tokens likeliest at the first step are keys, 5000.
        ``query_ngrams``: the query's own n-grams of up to so many tokens are keys, 3.
        ``query_length``: the most tokens of a query with its prompt.
        """
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        folder = model_folder(str(model))
        home = transformer_folder(folder)
        if not (home / "config.json").exists():
            raise ModelError(f"{home}: no config.json; expected a transformers model folder")
        noted = read_sidecar(folder)
        if noted and noted.get("type") != cls.kind:
            raise ModelError(
                f"{folder}: an encoder of type {noted.get('type')!r}, which writes nothing; take a "
                "language model: a decoder, or an encoder with a decoder"
            )
        both = bool(read_object(home / "config.json").get("is_encoder_decoder"))
        auto_class = AutoModelForSeq2SeqLM if both else AutoModelForCausalLM
        try:
            network, tokenizer, _, _ = load(auto_class, str(model), fresh=lambda key, model: False)
        except ModelError as error:
            raise ModelError(f"seal needs a model that writes text: {error}") from None
        given = {
            "beams": beams, "length": length, "unigrams": unigrams, "query_ngrams": query_ngrams,
            "prompt": prompt, "query_length": query_length,
        }  # fmt: skip
        settings = {name: noted[name] for name in SETTINGS if noted.get(name) is not None}
        settings |= {name: value for name, value in given.items() if value is not None}
        options: dict[str, Any] = {
            "device": device, "dtype": dtype, "batch_tokens": batch_tokens, **settings
        }  # fmt: skip
        try:
            return cls(network, tokenizer, **options)
        except ModelError as error:
            raise ModelError(f"{home}: {error}") from None

    def settings(self) -> Mapping[str, Any]:
        """Return what decides queries besides weights and tokenizer."""
        return {name: getattr(self, name) for name in SETTINGS}

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

    def encode_documents(self, texts: Sequence[str]) -> TokenSequences:
        """Return the token ids of texts, without special tokens, never cut."""
        check_texts(texts)
        return TokenSequences.of([self._plain(text) for text in texts])

    def encode_queries(self, texts: Sequence[str]) -> WeightedNgrams:
        """Raise ``ModelError``: queries are written with the index that they search."""
        raise ModelError(
            "a query of a seal encoder is written with the index that it searches: it has no "
            "vector; search by the retriever, or leave out what needs queries' vectors"
        )

    def decode_queries(self, texts: Sequence[str], index: NgramIndex) -> WeightedNgrams:
        """Return the weighted n-grams that the model writes for each query."""
        check_texts(texts)
        queries: list[list[tuple[Ngram, float]]] = []
        with progress("decode", len(texts), "queries", show=len(texts) >= SHOWN_FROM) as advance:
            for start in range(0, len(texts), BATCH):
                block = texts[start : start + BATCH]
                queries += [self._weighted(keys, index) for keys in self._keys(block, index)]
                advance(len(block))
        return WeightedNgrams.of(queries)

    def terms(self, columns: Sequence[Any]) -> list[str]:
        """Return the texts of n-grams, or of single tokens."""
        ids = [[column] if isinstance(column, int) else list(column) for column in columns]
        return [str(self.tokenizer.decode(each)).strip() for each in ids]

    def _weighted(self, keys: Keys, index: NgramIndex) -> list[tuple[Ngram, float]]:
        """Return the keys that say something, with their weights."""
        weighted = []
        for ngram, chance in keys.items():
            weight = key_weight(chance, index.prefix(ngram).count, index.tokens)
            if weight > 0:
                weighted.append((ngram, weight))
        return weighted

    def _keys(self, texts: Sequence[str], index: NgramIndex) -> list[Keys]:
        """Return the n-grams of each query that occur in the index, with log-probabilities."""
        features = self.tokenize(texts, "query")
        ids, mask = (features[name].to(self.device) for name in ("input_ids", "attention_mask"))
        never = set(self.tokenizer.all_special_ids)
        by = ConstrainedBeams(self.beams, self.length, self.unigrams, never)
        with self.arithmetic():
            keys = by.search(Continuations(self.model, ids, mask, self.beams), index, len(texts))
            own = [
                [
                    ngram
                    for ngram in self._query_ngrams(text, never)
                    if ngram not in known and index.prefix(ngram).count
                ]
                for text, known in zip(texts, keys, strict=True)
            ]
            most = max(map(len, own))
            for start in range(0, most, OWN):
                copies = min(OWN, most - start)
                part = [ngrams[start : start + copies] for ngrams in own]
                rows = Continuations(self.model, ids, mask, copies)
                for known, more in zip(keys, likelihoods(rows, part, copies), strict=True):
                    known.update(more)
        return keys

    def _query_ngrams(self, text: str, never: set[int]) -> Iterator[Ngram]:
        """Yield the n-grams of a query's own tokens, each once."""
        ids = self._plain(text)[: self.query_length]
        ngrams = (
            tuple(ids[start : start + size])
            for size in range(1, self.query_ngrams + 1)
            for start in range(len(ids) - size + 1)
        )
        yield from dict.fromkeys(ngram for ngram in ngrams if never.isdisjoint(ngram))

    def tokenize(self, texts: Sequence[str], side: str) -> Features:
        """Return queries as the model reads them, padded: on the left for a decoder alone."""
        before, after = self._frame
        room = self.query_length - len(before) - len(after)
        rows = [[*before, *self._plain(text)[:room], *after] for text in texts]
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
        if self.query_ngrams > self.written:
            raise ConfigError(
                f"query_ngrams: {self.query_ngrams}, expected at most {self.written}, which the "
                "model writes"
            )

    def _check_causal(self) -> None:
        """Raise ``ModelError`` where what comes later changes what came before."""
        with self.arithmetic():
            size = self.model.get_input_embeddings().num_embeddings
            pairs = torch.tensor([[1, 2], [1, 3]], device=self.device) % size
            first = self.model(input_ids=pairs).logits[:, 0].float()
        if not torch.allclose(first[0], first[1], rtol=1e-3, atol=1e-4):
            raise ModelError(
                f"{type(self.model).__name__} reads a text from both sides and cannot write one; "
                "seal takes a decoder, or an encoder with a decoder"
            )
