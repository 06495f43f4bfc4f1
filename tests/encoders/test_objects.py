"""What a program has becomes an encoder or a scorer: functions, other libraries' objects, names."""

import functools
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import save_model
from token_functions import DIM, token_vectors

from sluice.encoders import BM25Encoder, EncoderBase, FunctionEncoder, as_encoder, as_scorer
from sluice.encoders.dense.objects.sentence_transformer import SentenceTransformerEncoder
from sluice.encoders.encoder import UNREAD
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.model_files.registry import open_encoder
from sluice.retrieval.testing import check_encoder
from sluice.training import Example, fit

TEXTS = ["gold in the river", "a sluice", "dense and sparse vectors", "the river of gold"]


def embed(texts: list[str]) -> list[list[float]]:
    """Counts of hashed words, as lists of numbers; an empty list is a mistake."""
    assert texts
    assert all(text.strip() for text in texts)
    vectors = np.zeros((len(texts), 16))
    for row, text in enumerate(texts):
        for word in text.split():
            vectors[row, zlib.crc32(word.encode()) % 16] += 1
    return vectors.tolist()


def test_a_function_is_an_encoder() -> None:
    check_encoder(
        FunctionEncoder(embed, name="words", batch_size=2),
        same=[FunctionEncoder(embed, name="words"), FunctionEncoder(len, name="words")],
        others=[
            FunctionEncoder(embed), FunctionEncoder(embed, name="other"),
            FunctionEncoder(embed, name="words", normalize=False),
        ],
        skip=["saved_and_loaded"],
    )  # fmt: skip
    assert FunctionEncoder(embed).fingerprint == as_encoder(embed).fingerprint
    assert FunctionEncoder(functools.partial(embed)).fingerprint == as_encoder(embed).fingerprint
    plain = FunctionEncoder(embed, normalize=False).encode_documents(TEXTS)
    assert (plain == np.float32(embed(TEXTS))).all()
    both = FunctionEncoder(embed, queries=lambda texts: np.ones((len(texts), 16)))
    assert both.encode_queries(["gold"])[0, 0] == 0.25


def test_a_function_may_give_token_vectors(tmp_path: Path) -> None:
    check_encoder(
        FunctionEncoder(token_vectors, name="words", batch_size=2),
        same=[FunctionEncoder(token_vectors, name="words")], skip=["saved_and_loaded"],
    )  # fmt: skip
    encoder = FunctionEncoder(token_vectors, name="words", batch_size=2)
    assert encoder.similarity == "cosine"  # not known before the first call
    texts = [*TEXTS, " ", "gold"]
    found = encoder.encode_documents(texts)
    assert isinstance(found, TokenVectors)
    assert encoder.similarity == "max_sim"
    assert found.lengths.tolist() == [4, 2, 4, 4, 0, 1]
    np.testing.assert_allclose(found.values, token_vectors(texts).values, atol=1e-6)
    assert encoder.encode_queries([]).shape == (0, DIM)
    longer = FunctionEncoder(lambda texts: scaled_tokens(texts, 3.0), name="longer")
    np.testing.assert_allclose(longer.encode_queries(texts).values, found.values, atol=1e-6)
    plain = FunctionEncoder(lambda texts: scaled_tokens(texts, 3.0), name="p", normalize=False)
    np.testing.assert_allclose(plain.encode_queries(texts).values, 3 * found.values, rtol=1e-6)
    encoder.save_pretrained(tmp_path)
    saved = FunctionEncoder.from_pretrained(tmp_path)
    assert (saved.similarity, saved.fingerprint) == ("max_sim", encoder.fingerprint)


