"""Three heads of one transformer: BGE-M3's formulas, one pass for all, saved and opened."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_architectures import save_architecture

from sluice.encoders import DenseEncoder, ThreeHeadEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.model_files import open_encoder
from sluice.encoders.own.three_heads.encoder import (
    DenseHead,
    HeadEncoder,
    SparseHead,
    TokenHead,
)
from sluice.encoders.own.three_heads.trunk import Memo, Trunk
from sluice.encoders.transformer.tokens import TokenBatch

TEXTS = ["river gold, river stone.", "", "water", "deep sparse query model " * 8, "water"]


@pytest.fixture(scope="module", params=["Bert", "Roberta"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in BGE-M3's layout, its heads in safetensors."""
    folder = tmp_path_factory.mktemp("heads") / request.param
    save_architecture(folder, request.param, "dense")
    drawn = torch.Generator().manual_seed(4)
    sparse = {"weight": torch.randn(1, 32, generator=drawn), "bias": torch.tensor([0.1])}
    tokens = {"weight": torch.randn(12, 32, generator=drawn), "bias": torch.randn(12)}
    save_file(sparse, folder / "sparse_linear.safetensors")
    save_file(tokens, folder / "colbert_linear.safetensors")
    return folder


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of texts of each pass through a transformer."""
    passes: list[int] = []
    ordinary = Trunk.output

    def output(self: Trunk, batch: TokenBatch, network: Any) -> Any:
        passes.append(len(batch.rows))
        return ordinary(self, batch, network)

    monkeypatch.setattr(Trunk, "output", output)
    return passes


def expected(folder: Path, text: str) -> tuple[Any, dict[int, float], Any]:
    """Dense vector, term weights and token vectors by the paper's formulas, in float64."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval().double()
    encoded = tokenizer([text], return_tensors="pt", truncation=True, max_length=64)
    with torch.no_grad():
        states = model(**encoded).last_hidden_state[0].numpy()
    heads = [load_file(folder / f"{name}_linear.safetensors") for name in ("sparse", "colbert")]
    sparse, tokens = (
        {key: tensor.double().numpy() for key, tensor in head.items()} for head in heads
    )
    dense = states[0] / np.linalg.norm(states[0])
    weights: dict[int, float] = {}
    for token, state in zip(encoded["input_ids"][0].tolist(), states, strict=True):
        weight = float(sparse["weight"][0] @ state + sparse["bias"][0])
        if token not in tokenizer.all_special_ids and weight > 0:
            weights[token] = max(weight, weights.get(token, 0.0))
    vectors = states[1:] @ tokens["weight"].T + tokens["bias"]
    return dense, weights, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_heads_are_the_papers_formulas(folder: Path) -> None:
    heads = ThreeHeadEncoder.from_pretrained(folder)
    for encode in ("encode_queries", "encode_documents"):
        dense, sparse, tokens = (
            getattr(view, encode)(TEXTS) for view in (heads.dense, heads.sparse, heads.tokens)
        )
        assert (dense.dtype, sparse.dtype, tokens.values.dtype) == (np.float32,) * 3
        for row, text in enumerate(TEXTS):
            vector, weights, vectors = expected(folder, text)
            np.testing.assert_allclose(dense[row], vector, atol=1e-5)
            terms = sparse[[row]].tocoo()
            assert set(terms.coords[1].tolist()) == set(weights)
            for term, weight in zip(terms.coords[1].tolist(), terms.data, strict=True):
                assert weight == pytest.approx(weights[term], abs=1e-5)
            np.testing.assert_allclose(tokens.text(row), vectors, atol=1e-5)
    assert sparse.has_sorted_indices
    gold = heads.trunk.tokenizer.convert_tokens_to_ids("gold")
    assert heads.sparse.terms([gold]) == ["gold"]


