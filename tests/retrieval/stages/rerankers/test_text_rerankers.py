"""MaxSim, passages and summaries: equal to straight-line code, within budget, deterministic."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from small_world import LengthScorer, WordEncoder, documents
from tiny_models import WORDS, save_model
from token_functions import straight_max_sim

from sluice.encoders import BM25Encoder, CrossEncoder, DenseEncoder, TokenEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.transformer.text_encoder import token_states
from sluice.retrieval import Rerank, Retriever
from sluice.retrieval.config.components import make_encoder
from sluice.retrieval.experiments.checks import _AnyScorer, _AnyStage
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.stages.rerankers import similarity as token_similarity
from sluice.retrieval.stages.rerankers.long_documents import (
    PassageScorer,
    Summarised,
    chosen_parts,
    parts_of,
)
from sluice.retrieval.stages.rerankers.score_cache import cached
from sluice.retrieval.stages.rerankers.similarity import MaxSim

TEXTS = ["gold in the river", "stone", "", "the deep water and the sluice rank gold", "vector ñ 中"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("dense"), "Model")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> DenseEncoder:
    return DenseEncoder.from_pretrained(folder)


def straight(encoder: DenseEncoder, query: str, document: str) -> float:
    """Sum of best cosines, text by text and token by token, by the model's own pass."""
    found = []
    for text, side in ((query, "query"), (document, "document")):
        features = encoder.tokenize([text], side)
        with torch.no_grad():
            states = encoder.model.eval()(**features).last_hidden_state[0].double().numpy()
        kept = [
            state / np.sqrt((state**2).sum())
            for place, (state, token) in enumerate(
                zip(states, features["input_ids"][0].tolist(), strict=True)
            )
            if token not in (0, 2, 3) and place >= encoder.prompt_tokens[side]
        ]
        found.append(kept)
    total = 0.0
    for one in found[0]:
        total += max((float(one @ other) for other in found[1]), default=-1.0)
    return total


@pytest.mark.parametrize("options", [{}, {"query_prompt": "query: ", "document_length": 6}])
@pytest.mark.parametrize("packed", [True, False])
def test_max_sim_equals_a_straight_loop(folder: Path, options: dict, packed: bool) -> None:
    encoder = DenseEncoder.from_pretrained(folder, **options)
    encoder.packed = packed
    pairs = [(query, document) for query in TEXTS for document in TEXTS]
    scores = MaxSim(encoder).score(pairs)
    assert scores.dtype == np.float32
    assert np.allclose(scores, [straight(encoder, *pair) for pair in pairs], atol=1e-4)
    assert (scores[10:15] == 0).all()  # the empty query
    again = np.random.default_rng(1).permutation(len(pairs))
    shuffled = MaxSim(encoder).score([pairs[place] for place in again])
    assert np.allclose(shuffled, scores[again], atol=1e-5)


def test_max_sim_in_blocks_encodes_each_document_once(
    encoder: DenseEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(query, document) for query in TEXTS[:3] for document in TEXTS] * 2
    whole = MaxSim(encoder).score(pairs)
    monkeypatch.setattr(token_similarity, "BYTES", 2 * 64 * 32 * 4 * 8)
    seen, tokens = [], encoder.tokens
    monkeypatch.setattr(
        encoder, "tokens", lambda texts, side: seen.extend(texts) or tokens(texts, side)
    )
    assert np.allclose(MaxSim(encoder).score(pairs), whole, atol=1e-5)
    assert sorted(seen) == sorted(TEXTS[:3] + TEXTS)
    assert MaxSim(encoder).score([]).shape == (0,)


def test_max_sim_of_a_text_with_itself_counts_its_tokens(encoder: DenseEncoder) -> None:
    found = token_states(encoder, TEXTS, "document")
    lengths = np.diff(found.bounds)
    assert len(found) == len(TEXTS)
    assert lengths[0] == 4
    assert np.allclose(MaxSim(encoder).score([(t, t) for t in TEXTS]), lengths, atol=1e-4)
    assert len(token_states(encoder, [], "query")) == 0


@pytest.mark.usefixtures("bfloat16")
def test_max_sim_in_bfloat16_is_near(folder: Path, encoder: DenseEncoder) -> None:
    pairs = [(query, document) for query in TEXTS for document in TEXTS]
    half = MaxSim.from_pretrained(folder, dtype="bfloat16")
    assert token_states(half.encoder, TEXTS, "query").values.dtype is torch.bfloat16
    assert np.allclose(half.score(pairs), MaxSim(encoder).score(pairs), atol=0.3)