def test_token_vectors_of_a_function_are_checked() -> None:
    for wrong, message in [
        (lambda texts: token_vectors([*texts, "more"]), "3 texts, 16 wide, for 2 texts"),
        (lambda texts: scaled_tokens(texts, np.nan), "not finite"),
    ]:
        with pytest.raises(DataError, match=message):
            FunctionEncoder(wrong, name="wrong").encode_documents(TEXTS[:2])
    mixed = FunctionEncoder(token_vectors, queries=embed, name="mixed")
    mixed.encode_documents(TEXTS)
    with pytest.raises(DataError, match="vectors of another kind before; expected TokenVectors"):
        mixed.encode_queries(TEXTS)


def scaled_tokens(texts: list[str], scale: float) -> TokenVectors:
    vectors = token_vectors(texts)
    return TokenVectors(vectors.values * np.float32(scale), vectors.bounds)


class Scaled:
    def __init__(self, scale: Any) -> None:
        self.scale = scale

    def __call__(self, texts: list[str]) -> Any:
        return self.scale * np.array(embed(texts))

    def encode(self, texts: list[str]) -> Any:
        return self(texts)


def enclosed(scale: Any) -> Any:
    return lambda texts: scale * np.array(embed(texts))


def defaulted(scale: Any) -> Any:
    return lambda texts, scale=scale: scale * np.array(embed(texts))


def scaled_by(texts: list[str], scale: Any) -> Any:
    return scale * np.array(embed(texts))


HOLDING = [
    Scaled, lambda scale: Scaled(scale).encode, enclosed, defaulted,
    lambda scale: functools.partial(scaled_by, scale=scale),
    lambda scale: functools.partial(Scaled(scale).encode),
    lambda scale: enclosed(enclosed(Scaled(scale))),
    lambda scale: functools.cache(enclosed(scale)),
]  # fmt: skip


@pytest.mark.parametrize("holding", HOLDING)
def test_functions_that_hold_other_values_are_other_encoders(holding: Any) -> None:
    values = [1, 9, 1.0, "1", {"a": [1]}, {"a": [2]}, np.ones(3), np.zeros(3), embed, enclosed(2)]
    prints = [FunctionEncoder(holding(value)).fingerprint for value in values]
    assert len(set(prints)) == len(values)
    assert FunctionEncoder(holding({"a": [1]})).fingerprint == prints[4]
    unknown: list[Any] = [threading.Lock(), object(), [threading.local()], iter([1])]
    for value in unknown:
        with pytest.raises(ConfigError, match=r"holds a .*FunctionEncoder\(.*, name='...'\)"):
            _ = FunctionEncoder(holding(value)).fingerprint
        assert FunctionEncoder(holding(value), name="n").fingerprint


def test_a_function_that_holds_itself_has_a_fingerprint() -> None:
    def halved(texts: list[str]) -> Any:
        return halved(texts[:1]) if len(texts) > 1 else embed(texts)

    assert FunctionEncoder(halved).fingerprint == FunctionEncoder(halved).fingerprint
    assert FunctionEncoder({1: 2}.get).fingerprint != FunctionEncoder({1: 3}.get).fingerprint
    assert FunctionEncoder(np.asarray).fingerprint != FunctionEncoder(np.array).fingerprint


def test_a_saved_function_must_be_given_again(tmp_path: Path) -> None:
    encoder = FunctionEncoder(embed, name="words")
    encoder.encode_documents(["gold"])
    encoder.save_pretrained(tmp_path / "encoder")
    opened = open_encoder(tmp_path / "encoder")
    assert (opened.fingerprint, opened.dim) == (encoder.fingerprint, 16)
    with pytest.raises(ModelError, match=r"functions are not saved; open .* encoder=FUNCTION"):
        opened.encode_queries(["gold"])
    assert opened.of(embed).fingerprint == encoder.fingerprint