def test_each_text_is_encoded_once_for_three_heads(folder: Path, counted: list[int]) -> None:
    views = [
        HeadEncoder.from_pretrained(folder, head=head) for head in ("dense", "sparse", "tokens")
    ]
    assert len({id(view.trunk) for view in views}) == 1
    first = [view.encode_queries(TEXTS) for view in views]
    assert sum(counted) == 4  # one text is there twice
    again = [view.encode_queries(TEXTS) for view in reversed(views)][::-1]
    assert sum(counted) == 4
    np.testing.assert_array_equal(first[0], again[0])
    assert (first[1] != again[1]).nnz == 0
    np.testing.assert_array_equal(first[2].values, again[2].values)
    views[1].encode_documents(TEXTS)  # another side may have another prompt
    assert sum(counted) == 8
    views[2].encode_documents([*TEXTS, "gold"])
    assert sum(counted) == 9


def test_one_head_alone_computes_and_remembers_no_other(folder: Path, counted: list[int]) -> None:
    heads = ThreeHeadEncoder.from_pretrained(folder)
    view = heads.sparse
    view.encode_queries(TEXTS)
    assert heads.trunk._memo.size == 0
    assert sum(counted) == len(TEXTS)


def test_memo_is_bounded_and_forgets_the_oldest() -> None:
    memo = Memo(limit=1_000)
    part = (np.zeros(50, np.float32),)  # 200 bytes, and 200 for the objects
    memo.known([], "dense", 1)
    for key in (b"a", b"b", b"b"):
        memo.keep(key, "dense", part, 1)
    assert set(memo.known([b"a", b"b"], "dense", 1)) == {b"a", b"b"}
    assert not memo.known([b"a"], "tokens", 1)
    memo.known([b"a"], "dense", 1)
    memo.keep(b"c", "dense", part, 1)
    assert set(memo.known([b"a", b"b", b"c"], "dense", 1)) == {b"a", b"c"}
    assert memo.size <= memo.limit
    assert not memo.known([b"a"], "dense", 2)
    memo.keep(b"a", "dense", part, 1)  # of weights that have changed meanwhile
    assert memo.size == 0


def test_more_texts_than_the_memo_holds(folder: Path) -> None:
    heads = ThreeHeadEncoder.from_pretrained(folder, batch_tokens=16)
    whole = [heads.dense.encode_queries(TEXTS), heads.tokens.encode_queries(TEXTS)]
    small = ThreeHeadEncoder.from_pretrained(folder, batch_tokens=16)
    small.trunk._memo.limit = 300
    views = small.dense, small.tokens
    for _ in range(2):
        np.testing.assert_allclose(views[0].encode_queries(TEXTS), whole[0], atol=1e-6)
        found = views[1].encode_queries(TEXTS)
        np.testing.assert_allclose(found.values, whole[1].values, atol=1e-6)
        assert small.trunk._memo.size <= 300


def test_changed_weights_are_noticed(folder: Path) -> None:
    heads = ThreeHeadEncoder.from_pretrained(folder)
    dense, tokens = heads.dense, heads.tokens
    before, marked = dense.encode_queries(TEXTS), tokens.fingerprint
    with torch.no_grad():
        next(heads.trunk.model.parameters()).mul_(1.5)
    assert not np.allclose(dense.encode_queries(TEXTS), before)
    assert tokens.fingerprint != marked


def test_saved_opened_and_apart_by_fingerprint(folder: Path, tmp_path: Path) -> None:
    heads = ThreeHeadEncoder.from_pretrained(folder, query_length=20)
    marks = {view.fingerprint for view in (heads.dense, heads.sparse, heads.tokens)}
    assert len(marks) == 3
    kinds = (heads.dense, DenseHead), (heads.sparse, SparseHead), (heads.tokens, TokenHead)
    for number, (view, kind) in enumerate(kinds):
        view.save_pretrained(tmp_path / str(number))
        again = open_encoder(tmp_path / str(number))
        assert type(again) is kind
        assert again.fingerprint == view.fingerprint
        assert again.lengths == {"query": 20, "document": 64}
    dense = DenseEncoder.from_pretrained(tmp_path / "0")  # as any other reads the folder
    np.testing.assert_allclose(
        dense.encode_documents(TEXTS), heads.dense.encode_documents(TEXTS), atol=1e-5
    )
    copied = copy.deepcopy(heads.tokens)
    assert copied.fingerprint == heads.tokens.fingerprint
    heads.save_pretrained(tmp_path / "all")
    with pytest.raises(ConfigError, match="dense, sparse, tokens"):
        open_encoder(tmp_path / "all")


