"""SEAL: documents are token sequences, and a language model writes n-grams of them for a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Unpack

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.tokens import TokenSequences, WeightedNgrams
from sluice.encoders.generative.constrained_decoding import (
    ConstrainedBeams,
    Continuations,
    Keys,
    Ngram,
    NgramIndex,
    key_weight,
    likelihoods,
)
from sluice.encoders.generative.writer import BATCH, SHOWN_FROM, Writer
from sluice.encoders.model_files.options import Computing, takes_options
from sluice.encoders.transformer.tokens import check_texts

OWN: Final = 32  # n-grams of each query whose likelihood is computed together
PROMPTS: Final = {True: "{query}", False: "Question: {query}\nEvidence:"}  # has it an encoder?


class SealEncoder(Writer):
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
    prompts_by_default = PROMPTS
    own_settings = ("beams", "length", "unigrams", "query_ngrams", "prompt", "query_length")

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
        **computing: Unpack[Computing],
    ) -> None:
        super().__init__(
            model, tokenizer, length=length, prompt=prompt, query_length=query_length, **computing
        )
        self.beams = whole_number(beams, "beams", 1)
        self.unigrams = whole_number(unigrams, "unigrams", 0)
        self.query_ngrams = whole_number(query_ngrams, "query_ngrams", 0)
        if self.query_ngrams > self.written:
            raise ConfigError(
                f"query_ngrams: {self.query_ngrams}, expected at most {self.written}, which the "
                "model writes"
            )

    @classmethod
    @takes_options(Computing)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        beams: int | None = None,
        length: Annotated[int | None, "The most tokens of an n-gram, 10."] = None,
        unigrams: int | None = None,
        query_ngrams: int | None = None,
        prompt: Annotated[
            str | None, "What the model reads, with {query} where the query goes."
        ] = None,
        query_length: int | None = None,
        **options: Unpack[Computing],
    ) -> SealEncoder:
        """Load a saved encoder, or any causal or encoder-decoder model, by folder or hub id.

        Arguments left at None come from the folder, else from the class. ``beams``: those of the
        search, 15. ``unigrams``: so many of the tokens likeliest at the first step are keys, 5000.
        ``query_ngrams``: the query's own n-grams of up to so many tokens are keys, 3.
        ``query_length``: the most tokens of a query with its prompt.
        """
        given = {
            "beams": beams, "length": length, "unigrams": unigrams, "query_ngrams": query_ngrams,
            "prompt": prompt, "query_length": query_length,
        }  # fmt: skip
        network, tokenizer, settings, folder = cls.opened(model, given)
        try:
            return cls(network, tokenizer, **settings, **options)
        except ModelError as error:
            raise ModelError(f"{folder}: {error}") from None

    def encode_documents(self, texts: Sequence[str]) -> TokenSequences:
        """Return the token ids of texts, without special tokens, never cut."""
        check_texts(texts)
        return TokenSequences.of([self._plain(text) for text in texts])

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
