"""DSI: identifiers, what a model writes of them, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_decoder import written
from tiny_generators import save_gpt2, save_t5

from sluice.encoders import DsiEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.foundation.tokens import TokenSequences
from sluice.encoders.generative.identifiers import FREE, clusters, free_tokens, next_number, paths
from sluice.encoders.model_files.registry import open_encoder
from sluice.indexing import TrieIndex

TEXTS = ["gold in the river", "deep water", "rank the document", "stone", "score of a vector"]
DOCUMENTS = [{"id": f"d{n} gold", "title": "", "text": text} for n, text in enumerate(TEXTS)]
QUERIES = ["gold river", "water"]
VECTORS = np.array([[0, 0], [0, 1], [9, 9], [9, 8], [9, 0]], np.float32)


@pytest.fixture(scope="module", params=["t5", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    save = {"t5": save_t5, "gpt2": save_gpt2}[request.param]
    return save(tmp_path_factory.mktemp("models") / request.param)


def assigned(folder: Path, **settings: Any) -> DsiEncoder:
    encoder = DsiEncoder.from_pretrained(folder, **settings)
    encoder.assign_ids(DOCUMENTS, VECTORS)
    return encoder


def trie(encoder: DsiEncoder, documents: Any = DOCUMENTS) -> TrieIndex:
    index = TrieIndex()
    index.add(encoder.encode_documents(documents))
    return index


def log_probability(encoder: DsiEncoder, query: str, code: Any) -> float:
    """Of an identifier after a query: one plain pass for each token, float64."""
    features = encoder.tokenize([query], "query")
    total = 0.0
    with torch.no_grad():
        for place, token in enumerate(code):
            before = torch.tensor([code[:place]], dtype=torch.long)
            if encoder.encoder_decoder:
                start = torch.tensor([[encoder.model.config.decoder_start_token_id]])
                inputs = {**features, "decoder_input_ids": torch.cat([start, before], dim=1)}
            else:
                inputs = {"input_ids": torch.cat([features["input_ids"], before], dim=1)}
            logits = encoder.model(**inputs).logits[0, -1].double()
            total += float(logits[token] - logits.logsumexp(dim=0))
    return total


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings", [{"ids": "atomic"}, {"ids": "semantic", "branches": 2}, {"ids": "string"}]
)
def test_enough_beams_rank_every_document_by_its_probability(
    folder: Path, settings: dict[str, Any]
) -> None:
    encoder = assigned(folder, beams=5, **settings)
    hits = trie(encoder).search(encoder.decode_queries(QUERIES, trie(encoder)), 9)
    for query, rows, scores in zip(QUERIES, hits.rows, hits.scores, strict=True):
        codes = [encoder.codes[each["id"]] for each in DOCUMENTS]
        expected = np.array([log_probability(encoder, query, code) for code in codes])
        assert rows.tolist() == [*np.argsort(-expected).tolist(), -1, -1, -1, -1]
        np.testing.assert_allclose(scores[:5], np.sort(expected)[::-1], rtol=1e-4, atol=1e-4)
    few = assigned(folder, beams=1, **settings)
    assert [len(each) for each in map(few.decode_queries(QUERIES, trie(few)).query, (0, 1))] == [
        1, 1
    ]  # fmt: skip


def test_fewer_beams_are_those_of_a_beam_search_by_hand(folder: Path) -> None:
    encoder = assigned(folder, ids="semantic", branches=2, beams=2)
    codes = [encoder.codes[each["id"]] for each in DOCUMENTS]
    running: list[tuple[int, ...]] = [()]
    while not all(code in codes for code in running):
        longer = {
            code if begin == code else code[: len(begin) + 1]
            for begin in running for code in codes if code[: len(begin)] == begin
        }  # fmt: skip
        running = sorted(longer, key=lambda c: -log_probability(encoder, QUERIES[0], c))[:2]
    found = encoder.decode_queries(QUERIES[:1], trie(encoder)).query(0)
    assert [tuple(code.tolist()) for code, _ in found] == running


def test_only_what_exists_is_written() -> None:
    rng = np.random.default_rng(3)
    drawn = {tuple((rng.zipf(1.4, rng.integers(0, 6)) % 12 + 1).tolist()) for _ in range(900)}
    codes = [(*code, 0) for code in sorted(drawn)]
    index = TrieIndex()
    index.add(TokenSequences.of(codes))
    index.delete(range(0, len(codes), 5))
    existing = {code for row, code in enumerate(codes) if row % 5}
    found = {
        code
        for seed in range(25)
        for code in written(index, texts=8, beams=6, vocabulary=20, seed=seed)
    }
    assert len(found) > 300
    assert found <= existing
    assert written(TrieIndex(), texts=2, beams=3, vocabulary=20, seed=1) == []


def test_semantic_identifiers_are_paths_through_clusters() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 3)) * 50
    vectors = (centres[np.arange(80) % 4] + rng.normal(size=(80, 3))).astype(np.float32)
    found = paths(vectors, 4, seed=1)
    assert len(set(found)) == 80
    firsts = [{path[0] for path in found[group::4]} for group in range(4)]
    assert sorted(map(len, firsts)) == [1, 1, 1, 1]
    assert len(set[int]().union(*firsts)) == 4
    for path in found:  # no cluster of the last level holds more than its digits can count
        assert sum(other[:-1] == path[:-1] for other in found) <= 4
        assert max(path) < 4
    assert found == paths(vectors, 4, seed=1) != paths(vectors, 4, seed=2)
    alike = paths(np.ones((30, 2), np.float32), 3, seed=0)
    assert len(set(alike)) == 30
    assert paths(np.ones((1, 2), np.float32), 3, seed=0) == [(0,)]
    assert paths(np.zeros((0, 2), np.float32), 3, seed=0) == []


def test_new_documents_stand_in_the_cluster_that_the_model_writes(folder: Path) -> None:
    encoder = assigned(folder, ids="semantic", branches=2, beams=9)
    more = [*DOCUMENTS, {"id": "new", "title": "gold", "text": "water"}]
    (code,) = encoder.encode_documents(more[-1:])
    *path, first, second = code.tolist()
    assert (first, second) == free_tokens("new")
    every = clusters(encoder.codes.values())
    assert max(every, key=lambda each: log_probability(encoder, "gold water", each)) == tuple(path)
    index = trie(encoder, more)
    keys = {tuple(c.tolist()): w for c, w in encoder.decode_queries(QUERIES, index).query(1)}
    assert len(keys) == 6
    beside = sum(known[: len(path)] == tuple(path) for known in encoder.codes.values()) + 1
    expected = log_probability(encoder, QUERIES[1], path) - math.log(beside)
    assert keys[(*path, first, second)] == pytest.approx(-expected, abs=1e-4)
    assert encoder.terms([code])[0].endswith("-*")
    encoder.assign_ids(more)  # to be learnt too
    learnt = encoder.codes["new"]
    assert learnt[: len(path)] == tuple(path)
    assert max(learnt) < FREE


def test_numbers_in_a_full_cluster_get_another_digit() -> None:
    taken: set[tuple[int, ...]] = {(7, 100 + n) for n in range(3)}
    codes: list[tuple[int, ...]] = []
    for _ in range(7):
        codes.append(next_number((7,), taken, lambda digit: 100 + digit, 3))
        taken.add(codes[-1])
    assert codes[:3] == [(7, 101, 100), (7, 101, 101), (7, 101, 102)]
    assert codes[6] == (7, 101, 100, 100)
    ended = [(*code, 0) for code in sorted(taken)]
    assert clusters(ended) == [(7,)]


def test_saved_and_opened_it_writes_the_same(folder: Path, tmp_path: Path) -> None:
    for settings in ({"ids": "semantic", "branches": 3}, {"ids": "atomic"}, {"ids": "string"}):
        encoder = assigned(folder, beams=3, **settings)
        home = tmp_path / str(settings["ids"])
        encoder.save_pretrained(home)
        opened: Any = open_encoder(home)
        assert isinstance(opened, DsiEncoder)
        assert (opened.fingerprint, opened.codes) == (encoder.fingerprint, encoder.codes)
        index = trie(encoder)
        for one, other in zip(encoder.decode_queries(QUERIES, index).query(0),
                              opened.decode_queries(QUERIES, index).query(0),
                              strict=True):  # fmt: skip
            assert one[0].tolist() == other[0].tolist()
            assert one[1] == other[1]
        before = encoder.fingerprint
        encoder.codes["x"] = (1,)
        assert encoder.fingerprint != before


def test_titles_name_documents_and_may_not_collide(t5: Path) -> None:
    encoder = DsiEncoder.from_pretrained(t5, ids="title")
    two = [{"id": "a", "title": "Gold river", "text": ""}, {"id": "b", "title": "", "text": ""}]
    names = encoder.terms([each.tolist() for each in encoder.encode_documents(two)])
    assert names == ["gold river", "b"]
    same = [{"id": "a", "title": "gold", "text": ""}, {"id": "c", "title": "gold", "text": "x"}]
    for call in (encoder.assign_ids, encoder.encode_documents):
        with pytest.raises(DataError, match="'a' and 'c' have the same identifier"):
            call(same)
    assert not encoder.codes
    long = {"id": "gold " * 40, "title": "", "text": ""}
    with pytest.raises(DataError, match="its identifier has 41 tokens, and length is 32"):
        encoder.assign_ids([long])
    DsiEncoder.from_pretrained(t5, ids="title", length=41).assign_ids([long])


def test_what_cannot_be_found_is_refused(t5: Path, bert: Path, tmp_path: Path) -> None:
    atomic = assigned(t5, ids="atomic")
    with pytest.raises(DataError, match="'new': the model has learnt no identifier of it, and"):
        atomic.encode_documents([{"id": "new", "title": "", "text": ""}])
    untrained = DsiEncoder.from_pretrained(t5, ids="semantic")
    with pytest.raises(DataError, match="learnt no identifier of it; train it"):
        untrained.encode_documents(DOCUMENTS)
    with pytest.raises(ConfigError, match="ids_by: missing"):
        untrained.assign_ids(DOCUMENTS)
    with pytest.raises(DataError, match="reads mappings of id, title and text"):
        atomic.encode_documents(["gold"])
    with pytest.raises(ModelError, match="written with the index that it searches"):
        atomic.encode_queries(["gold"])
    with pytest.raises(ModelError, match=r"cannot write|writes text"):
        DsiEncoder.from_pretrained(bert)
    for settings, message in (
        ({"ids": "url"}, "ids: 'url', expected one of atomic"),
        ({"branches": 3}, "branches: is for ids: semantic"),
        ({"ids_by": {"type": "bm25"}}, "ids_by: is for ids: semantic"),
        ({"ids": "semantic", "branches": 1}, "branches is 1, expected a whole number, 2"),
        ({"beams": 0}, "beams is 0"),
        ({"prompt": "x"}, "expected {query} once"),
    ):
        with pytest.raises(ConfigError, match=message):
            DsiEncoder.from_pretrained(t5, **settings)
    atomic.save_pretrained(tmp_path / "m")
    with pytest.raises(ConfigError, match="has learnt identifiers with ids: 'atomic'"):
        DsiEncoder.from_pretrained(tmp_path / "m", ids="string")


@pytest.mark.parametrize(
    "text",
    [
        "[1]", '{"documents": ["a"]}', '{"documents": ["a"], "codes": [[99999]]}',
        '{"documents": ["a", "b"], "codes": [[5], [5]]}', '{"documents": [1], "codes": [[5]]}',
        '{"documents": ["a"], "codes": [[-1]]}', '{"documents": ["a"], "codes": [[]]}',
        '{"documents": ["a"], "codes": [["5"]]}', '{"documents": ["a"], "codes": [5]}',
        '{"documents": ["a", "b"], "codes": [[5]]}',
    ],
)  # fmt: skip
def test_files_of_identifiers_are_checked(t5: Path, tmp_path: Path, text: str) -> None:
    shutil.copytree(t5, tmp_path / "m")
    (tmp_path / "m" / "sluice.json").write_text(json.dumps({"type": "dsi", "version": 1}))
    (tmp_path / "m" / "identifiers.json").write_text(text)
    with pytest.raises(ModelError, match="identifiers"):
        DsiEncoder.from_pretrained(tmp_path / "m")