@pytest.mark.parametrize("options", [{}, {"pool_factor": 2.0}, {"normalize": False}])
def test_max_sim_of_a_token_encoder_uses_its_own_vectors(
    bert: Path, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = TokenEncoder.from_pretrained(bert, dim=8, query_length=12, **options)
    encoder.save_pretrained(tmp_path / "tokens")
    texts = [*TEXTS, "!"]  # no token of it has a vector but the marks
    pairs = [(query, document) for query in texts for document in texts]
    asked, found = encoder.encode_queries(texts), encoder.encode_documents(texts)
    expected = [straight_max_sim(query, document) for query in asked for document in found]
    scorer = MaxSim.from_pretrained(tmp_path / "tokens")
    assert isinstance(scorer.encoder, TokenEncoder)
    assert np.allclose(scorer.score(pairs), expected, atol=1e-4)
    monkeypatch.setattr(token_similarity, "BYTES", 1)
    assert np.allclose(MaxSim(encoder).score(pairs[::-1]), expected[::-1], atol=1e-4)
    store = Store(dict(zip("abcdef", texts, strict=False)))
    met = scorer.matches_of(TEXTS[0], "d", store)
    assert sum(each.similarity for each in met) == pytest.approx(expected[3], abs=1e-4)
    assert met[2].query_token == "gold"


class Store:
    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        return [self._texts[each] for each in document_ids]


def test_max_sim_is_a_type_of_rerankers(folder: Path, tmp_path: Path) -> None:
    spec = {"type": "max_sim", "model": str(folder), "document_length": 32}
    scorer = make_encoder(spec, where="rerankers.m", model=str)
    assert isinstance(scorer, MaxSim)
    kept = cached(scorer, file=str(tmp_path / "s"))
    pairs = [(TEXTS[0], document) for document in TEXTS]
    assert np.array_equal(kept.score(pairs), kept.score(pairs))
    assert (kept.hits, kept.misses) == (5, 5)
    with pytest.raises(ConfigError, match="max_sim takes"):
        make_encoder({**spec, "pooling": "cls"}, where="rerankers.m", model=str)
    with pytest.raises(ConfigError, match="expected a dense encoder"):
        MaxSim(BM25Encoder())


class Parts:
    """Scores a passage by what it is given, and remembers it."""

    fingerprint = "parts"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.asked += pairs
        return [float(len(document.split())) - 3 for _, document in pairs]


LONG = " ".join(f"w{n}" for n in range(25))


def test_passages_are_joined_as_said() -> None:
    pairs = [("q", LONG), ("q", "short  text"), ("q", ""), ("p", LONG)]
    expected = {"max": [7, -1, -3, 7], "first": [7, -1, -3, 7], "sum": [21, -1, -3, 21]}
    for how, values in {**expected, "mean": [7, -1, -3, 7]}.items():
        scorer = Parts()
        made = PassageScorer(scorer, how=how, length=10, overlap=2)  # type: ignore[arg-type]
        assert made.score(pairs).tolist() == values
        assert ("q", "short  text") in scorer.asked
        assert len(scorer.asked) == (4 if how == "first" else 8)
    scorer = Parts()
    PassageScorer(scorer, length=10, overlap=2, most=2).score(pairs)
    assert [document.split()[0] for _, document in scorer.asked[:2]] == ["w0", "w8"]
    assert PassageScorer(Parts()).score([]).shape == (0,)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(WORDS.split()), max_size=30), st.integers(2, 9), st.integers(0, 1))
def test_passages_cover_the_text_and_fit(words: list[str], length: int, overlap: int) -> None:
    scorer, text = Parts(), " ".join(words)
    score = PassageScorer(scorer, length=length, overlap=overlap).score([("q", text)])
    parts = [document.split() for _, document in scorer.asked]
    assert score[0] == max(map(len, parts)) - 3
    assert all(len(part) <= max(length, 1) for part in parts)
    assert set(words) == {word for part in parts for word in part}