def test_a_function_is_called_again_when_the_network_fails() -> None:
    calls: list[int] = []

    def shaky(texts: list[str]) -> Any:
        calls.append(len(texts))
        if len(calls) < 3:
            raise ConnectionError("reset")
        return embed(texts)

    encoder = FunctionEncoder(shaky, batch_size=3, wait=0)
    assert encoder.encode_documents([*TEXTS, " "]).shape == (5, 16)
    assert calls == [3, 3, 3, 1]
    calls.clear()
    with pytest.raises(ModelError, match=r"shaky: ConnectionError \(reset\) for 1 texts"):
        FunctionEncoder(shaky, retries=1, wait=0).encode_queries(["gold"])


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (lambda texts: [1.0] * len(texts), DataError, r"returned shape \(2,\) for 2 texts"),
        (lambda texts: [[1.0]], DataError, r"returned shape \(1, 1\) for 2 texts"),
        (lambda texts: "vectors", DataError, "not an array of numbers"),
        (lambda texts: [[1.0], [float("nan")]], DataError, "vector 1 is not finite"),
        (lambda texts: texts + 1, ModelError, "TypeError"),
    ],
)
def test_what_is_no_vector_is_said(function: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        FunctionEncoder(function, wait=60).encode_documents(["a", "b"])


def test_an_async_function_is_refused() -> None:
    async def later(texts: list[str]) -> Any:
        return embed(texts)

    with pytest.raises(ConfigError, match="async function"):
        FunctionEncoder(later).encode_documents(["a"])
    with pytest.raises(DataError, match=r"expected \[1, 8\]"):
        FunctionEncoder(embed, dim=8).encode_documents(["a"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    folder = save_model(tmp_path_factory.mktemp("st") / "bert", "Model")
    word = modules.Transformer(str(folder), max_seq_length=32)
    pooled = modules.Pooling(word.get_embedding_dimension())
    prompts = {"query": "query: ", "document": "the "}
    return SentenceTransformer(modules=[word, pooled], device="cpu", prompts=prompts)


def test_a_sentence_transformer_gives_its_own_vectors(model: Any, tmp_path: Path) -> None:
    import torch

    encoder = as_encoder(model)
    assert isinstance(encoder, SentenceTransformerEncoder)
    check_encoder(encoder, same=[as_encoder(model.encode)])
    for mine, theirs in (
        (encoder.encode_queries(TEXTS), model.encode_query(TEXTS, normalize_embeddings=True)),
        (encoder.encode_documents(TEXTS), model.encode_document(TEXTS, normalize_embeddings=True)),
    ):
        assert (mine == theirs).all()
    assert encoder.prompts == {"query": "query: ", "document": "the "}
    assert encoder.lengths["document"] == 32
    similar = encoder.encode_queries(TEXTS[:1]) @ encoder.encode_documents(TEXTS).T
    raw = model.similarity(model.encode_query(TEXTS[:1]), model.encode_document(TEXTS))
    assert np.allclose(similar, raw.numpy(), atol=1e-6)
    before = encoder.fingerprint
    with torch.no_grad():
        next(model.parameters()).add_(1)
        assert encoder.fingerprint != before
        next(model.parameters()).sub_(1)
    model.similarity_fn_name = "euclidean"
    with pytest.raises(ConfigError, match="similarity is 'euclidean'"):
        as_encoder(model)
    model.similarity_fn_name = "dot"
    assert (as_encoder(model).encode_documents(TEXTS) == model.encode_document(TEXTS)).all()
    model.similarity_fn_name = "cosine"


def test_names_are_models(bert: Path, pair_bert: Path) -> None:
    assert isinstance(as_encoder("BM25"), BM25Encoder)
    assert as_encoder(str(bert)).kind == as_encoder(bert).kind == "dense"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="which scores pairs and encodes no text"):
        as_encoder(pair_bert)
    assert len(as_scorer(str(pair_bert)).score([("gold", "river")])) == 1


def test_langchain_embeddings_and_objects_that_encode() -> None:
    class Embeddings:
        model = "words-2"
        embed_documents = staticmethod(embed)

        def embed_query(self, text: str) -> list[float]:
            return embed([text])[0]

    class Static:
        def encode(self, texts: list[str]) -> Any:
            return embed(texts)

    chain, static = as_encoder(Embeddings()), as_encoder(Static())
    assert isinstance(chain, FunctionEncoder)
    assert chain.name.endswith("Embeddings words-2")
    for encoder in (chain, static):
        queries, documents = encoder.encode_queries(TEXTS), encoder.encode_documents(TEXTS)
        assert np.allclose(queries, documents)


def test_what_is_no_encoder_is_said_in_a_sentence() -> None:
    class Half:
        def encode_queries(self, texts: list[str]) -> Any: ...
        def encode_documents(self, texts: list[str]) -> Any: ...

    for wrong, message in [
        (BM25Encoder, r"BM25Encoder is a class; expected an object of it, such as BM25Encoder\(\)"),
        (Half(), "has no fingerprint and no save_pretrained"),
        (3, r"3 \(int\); expected an encoder, 'bm25', a model's name"),
        (None, "expected an encoder"),
    ]:
        with pytest.raises(ConfigError, match=message):
            as_encoder(wrong)


def test_an_encoder_that_learns_says_so() -> None:
    class Learns:
        fingerprint = "learns"
        encode_queries = encode_documents = fit_documents = staticmethod(embed)

        def save_pretrained(self, folder: Path) -> None:
            """Save nothing."""

    with pytest.raises(ConfigError, match="Learns has fit_documents and no learner"):
        as_encoder(Learns())
    untold: Any = Learns()
    with pytest.raises(ConfigError, match="Learns has fit_documents and no learner"):
        fit(untold, [Example("gold", ("river",))], untold, output="unmade")
    Learns.learner = property(lambda self: self)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="the learner of Learns has no fit_in_parts"):
        as_encoder(Learns())
    for name in ("fit_in_parts", "add_documents", "remove_documents"):
        setattr(Learns, name, staticmethod(embed))
    assert isinstance(as_encoder(Learns()), Learns)


@pytest.mark.parametrize(("name", "capability"), [(k, v) for k, (v, _) in UNREAD.items()])
def test_a_hook_that_nothing_reads_any_more_is_told_so(name: str, capability: str) -> None:
    class Own(EncoderBase):
        fingerprint = "own"
        encode_queries = encode_documents = staticmethod(embed)

    encoder = Own()
    setattr(Own, name, True)
    with pytest.raises(ConfigError, match=f"Own has {name} and no {capability}, .* see sluice"):
        as_encoder(encoder)
    setattr(Own, name, False)
    assert as_encoder(encoder) is encoder


def test_functions_are_scorers() -> None:
    pairs = [("gold", "gold river"), ("gold", "x"), ("dense", "yes")]
    by_pairs = as_scorer(lambda pairs: [len(text) for _, text in pairs])
    by_query = as_scorer(lambda query, texts: [len(text) for text in texts])
    assert by_pairs.score(pairs) == by_query.score(pairs) == [10, 1, 3]
    assert as_scorer(lambda pairs, scale=2: [scale] * len(pairs)).score(pairs) == [2, 2, 2]
    assert (by_pairs.by_query, by_query.by_query) == (False, True)
    with pytest.raises(DataError, match="1 scores for 2 texts"):
        as_scorer(lambda query, texts: [1.0]).score(pairs)
    with pytest.raises(DataError, match="expected a number for each text"):
        as_scorer(lambda query, texts: None).score(pairs)
    for wrong, message in [(3, r"no score\(pairs\) method"), (dict, "dict is a class")]:
        with pytest.raises(ConfigError, match=message):
            as_scorer(wrong)


def test_a_cross_encoder_of_another_library_is_a_scorer(pair_bert: Path) -> None:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(pair_bert), device="cpu")
    pairs = [("gold", "gold river"), ("gold", "x")]
    assert np.allclose(as_scorer(model).score(pairs), model.predict([list(p) for p in pairs]))
    with pytest.raises(ConfigError, match="scores pairs and encodes no text"):
        as_encoder(model)
