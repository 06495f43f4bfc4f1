"""Makes a SPLADE encoder of a headless model, and fits idf weights and quantiles to a corpus.

(Geng et al., 2025, arXiv 2411.04403; Lassance et al., 2023, arXiv 2304.12702.)
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.encoders.foundation.bounded_input import Reservoir
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.foundation.processes import trim_memory
from sluice.encoders.model_files.loading import is_head, lengths_of, load
from sluice.encoders.splade.encoder import SpladeEncoder
from sluice.encoders.splade.mlm_head import SILENT, MlmHead, build_mlm_head, install_mlm_head
from sluice.encoders.splade.settings import check_static
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder
from sluice.encoders.transformer.tokens import Ids, TokenBatch, Tokens, tokenized

CHUNK = 2_048  # texts tokenised or encoded at a time


def inverse_document_frequency(tokens: Iterable[Ids], size: int) -> Tensor:
    """Return ``log(1 + (N - df + 0.5) / (df + 0.5))`` of every token, float64 ``[size]``.

    ``df`` of the ``N`` texts contain the token. Raises ``DataError`` without texts.
    """
    frequency, count = np.zeros(size), 0
    for ids in tokens:
        frequency[np.unique(ids)] += 1
        count += 1
    if not count:
        raise DataError("idf: no texts; inverse document frequencies need a corpus to count in")
    return torch.from_numpy(np.log1p((count - frequency + 0.5) / (frequency + 0.5)))


def idf_from_texts(
    tokenizer: Any, texts: Iterable[str], size: int, *, length: int | None = None
) -> Tensor:
    """Return the inverse document frequencies of tokens over the texts, ``[size]``.

    A text counts by its first ``length`` tokens; special tokens weigh 0. Texts are streamed.
    """
    chunks = (tokenized(tokenizer, chunk, length=length).ids for chunk in _chunks(texts))
    weights = inverse_document_frequency(itertools.chain.from_iterable(chunks), size).float()
    weights[[i for i in tokenizer.all_special_ids if i < size]] = 0.0
    return weights


def fit_idf(encoder: SpladeEncoder, texts: Iterable[str]) -> None:
    """Set the query weights of an encoder with ``query_model="idf"`` from a corpus, in place.

    Its fingerprint changes. Raises ``ConfigError`` for another query model.
    """
    queries = encoder.queries
    if queries is None or encoder.query_model != "idf":
        raise ConfigError(
            f"query_model: {encoder.query_model!r} has no term weights to count; use query_model: "
            "idf"
        )
    weights = idf_from_texts(
        encoder.tokenizer, texts, encoder.dim, length=encoder.lengths["document"]
    )
    with torch.no_grad():
        queries.weights.copy_(weights.to(queries.weights.device))
    queries.counted = True


def term_quantiles(
    chunks: Iterable[sp.csr_array] | sp.csr_array, quantile: float
) -> NDArray[np.float32]:
    """Return the quantile of each term's weights over a collection, ``[vocab]``.

    Only documents with the term count (linear interpolation, as ``numpy.quantile``); 0 for terms
    that no document has. ``chunks`` are the collection's vectors or a sample of them; memory is
    8 bytes a posting.
    """
    if not 0 <= quantile <= 1:
        raise ConfigError(f"quantile: {quantile!r}; expected a share from 0 to 1")
    parts = [chunks] if isinstance(chunks, sp.csr_array) else list(chunks)
    if not parts:
        raise ConfigError("term_quantiles: no vectors; expected those of a collection")
    terms = np.concatenate([part.indices for part in parts])
    weights = np.concatenate([part.data for part in parts])
    order = np.lexsort((weights, terms))
    weights = weights[order].astype(np.float64)
    counts = np.bincount(terms, minlength=parts[0].shape[1])
    starts = np.cumsum(counts) - counts
    used = counts > 0
    place = quantile * (counts[used] - 1)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, counts[used] - 1)
    left, right = weights[starts[used] + low], weights[starts[used] + high]
    quantiles = np.zeros(len(counts), np.float32)
    quantiles[used] = left + (place - low) * (right - left)
    return quantiles


def fit_term_floors(encoder: SpladeEncoder, texts: Iterable[str]) -> None:
    """Set the weights below which an encoder's ``prune_quantile`` prunes, in place.

    ``texts`` are the collection or a sample of it. The encoder's fingerprint changes. Raises
    ``ConfigError`` for an encoder without a quantile, ``DataError`` without texts.
    """
    unpruned = encoder.without_quantile()
    set_term_floors(encoder, [unpruned.encode_documents(chunk) for chunk in _chunks(texts)])


def set_term_floors(encoder: SpladeEncoder, chunks: Iterable[sp.csr_array] | sp.csr_array) -> None:
    """Do the same from vectors that the encoder made without its quantile."""
    if encoder.prune_quantile is None:
        raise ConfigError("prune_quantile: the encoder has none, so there is nothing to fit")
    parts = [chunks] if isinstance(chunks, sp.csr_array) else list(chunks)
    if not sum(part.shape[0] for part in parts):
        raise DataError("prune_quantile: no documents; quantiles are read off their vectors")
    encoder.term_floors = term_quantiles(parts, encoder.prune_quantile)


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    return iter(lambda: list(itertools.islice(stream, CHUNK)), [])


CALIBRATED = 64  # texts that the threshold is calibrated on
HALVINGS = 10
LOWEST = -0.5  # a cosine


def start_splade(
    model: str | Path,
    texts: Iterable[str],
    *,
    threshold: float = 0.4,
    scale: float = 0.3,
    power: float = 0.75,
    terms: float | None = None,
    sample: int = 20_000,
    positions: int = 150_000,
    seed: int = 13,
    **options: Any,
) -> SpladeEncoder:
    """Return a SPLADE encoder that is sparse from its first step, made from any BERT-like encoder.

    The head is built in closed form (``threshold``, ``scale`` and ``power`` as in
    ``sluice.encoders.splade.mlm_head``) from the hidden states of some ``positions`` tokens;
    inverse document frequencies are counted over ``sample`` texts drawn from ``texts`` by ``seed``.
    With ``terms`` the threshold is moved until documents have that many active terms on average.
    ``options`` are those of ``SpladeEncoder`` (lengths, pooling, top-k, device, dtype). Without
    ``dtype`` the states are read in what is fastest on the machine, float32 or bfloat16. A sentence
    encoder's own pooling and projection are ignored. The result is an ordinary masked language
    model.
    """
    from transformers import AutoModelForMaskedLM

    query_model, lexical = options.get("query_model", "shared"), options.get("lexical", "none")
    check_static(query_model, lexical, options.get("query_top_k"))
    network, tokenizer, _, _ = load(
        AutoModelForMaskedLM,
        str(model),
        fresh=is_head,
        seed=seed,
        tie_word_embeddings=False,  # the decoder's rows are not word embeddings
    )
    config = network.config
    usual, _ = lengths_of(tokenizer, config)
    options = {"query_length": usual, "document_length": usual, **options}
    backbone = network.base_model
    # Over so many positions what bfloat16 rounds off evens out.
    reading = {"dtype": "auto", **options}
    reader = TextEncoder(
        backbone,
        tokenizer,
        document_length=int(options["document_length"]),
        **{k: reading[k] for k in ("device", "dtype", "batch_tokens") if k in reading},
    )
    chosen = _sampled(texts, sample, seed)
    if not chosen:
        raise ModelError("start: no texts; a SPLADE head is built from texts of the corpus")
    tokens = reader.tokens(chosen, "document").ids
    special = set(tokenizer.all_special_ids)
    idf = inverse_document_frequency(tokens, config.vocab_size)
    hidden, token_ids = _states(reader, tokens, special, positions)
    trim_memory()  # of what encoding has left: as much again as the states
    head = build_mlm_head(
        backbone.get_input_embeddings().weight.detach().cpu(),
        hidden,
        token_ids,
        idf,
        silent=sorted(i for i in special if i < config.vocab_size),
        threshold=threshold,
        scale=scale,
        power=power,
    )
    del hidden, reader  # some hundred MB
    install_mlm_head(network, head)
    encoder = SpladeEncoder(network, tokenizer, **options)
    if terms is not None:
        _calibrate(encoder, head, threshold, terms, chosen[:CALIBRATED])
    return encoder


def _calibrate(
    encoder: SpladeEncoder, head: MlmHead, threshold: float, terms: float, texts: Sequence[str]
) -> None:
    """Move the head's threshold (a cosine) until a text has ``terms`` active terms on average."""
    if not threshold > 0:
        raise ConfigError(f"start.threshold: {threshold:g}; expected above 0 with start.terms")
    if not 1 <= terms <= encoder.dim / 2:
        raise ConfigError(
            f"start.terms: {terms:g}; expected 1 to {encoder.dim // 2}, half the vocabulary"
        )
    low, high = LOWEST, 1.0
    active = head.decoder_bias > SILENT
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        bias = torch.where(active, head.decoder_bias * (middle / threshold), head.decoder_bias)
        install_mlm_head(encoder.model, replace(head, decoder_bias=bias))
        if encoder.encode_documents(texts).nnz / len(texts) > terms:
            low = middle
        else:
            high = middle