def test_one_passage_equals_plain_and_tokens_are_counted(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m", "ForSequenceClassification", num_labels=1)
    cross = CrossEncoder.from_pretrained(folder)
    pairs = [("the river", text) for text in TEXTS]
    plain = cross.score(pairs)
    for how in ("max", "first", "sum", "mean"):
        made = PassageScorer(cross, how=how, length=40, overlap=9)  # type: ignore[arg-type]
        assert np.array_equal(made.score(pairs), plain)
    long = " ".join(["gold"] * 10 + ["sluicerank"] * 10)
    cuts = PassageScorer(cross, length=12, overlap=2)._cut([long])[long]
    parts = [long[start:end] for start, end in cuts]
    counts = [len(ids) - 2 for ids in cross.tokenized(parts, length=None).ids]
    assert max(counts) <= 12
    kept = PassageScorer(cached(cross, file=str(tmp_path / "s")), length=12, overlap=2)
    assert kept._cut([long])[long] == cuts
    one = cached(PassageScorer(cross), file=str(tmp_path / "s"))
    other = cached(PassageScorer(cross, how="sum"), file=str(tmp_path / "s"))
    assert one.fingerprint != other.fingerprint


def test_passages_refuse_what_makes_no_sense() -> None:
    for wrong in ({"how": "maxx"}, {"length": 0}, {"overlap": 200}, {"most": 0}):
        with pytest.raises(ConfigError, match="passages"):
            PassageScorer(Parts(), **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is a stage"):
        PassageScorer(_AnyStage("bm25"))  # type: ignore[arg-type]

    class Short:
        def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
            return [1.0]

    dense = Retriever.build(WordEncoder(), documents(), name="dense")
    with pytest.raises(DataError, match="shape"):
        (dense >> Rerank(PassageScorer(Short()))).run({"a": "gold"})


SENTENCES = (
    "Rivers run. Gold lies in the river bed. Nobody knows why. Gold gold gold! "
    "Stones and gold lie in the river, say the old men of the valley. The end."
)


def test_the_summary_takes_what_weighs_most_and_decays_what_is_covered() -> None:
    parts = parts_of(SENTENCES, str.split, 100)
    assert [part.words for part in parts] == [2, 6, 3, 3, 14, 2]
    terms = [frozenset(word.lower().strip(",.!") for word in part.text.split()) for part in parts]
    parts = [part._replace(terms=each) for part, each in zip(parts, terms, strict=True)]
    weights = {"gold": 3.0, "river": 2.0, "valley": 1.0}
    assert chosen_parts(parts, weights, 14, 0.5) == [4]
    assert chosen_parts(parts, weights, 20, 0.5) == [1, 4]
    assert chosen_parts(parts, weights, 9, 0.0) == [0, 1]  # covered: back to the beginning
    assert chosen_parts(parts, weights, 9, 1.0) == [1, 3]
    assert chosen_parts(parts, {"why": 1.0}, 6, 0.5) == [0, 2]
    assert chosen_parts(parts, {}, 8, 0.5) == [0, 1]
    assert chosen_parts(parts, {"gold": 0.0}, 1, 0.5) == []


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    st.lists(st.sampled_from(["gold", "river.", "Stone", "water!", "x", "Sluice?"]), max_size=60),
    st.lists(st.sampled_from(["gold", "river", "stone", "mud"]), max_size=4),
    st.integers(1, 30),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_a_summary_is_within_its_budget_and_always_the_same(
    words: list[str], query: list[str], budget: int, decay: float
) -> None:
    document, asked = " ".join(words), " ".join(query)
    made = Summarised(Parts(), words=budget, decay=decay)
    ((_, summary),) = made.summaries([(asked, document)])
    assert len(summary.split()) <= budget
    assert bool(summary) == bool(document)
    shuffled = Summarised(Parts(), words=budget, decay=decay)
    both = shuffled.summaries([("other", document), (" ".join(query[::-1]), document)])
    assert both[1][1] == summary
    if len(words) <= budget:
        assert summary == document
    rest = iter(document.split())
    assert all(word in rest for word in summary.split())  # in the document's order


def test_weights_come_from_a_bm25_retriever() -> None:
    bm25 = Retriever.build(BM25Encoder(), documents(), name="bm25")
    text = "The number is known. Nothing here. It is word7. Nothing there either."
    pair = ("number word7", text)
    rare = Summarised(LengthScorer(), bm25, words=4).summaries([pair])
    plain = Summarised(LengthScorer(), words=4).summaries([pair])
    assert rare == [(pair[0], "It is word7.")]
    assert plain == [(pair[0], "The number is known.")]
    unknown = Summarised(LengthScorer(), bm25, words=2).summaries([("zebra", text)])
    assert unknown == [("zebra", "The number")]
    dense = Retriever.build(WordEncoder(), documents(), name="dense")
    with pytest.raises(ConfigError, match="expected a BM25"):
        Summarised(LengthScorer(), dense).score([pair])
    fields = Retriever.build(
        BM25Encoder(fields={"title": 1.0, "text": 1.0}), documents(), name="fields"
    )
    assert Summarised(LengthScorer(), fields, words=4).summaries([pair]) == rare
    found = (bm25 >> Rerank(Summarised(LengthScorer(), bm25, words=5))).run({"a": "gold river"})
    assert len(found["a"])


def test_expressions_of_scorers_over_scorers() -> None:
    names = {"bm25": lambda: _AnyStage("bm25"), "cross": _AnyScorer}
    text = (
        "bm25 >> passages(cached(cross, file='s'), how='sum', length=100, depth=40) "
        ">> summarised(passages(cross), bm25, words=80, decay=0.2, depth=10)"
    )
    stage = parse(text, names)
    last = stage.inner[1]
    assert isinstance(last.scorer, Summarised)
    assert isinstance(last.scorer.scorer, PassageScorer)
    assert last.depth == 10
    assert last.inner[0].name == "bm25"
    for wrong in (
        "passages(cross, how='maxp')", "passages(bm25)", "passages(cross, length=0)",
        "summarised(cross, cross)", "summarised(bm25)", "summarised(cross, decay=2)",
        "summarised(cross, words=0)", "passages(cross(depth=5))", "passages(cross, lenth=5)",
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            parse(wrong, names)
