import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from small_world import WordEncoder, documents, write_beir

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import FlatIndex
from sluice.retrieval import Document, Passages, Retriever, load_dataset
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.retrievers.quality.scorers import (
    HeadQuality,
    InformationToNoise,
    Length,
    Magnitude,
    RandomQuality,
    UnigramLikelihood,
    score_quality,
)
from sluice.retrieval.retrievers.quality.scores import (
    PrunedCorpus,
    QualityScores,
    score_retriever,
    train_quality_head,
)


def ids(corpus: Any) -> list[str]:
    return [document.id for document in corpus]


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0]), max_size=23), st.floats(0, 0.99))
def test_the_share_goes_exactly_worst_first_ties_by_id(scores: list[float], share: float) -> None:
    names = [f"d{(7 * n) % 23:02d}" for n in range(len(scores))]
    found = QualityScores(names, scores).best(share)
    assert len(scores) - found.sum() == math.floor(share * len(scores) + 1e-9)
    ranked = sorted(range(len(scores)), key=lambda n: (scores[n], names[n]), reverse=True)
    assert sorted(np.flatnonzero(found)) == sorted(ranked[: found.sum()])


class TestCorpus:
    def test_share_0_is_the_corpus(self) -> None:
        corpus = documents(10)
        scores = score_quality(corpus, RandomQuality())
        assert list(PrunedCorpus(corpus, scores, 0)) == corpus
        assert list(PrunedCorpus([], QualityScores([], []), 0.5)) == []

    def test_the_worst_go_and_the_order_stays(self) -> None:
        corpus = documents(10)
        scores = QualityScores(ids(corpus), [5, 1, 4, 2, 3, 9, 8, 7, 6, 0])
        small = PrunedCorpus(corpus, scores, 0.3)
        assert len(small) == 7
        assert ids(small) == ["d00", "d02", "d04", "d05", "d06", "d07", "d08"]
        assert list(small) == list(small)  # again from the start

    def test_scores_of_another_corpus(self) -> None:
        corpus = documents(5)
        scores = score_quality(corpus, Length())
        with pytest.raises(DataError, match="document 1 of the corpus is 'd01'"):
            list(PrunedCorpus(corpus[1:], scores, 0.2))
        with pytest.raises(DataError, match="'d04' of the scores is not in the corpus"):
            list(PrunedCorpus(corpus[:4], scores, 0.2))
        with pytest.raises(DataError, match="more documents than the 5 scored"):
            list(PrunedCorpus(documents(6), scores, 0.2))

    @pytest.mark.parametrize("share", [-0.1, 1, True, float("nan")])
    def test_shares_that_are_none(self, share: float) -> None:
        with pytest.raises(ConfigError, match="share"):
            QualityScores(["a"], [1.0]).best(share)


