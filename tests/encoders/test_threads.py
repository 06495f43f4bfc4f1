"""Encoders used by several threads at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from sluice.encoders import CrossEncoder, DenseEncoder


def test_threads_with_different_lengths_get_their_own(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert, query_length=5, document_length=40)
    texts = [f"{word} water in the river of gold and stone" for word in ("deep", "dense")] * 8
    expected = encoder.encode_queries(texts), encoder.encode_documents(texts)
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            (
                pool.submit(encoder.encode_queries, texts),
                pool.submit(encoder.encode_documents, texts),
            )
            for _ in range(15)
        ]
        for pair in jobs:
            for job, vectors in zip(pair, expected, strict=True):
                np.testing.assert_allclose(job.result(), vectors, atol=1e-6)


def test_cross_encoders_may_share_a_tokenizer(pair_bert: Path) -> None:
    long = CrossEncoder.from_pretrained(pair_bert, max_length=60)
    short = CrossEncoder(long.model, long.tokenizer, max_length=9)
    pairs = [("gold river", "the deep water of the river")] * 20
    expected = long.score(pairs), short.score(pairs)
    assert not np.allclose(*expected)
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            (pool.submit(long.score, pairs), pool.submit(short.score, pairs)) for _ in range(15)
        ]
        for pair in jobs:
            for job, scores in zip(pair, expected, strict=True):
                np.testing.assert_allclose(job.result(), scores, atol=1e-5)


def test_encoding_leaves_the_mode_as_it_was(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert, projection=8)
    for training in (False, True):
        encoder.module.train(training)
        encoder.encode_queries(["gold"])
        assert {part.training for part in encoder.module.modules()} == {training}
    assert not any(
        part.training for part in DenseEncoder.from_pretrained(bert, projection=8).module.modules()
    )
