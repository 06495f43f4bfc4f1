"""Makes a SPLADE encoder of a model without a masked-language-model head, from texts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.input.reservoir import Reservoir
from sluice.encoders.foundation.machine import trim_memory
from sluice.encoders.model_files.loading import is_head, lengths_of, load
from sluice.encoders.splade.corpus_statistics import inverse_document_frequency
from sluice.encoders.splade.encoder import SpladeEncoder
from sluice.encoders.splade.mlm_head import SILENT, MlmHead, build_mlm_head, install_mlm_head
from sluice.encoders.splade.settings import check_static
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder
from sluice.encoders.transformer.tokens import Ids, TokenBatch, Tokens

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
    ``options`` are those of ``SpladeEncoder`` (lengths, pooling, top-k, device, dtype). A sentence
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
    reader = TextEncoder(
        backbone,
        tokenizer,
        document_length=int(options["document_length"]),
        **{k: options[k] for k in ("device", "dtype", "batch_tokens") if k in options},
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
    )
    return states[:done], token_ids[:done]
