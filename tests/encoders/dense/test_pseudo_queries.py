"""Pseudo-query encoders: k-means by hand, limits of one and of all, gradients, saving, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.autograd import gradcheck

from sluice.encoders import DenseEncoder, GaussianEncoder, Hypencoder, PseudoQueryEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.own.pseudo_queries import assigned, centroids
from sluice.indexing.own.pseudo_queries import attended

Table = NDArray[np.float64]


def by_hand(states: Table, count: int, rounds: int) -> list[int]:
    """Lloyd's algorithm for one text, as its definition has it."""
    tokens = len(states)
    clusters = min(count, tokens)
    centres = [states[(2 * j + 1) * tokens // (2 * clusters)] for j in range(clusters)]
    found: list[int] = []
    for _ in range(rounds):
        distances = [[((each - centre) ** 2).sum() for centre in centres] for each in states]
        nearest = [line.index(min(line)) for line in distances]
        if nearest == found:
            break
        found = nearest
        for j in range(clusters):
            own = [each for each, home in zip(states, nearest, strict=True) if home == j]
            if own:
                centres[j] = np.mean(own, axis=0)
    return found


def drawn(lengths: list[int], width: int = 5, seed: int = 0) -> list[Table]:
    chance = np.random.default_rng(seed)
    return [chance.normal(size=(length, width)) for length in lengths]


def padded(texts: list[Table], places: list[list[int]], length: int) -> tuple[Any, Any]:
    """Texts whose tokens stand at ``places``, with noise at all others."""
    states = torch.full((len(texts), length, texts[0].shape[1]), 7.0, dtype=torch.float64)
    mask = torch.zeros(len(texts), length, dtype=torch.long)
    for row, (text, where) in enumerate(zip(texts, places, strict=True)):
        states[row, where], mask[row, where] = torch.tensor(text), 1
    return states, mask


@pytest.mark.parametrize("count", [1, 3, 6])
@pytest.mark.parametrize("rounds", [1, 2, 20])
def test_clusters_and_centroids_by_hand(count: int, rounds: int) -> None:
    texts = drawn([20, 1, 4, 13])
    # padded on the right, on the left, and around holes such as a prompt's
    places = [list(range(20)), [3], [16, 17, 18, 19], [*range(2, 9), *range(12, 18)]]
    states, mask = padded(texts, places, 20)
    found = assigned(states, mask, count, rounds)
    means, filled = centroids(states, mask, count, rounds)
    for row, (text, where) in enumerate(zip(texts, places, strict=True)):
        expected = by_hand(text, count, rounds)
        assert found[row, where].tolist() == expected
        assert (found[row][mask[row] == 0] == -1).all()
        for cluster in range(count):
            own = [each for each, home in zip(text, expected, strict=True) if home == cluster]
            assert bool(filled[row, cluster]) == bool(own)
            mean = np.mean(own, axis=0) if own else np.zeros(5)
            np.testing.assert_allclose(means[row, cluster].numpy(), mean, atol=1e-12)


def test_a_cluster_may_lose_its_tokens() -> None:
    """Of two alike starts the first takes all: the second has no vector, and is no query's."""
    states = torch.tensor([[[1.0, 0], [1, 0], [1, 0], [0, 1]]])
    means, filled = centroids(states, torch.ones(1, 4, dtype=torch.long), 3, 20)
    assert filled.tolist() == [[True, False, True]]
    np.testing.assert_array_equal(means[0].numpy(), [[1, 0], [0, 0], [0, 1]])


def test_gradients_of_centroids_reach_their_tokens() -> None:
    states, mask = padded(drawn([6, 3], 4), [list(range(6)), [1, 2, 5]], 6)
    states.requires_grad_()
    assert gradcheck(lambda each: centroids(each, mask, 3, 20).means, [states])


def states_of(encoder: PseudoQueryEncoder, text: str) -> Table:
    """transformers' own states of all tokens of a document."""
    ids = torch.tensor([encoder.token_ids([text], "document")[0]])
    with torch.no_grad():
        states: Table = encoder.model(input_ids=ids).last_hidden_state[0].double().numpy()
    return states


def projected(encoder: PseudoQueryEncoder, vectors: Table) -> Table:
    if encoder.projection is not None:
        layer = encoder.projection.linear
        vectors = vectors @ layer.weight.detach().double().numpy().T + layer.bias.detach().numpy()
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / lengths if encoder.unit_vectors else vectors


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "packed"),
    [
        ({"centroids": 3}, True),
        ({"centroids": 3}, False),
        ({"centroids": 2, "rounds": 1, "projection": 8, "pooling": "cls"}, True),
        ({"centroids": 4, "normalize": False, "document_prompt": "the river "}, True),
    ],
)
def test_texts_by_hand(bert: Path, texts: list[str], options: dict[str, Any], packed: bool) -> None:
    encoder = PseudoQueryEncoder.from_pretrained(bert, **options)
    encoder.packed = encoder.packed_training = packed
    found = encoder.encode_documents(texts)
    assert found.shape == (len(texts), encoder.dim)
    for row, text in enumerate(texts):
        states = states_of(encoder, text)
        clusters = np.array(by_hand(states, encoder.clustering.centroids, 20))
        if encoder.clustering.rounds == 1:
            clusters = np.array(by_hand(states, encoder.clustering.centroids, 1))
        means = np.stack([states[clusters == each].mean(0) for each in np.unique(clusters)])
        np.testing.assert_allclose(found.text(row), projected(encoder, means), atol=5e-5)
    backwards = encoder.encode_documents(texts[::-1])
    for row in range(len(texts)):
        np.testing.assert_allclose(backwards.text(len(texts) - 1 - row), found.text(row), atol=1e-5)
    graded = encoder.embed(encoder.tokenize(texts, "document"), "document")
    assert graded.shape == (len(texts), encoder.clustering.centroids, encoder.dim)
    trained = graded.detach().numpy()
    for row, text in enumerate(texts):
        few = by_hand(states_of(encoder, text), encoder.clustering.centroids, 5)
        if encoder.clustering.rounds != 1 and few == by_hand(
            states_of(encoder, text), encoder.clustering.centroids, 20
        ):
            own = trained[row][(trained[row] != 0).any(axis=1)]
            np.testing.assert_allclose(own, found.text(row), atol=5e-5)
    queries = encoder.embed(encoder.tokenize(texts, "query"), "query")
    np.testing.assert_allclose(queries.detach().numpy(), encoder.encode_queries(texts), atol=5e-4)
    (graded.square().sum() + queries[:, 0].sum() + graded[..., 0].sum()).backward()
    gradient = encoder.module.get_parameter("model.encoder.layer.0.output.dense.weight").grad
    assert gradient is not None
    assert float(gradient.abs().max()) > 0