class TestFile:
    def test_comes_back_as_it_was(self, tmp_path: Path) -> None:
        scores = QualityScores(["b", "a"], [0.5, -1.5], by="length", facts={"seed": 3})
        scores.save(tmp_path / "q.parquet")
        back = QualityScores.load(tmp_path / "q.parquet")
        assert back.ids.to_pylist() == ["b", "a"]
        assert back.scores.tolist() == [0.5, -1.5]
        assert (back.by, back.facts) == ("length", {"seed": 3})

    def test_of_another_tool(self, tmp_path: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        path = tmp_path / "theirs.parquet"
        parquet.write_table(pa.table({"quality": [1.0, 2.0], "id": ["a", "b"], "x": [1, 2]}), path)
        assert QualityScores.load(path).best(0.5).tolist() == [False, True]
        parquet.write_table(pa.table({"doc": ["a"], "quality": [1.0]}), path)
        with pytest.raises(DataError, match="columns doc, quality; expected id and quality"):
            QualityScores.load(path)
        parquet.write_table(pa.table({"id": ["a"], "quality": [float("nan")]}), path)
        with pytest.raises(DataError, match=r"theirs\.parquet: quality: document 'a' has nan"):
            QualityScores.load(path)

    def test_missing_and_damaged(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="sluice fit quality makes one"):
            QualityScores.load(tmp_path / "none.parquet")
        (tmp_path / "bad.parquet").write_text("no")
        with pytest.raises(DataError, match="not a file of quality scores"):
            QualityScores.load(tmp_path / "bad.parquet")

    def test_one_score_per_document(self) -> None:
        with pytest.raises(DataError, match=r"2 ids and scores of shape \(3,\)"):
            QualityScores(["a", "b"], [1, 2, 3])


class TestBaselines:
    corpus = (
        Document("a", "Gold", "the gold of the river"),
        Document("b", "", ""),
        Document("c", "", "Gold gold zinc"),
    )

    def test_length(self) -> None:
        assert Length().quality(self.corpus).tolist() == [6, 0, 3]

    def test_information_to_noise(self) -> None:
        assert InformationToNoise().quality(self.corpus).tolist() == pytest.approx([0.5, 0, 1])
        assert InformationToNoise("none").quality(self.corpus).tolist() == [1, 0, 1]

    def test_unigram_is_the_formula(self) -> None:
        counts = Counter(["gold", "the", "gold", "of", "the", "river", "gold", "gold", "zinc"])
        found = UnigramLikelihood.fit(self.corpus).quality(self.corpus)
        total = counts.total() + len(counts) + 1
        expected = [
            np.mean([math.log((counts[word] + 1) / total) for word in text.split()])
            for text in ("gold the gold of the river", "unseen", "gold gold zinc")
        ]
        assert found.tolist() == pytest.approx(expected)

    def test_magnitude(self) -> None:
        encoder = WordEncoder()
        corpus = documents(6)
        vectors = encoder.encode_documents([document.full_text for document in corpus])
        found = Magnitude(encoder).quality(corpus)
        assert found.tolist() == pytest.approx(np.linalg.norm(vectors, axis=1).tolist())
        sparse = BM25Encoder().fit([document.full_text for document in corpus])
        rows = sparse.encode_documents([document.full_text for document in corpus]).toarray()
        expected = np.linalg.norm(rows, axis=1).tolist()
        assert Magnitude(sparse).quality(corpus).tolist() == pytest.approx(expected)

    def test_magnitude_of_unit_vectors_is_refused(self, bert: Path) -> None:
        from sluice.encoders import DenseEncoder

        with pytest.raises(ConfigError, match="normalize=False"):
            Magnitude(DenseEncoder.from_pretrained(bert))
        open_ended = DenseEncoder.from_pretrained(bert, normalize=False)
        assert np.ptp(Magnitude(open_ended).quality(documents(4))) > 0

    def test_scoring_streams_in_order(self) -> None:
        corpus = documents(12)
        scores = score_quality(iter(corpus), Length())
        assert scores.ids.to_pylist() == ids(corpus)
        assert scores.by == "length"
        assert len(score_quality([], Length())) == 0

    def test_random_is_by_seed(self) -> None:
        corpus = documents(12)
        one, two, other = (score_quality(corpus, RandomQuality(seed)) for seed in (1, 1, 2))
        assert one.scores.tolist() == two.scores.tolist() != other.scores.tolist()


class TestHead:
    @pytest.fixture
    def retriever(self) -> Retriever:
        return Retriever.build(WordEncoder(), documents(40), index=FlatIndex())

    def test_prefers_what_train_queries_find(self, retriever: Retriever) -> None:
        gold = [document.id for document in documents(40) if "gold" in document.text.split()]
        qrels = {f"q{n}": {name: 1, "d01": 0} for n, name in enumerate(gold)}
        for loss in ("bce", "pairwise"):
            head = train_quality_head(
                retriever, qrels, labels="any", loss=loss,  # type: ignore[arg-type]
            )  # fmt: skip
            scores = score_retriever(retriever, head)
            kept = scores.best(1 - len(gold) / 40)
            assert sorted(np.array(scores.ids.to_pylist())[kept]) == sorted(gold)
            assert head.facts["relevant"] == len(gold)
            assert head.facts["documents"] == 40

    def test_shares_where_all_are_relevant(self, retriever: Retriever) -> None:
        every = {"q0": {document.id: 1 for document in documents(40)}}
        with pytest.raises(DataError, match="labels='share'"):
            train_quality_head(retriever, every, labels="any")
        one_each = {"q1": {"d00": 1}, "q2": {"d10": 2, "d11": 0}}
        for loss in ("bce", "pairwise"):
            head = train_quality_head(
                retriever, {**every, **one_each}, loss=loss, l2=0.01,  # type: ignore[arg-type]
            )  # fmt: skip
            scores = score_retriever(retriever, head)
            best = np.argsort(-scores.scores)[:2]
            assert {scores.ids[int(place)].as_py() for place in best} == {"d00", "d10"}

    def test_a_query_has_one_unit_to_share(
        self, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[np.ndarray] = []
        monkeypatch.setattr(
            "sluice.retrieval.retrievers.quality.scores.fit_quality_head",
            lambda vectors, targets, **options: seen.append(targets),
        )
        qrels = {"a": {"d00": 2, "d01": 1}, "b": {"d00": 1, "d02": 0}, "c": {"d03": 0}}
        train_quality_head(retriever, qrels)
        train_quality_head(retriever, qrels, labels="any")
        assert seen[0][:4].tolist() == [1.0, 1 / 3, 0.0, 0.0]  # 1.5 and 0.5, over the largest
        assert seen[1][:4].tolist() == [1.0, 1.0, 0.0, 0.0]

    def test_index_and_encoder_give_the_same(self, retriever: Retriever) -> None:
        head = train_quality_head(retriever, {"q": {"d00": 1, "d03": 1}})
        encoded = score_quality(documents(40), HeadQuality(WordEncoder(), head))
        stored = score_retriever(retriever, head)
        np.testing.assert_allclose(encoded.scores, stored.scores, atol=1e-5)
        assert stored.ids.to_pylist() == encoded.ids.to_pylist()
        with pytest.raises(ConfigError, match="fitted on vectors of the encoder"):
            HeadQuality(WordEncoder(32), head)
        other = Retriever.build(WordEncoder(32), documents(4), index=FlatIndex())
        with pytest.raises(ConfigError, match="fit a head for them"):
            score_retriever(other, head)

    def test_deleted_documents_have_no_score(self, retriever: Retriever) -> None:
        retriever.delete(["d05", "d07"])
        head = train_quality_head(retriever, {"q": {"d00": 1, "d05": 1}})
        scores = score_retriever(retriever, head)
        assert len(scores) == 38
        assert "d05" not in scores.ids.to_pylist()
        assert list(PrunedCorpus(retriever.store, scores, 0)) == list(retriever.store)

    def test_qrels_of_another_corpus(self, retriever: Retriever) -> None:
        with pytest.raises(DataError, match="none of the 1 relevant documents"):
            train_quality_head(retriever, {"q": {"elsewhere": 1}})

    def test_sparse_and_passage_retrievers_are_refused(self) -> None:
        sparse = Retriever.build(BM25Encoder(), documents(8))
        with pytest.raises(ConfigError, match="sparse"):
            train_quality_head(sparse, {"q": {"d00": 1}})

    def test_labels_that_are_none(self, retriever: Retriever) -> None:
        with pytest.raises(ConfigError, match="did you mean 'share'"):
            train_quality_head(retriever, {"q": {"d00": 1}}, labels="shares")  # type: ignore[arg-type]

    def test_large_corpora_are_sampled(
        self, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sluice.retrieval.retrievers.quality.scores.MOST", 20)
        head = train_quality_head(retriever, {"q": {f"d{n:02d}": 1 for n in range(4)}})
        assert (head.facts["documents"], head.facts["relevant"]) == (20, 4)
        head = train_quality_head(retriever, {"q": {f"d{n:02d}": 1 for n in range(36)}})
        assert (head.facts["documents"], head.facts["relevant"]) == (20, 16)


def test_passages_are_refused(bert: Path) -> None:
    from sluice.encoders import DenseEncoder

    encoder = DenseEncoder.from_pretrained(bert)
    retriever = Retriever.build(
        encoder, documents(6), index=FlatIndex(), passages=Passages(length=16, overlap=4)
    )
    with pytest.raises(ConfigError, match="without passages"):
        train_quality_head(retriever, {"q": {"d00": 1}})


class TestExperiment:
    def config(self, tmp_path: Path, share: float) -> dict[str, Any]:
        return {
            "dataset": str(tmp_path / "data"),
            "output": str(tmp_path / "out"),
            "retrievers": {
                "small": {
                    "encoder": {"type": "bm25"},
                    "prune": {"scores": str(tmp_path / "q.parquet"), "share": share},
                },
                "whole": {"encoder": {"type": "bm25"}},
            },
        }

    def made(self, tmp_path: Path, share: float) -> Experiment:
        return Experiment(checked(self.config(tmp_path, share), ExperimentConfig))

    def test_a_retriever_of_the_best(self, tmp_path: Path) -> None:
        dataset = load_dataset(write_beir(tmp_path / "data"))
        scores = score_quality(dataset.corpus, Length())
        scores.save(tmp_path / "q.parquet")
        experiment = self.made(tmp_path, 0.25)
        small = experiment.retriever("small")
        assert len(small) == 30
        assert ids(small.store) == ids(PrunedCorpus(dataset.corpus, scores, 0.25))
        assert len(experiment.retriever("whole")) == 40
        again = self.made(tmp_path, 0.25).retriever("small")
        assert again.head == small.head  # opened, not built
        assert len(self.made(tmp_path, 0.5).retriever("small")) == 20
        score_quality(dataset.corpus, RandomQuality()).save(tmp_path / "q.parquet")
        assert ids(self.made(tmp_path, 0.5).retriever("small").store) != ids(small.store)[:20]

    def test_share_0_finds_what_the_whole_finds(self, tmp_path: Path) -> None:
        dataset = load_dataset(write_beir(tmp_path / "data"))
        score_quality(dataset.corpus, Length()).save(tmp_path / "q.parquet")
        experiment = self.made(tmp_path, 0)
        runs = [
            experiment.retriever(name).run(dataset.queries, k=40) for name in ("small", "whole")
        ]
        assert dict(runs[0]) == dict(runs[1])

    def test_faults_are_said_before_any_work(self, tmp_path: Path) -> None:
        write_beir(tmp_path / "data")
        with pytest.raises(ConfigError, match=r"retrievers\.small\.prune\.scores: no file"):
            self.made(tmp_path, 0.25)
        with pytest.raises(ConfigError, match=r"prune\.share: 1"):
            self.made(tmp_path, 1)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"id": [["a"]], "quality": [1.0]}, b"{}"),
        ({"id": ["a"], "quality": ["much"]}, b"{}"),
        ({"id": ["a", None], "quality": [1.0, 1.0]}, b"{}"),
        ({"id": ["a"], "quality": [None]}, b"{}"),
        ({"id": ["a"], "quality": [1.0]}, b"{"),
        ({"id": ["a"], "quality": [1.0]}, b"[1]"),
        ({"id": ["a"], "quality": [1.0]}, b'{"facts": [1]}'),
    ],
)
def test_foreign_scores_are_refused(tmp_path: Path, columns: dict[str, Any], told: bytes) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    file = tmp_path / "q.parquet"
    parquet.write_table(pa.table(columns).replace_schema_metadata({b"sluice.quality": told}), file)
    with pytest.raises(DataError, match=r"q\.parquet"):
        QualityScores.load(file)