def start_from_config(
    spec: Mapping[str, Any], start: Any, texts: Iterable[str], *, where: str, seed: int
) -> SpladeEncoder:
    """Make the encoder that ``start:`` describes: ``true``, or settings of ``start_splade``."""
    known = ("threshold", "scale", "power", "terms", "sample", "positions")
    settings = {} if start is True else start
    if not isinstance(settings, Mapping) or any(key not in known for key in settings):
        raise ConfigError(f"{where}.start: {start!r}; expected true, or some of {', '.join(known)}")
    options = {key: value for key, value in spec.items() if key not in ("type", "model")}
    return start_splade(spec["model"], texts, seed=seed, **settings, **options)


def _sampled(texts: Iterable[str], size: int, seed: int) -> list[str]:
    """Return a reservoir sample of the texts that are not blank."""
    chance = random.Random(f"splade start {seed}")
    sample: Reservoir[str] = Reservoir(size, chance)
    for text in texts:
        if text.strip():
            sample.add(text)
    chance.shuffle(sample.items)
    return sample.items


def _states(
    reader: TextEncoder, tokens: list[Ids], special: set[int], positions: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return last hidden states ``[n, h]`` and token ids ``[n]`` of the first texts' tokens."""
    stops = np.cumsum([len(text) for text in tokens])
    chosen = tokens[: int(np.searchsorted(stops, positions)) + 1]
    most = sum(map(len, chosen))
    states = torch.empty((most, reader.model.config.hidden_size))
    token_ids = torch.empty(most, dtype=torch.long)
    silent = torch.tensor(sorted(special))
    done = 0

    def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
        nonlocal done
        ids = reader.laid_out(batch)[0].cpu()
        own = ~torch.isin(ids, silent)
        into = slice(done, done + int(own.sum()))
        states[into] = reader.output(batch, network).float().cpu()[own]
        token_ids[into] = ids[own]
        done = into.stop

    reader.map_batches(
        len(chosen),
        lambda start, stop: Tokens(chosen[start:stop], None),
        store,
        label="start a SPLADE head",
        unit="texts",
        in_order=True,
    )
    return states[:done], token_ids[:done]