def test_settings_share_a_model_only_where_equal(folder: Path) -> None:
    one, other = (
        HeadEncoder.from_pretrained(folder, head="dense"),
        HeadEncoder.from_pretrained(folder, head="tokens", query_length=9),
    )
    assert one.trunk is not other.trunk
    assert HeadEncoder.from_pretrained(folder, head="sparse").trunk is one.trunk


def test_a_dense_vector_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    ThreeHeadEncoder.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    ThreeHeadEncoder.from_pretrained(tmp_path / "saved")
    pooling = tmp_path / "saved" / "1_Pooling" / "config.json"
    changed = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), **changed}))
    with pytest.raises(ModelError, match="has mean pooling; expected cls pooling alone"):
        ThreeHeadEncoder.from_pretrained(tmp_path / "saved")


def test_what_cannot_be_opened(folder: Path, tmp_path: Path, bert: Path) -> None:
    with pytest.raises(ConfigError, match=r"head: 'tokns'; known: .*tokens"):
        HeadEncoder.from_pretrained(folder, head="tokns")
    with pytest.raises(ModelError, match=r"sparse_linear\.safetensors: missing"):
        HeadEncoder.from_pretrained(bert, head="dense")
    heads = ThreeHeadEncoder.from_pretrained(folder)
    heads.save_pretrained(tmp_path / "saved")
    save_file({"weight": torch.zeros(2, 32)}, tmp_path / "saved" / "sparse_linear.safetensors")
    with pytest.raises(ModelError, match=r"expected a weight \[1, 32\]"):
        HeadEncoder.from_pretrained(tmp_path / "saved", head="dense")
    (tmp_path / "saved" / "sparse_linear.safetensors").unlink()
    torch.save({"weight": torch.zeros(1, 32)}, tmp_path / "saved" / "sparse_linear.pt")
    with pytest.raises(ModelError, match="weights in a pickle"):
        HeadEncoder.from_pretrained(tmp_path / "saved", head="dense")
    with pytest.raises(DataError, match="a single str"):
        heads.tokens.encode_queries("gold")
    assert heads.dense.encode_queries([]).shape == (0, 32)
    assert heads.sparse.encode_queries([]).shape[0] == 0
    assert len(heads.tokens.encode_documents([])) == 0


def test_one_pipeline_of_three_retrievers_encodes_a_query_once(
    folder: Path, tmp_path: Path, counted: list[int]
) -> None:
    from sluice.indexing import TokenIndex
    from sluice.retrieval import Document, Retriever

    corpus = [Document(str(number), text) for number, text in enumerate(TEXTS)]
    kinds = ("dense", "sparse", "tokens")
    for kind in kinds:
        view = HeadEncoder.from_pretrained(folder, head=kind)
        index = TokenIndex("float32") if kind == "tokens" else None
        Retriever.build(view, corpus, index=index).save(tmp_path / kind)
    dense, sparse, tokens = (Retriever.load(tmp_path / kind) for kind in kinds)
    assert dense.encoder.trunk is tokens.encoder.trunk  # type: ignore[union-attr]
    pipeline = dense | sparse | tokens
    pipeline.search("gold", k=3)  # opens the heads that were not yet
    counted.clear()
    hits = pipeline.search("river stone", k=3)
    assert sum(counted) == 1
    ranked = [part.search("river stone", len(TEXTS)) for part in (dense, sparse, tokens)]
    best = {hit.doc_id for hits_of_one in ranked for hit in hits_of_one[:1]}
    assert hits[0].doc_id in best
    assert sum(counted) == 1