def test_one_centroid_is_the_dense_encoder(bert: Path, texts: list[str]) -> None:
    one = PseudoQueryEncoder.from_pretrained(bert, centroids=1, projection=8)
    dense = DenseEncoder.from_pretrained(bert, projection=8)
    documents = one.encode_documents(texts)
    assert documents.lengths.tolist() == [1] * len(texts)
    np.testing.assert_allclose(documents.values, dense.encode_documents(texts), atol=1e-6)
    expected = 20 * dense.encode_queries(texts)
    np.testing.assert_allclose(one.encode_queries(texts), expected, atol=1e-5)


def test_as_many_as_tokens_is_attention_to_the_tokens(bert: Path, texts: list[str]) -> None:
    encoder = PseudoQueryEncoder.from_pretrained(bert, centroids=64)
    documents = encoder.encode_documents(texts)
    (query,) = encoder.encode_queries(["gold in water"])
    scores = attended(query, documents)
    for row, text in enumerate(texts):
        tokens = projected(encoder, states_of(encoder, text))
        products = tokens @ query.astype(np.float64)
        shares = np.exp(products) / np.exp(products).sum()
        assert scores[row] == pytest.approx(query @ (shares @ tokens), abs=1e-4)


def test_the_order_of_centroids_does_not_matter(bert: Path, texts: list[str]) -> None:
    encoder = PseudoQueryEncoder.from_pretrained(bert, centroids=4)
    documents = encoder.encode_documents(texts)
    mixed = TokenVectors.of([text[::-1] for text in documents], encoder.dim)
    queries = encoder.encode_queries(texts)
    for query in queries:
        scores = attended(query, documents)
        np.testing.assert_allclose(attended(query, mixed), scores, rtol=1e-6)
        assert (scores <= [(text @ query).max() + 1e-5 for text in documents]).all()


def test_other_folders_and_damage_are_refused(bert: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = tmp_path / "m"
    PseudoQueryEncoder.from_pretrained(bert).save_pretrained(folder)
    for kind in (DenseEncoder, GaussianEncoder, Hypencoder):
        with pytest.raises(ModelError, match="load it with type: pseudo_queries"):
            kind.from_pretrained(folder)
    with pytest.raises((ImportError, ValueError, TypeError, AttributeError)):
        SentenceTransformer(str(folder), device="cpu")
    fewer = PseudoQueryEncoder.from_pretrained(folder, centroids=2)
    assert (fewer.clustering.centroids, fewer.clustering.sharpness) == (2, 20)
    sidecar = json.loads((folder / "sluice.json").read_text())
    for changes, says in (
        ({"pseudo_queries": None}, "pseudo_queries is None"),
        ({"pseudo_queries": {"centroids": 0}}, "centroids"),
        ({"pseudo_queries": {"sharpness": "x"}}, "sharpness"),
        ({"pseudo_queries": {"more": 1}}, "more"),
    ):
        (folder / "sluice.json").write_text(json.dumps(sidecar | changes))
        with pytest.raises(ModelError, match=says):
            PseudoQueryEncoder.from_pretrained(folder)
    GaussianEncoder.from_pretrained(bert).save_pretrained(tmp_path / "g")
    with pytest.raises(ModelError, match="a Gaussian encoder's folder; load it with type"):
        PseudoQueryEncoder.from_pretrained(tmp_path / "g")
    DenseEncoder.from_pretrained(bert, top_layers=2).save_pretrained(tmp_path / "d")
    with pytest.raises(ModelError, match="top_layers"):
        PseudoQueryEncoder.from_pretrained(tmp_path / "d")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"centroids": 0}, "centroids"),
        ({"centroids": 2.5}, "centroids"),
        ({"rounds": 0}, "rounds"),
        ({"sharpness": 0}, "sharpness: 0, expected a number above 0"),
        ({"sharpness": float("inf")}, "sharpness"),
        ({"pooling": "median"}, "pooling: 'median'; known: cls"),
    ],
)
def test_settings_that_cannot_be(bert: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PseudoQueryEncoder.from_pretrained(bert, **options)
