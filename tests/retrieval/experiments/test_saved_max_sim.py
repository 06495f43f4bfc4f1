"""Pipelines that score by token vectors as folders: the same answers, here and by the command."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from command_line import Call
from small_world import documents
from token_functions import token_vectors

from sluice.encoders import CrossEncoder, DenseEncoder, FunctionEncoder, TokenEncoder
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, ModelError
from sluice.indexing import TokenIndex
from sluice.retrieval import Rerank, Retriever, Stage, load_pipeline
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.stages.rerankers.similarity import MaxSim
from sluice.retrieval.stages.rerankers.stored_vectors import StoredMaxSim

QUERIES = {"a": "gold river", "b": "number 7", "c": "zzz", "d": " "}


@pytest.fixture(scope="module")
def encoder(bert: Path) -> TokenEncoder:
    return TokenEncoder.from_pretrained(bert, dim=8, query_length=12, document_length=24)


@pytest.fixture(scope="module")
def tokens(encoder: TokenEncoder) -> Retriever:
    return Retriever.build(encoder, documents(), index=TokenIndex("int8"), name="tokens")


@pytest.fixture(scope="module")
def few(encoder: TokenEncoder) -> Retriever:
    """Lacks documents, which are encoded from the texts of the first stage."""
    return Retriever.build(encoder, list(documents())[:6], name="max_sim")


def answers(stage: Stage) -> dict[str, list[tuple[str, float]]]:
    return {query: list(ranking) for query, ranking in stage.run(QUERIES).items()}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "copies"),
    [
        ("b % 9 >> max_sim(t, depth=5)", 2),
        ("b >> max_sim(some, depth=9, interpolate=0.25)", 2),
        ("b % 9 >> max_sim(few)", 2),
        ("t % 8 >> max_sim(t) >> dot(d, depth=3)", 2),
        ("0.5 * (b % 9 >> max_sim(t)) + t", 2),
    ],
)  # fmt: skip
def test_a_saved_pipeline_scores_the_same(
    text: str, copies: int, bm25: Retriever, dense: Retriever, tokens: Retriever, few: Retriever,
    tmp_path: Path,
) -> None:  # fmt: skip
    some = tokens.filtered({"id": ["d00", "d07", "d10"]})
    parts: dict[str, Stage] = {"b": bm25, "t": tokens, "few": few, "d": dense, "some": some}
    stage = parse(text, {name: partial(parts.__getitem__, name) for name in parts})
    stage.save(tmp_path / "p")
    moved = shutil.move(tmp_path / "p", tmp_path / "moved")
    assert len(list((tmp_path / "moved" / "retrievers").iterdir())) == copies
    given = {"dense": dense.encoder} if "d," in text else {}
    assert answers(load_pipeline(moved, given=given)) == answers(stage)


def test_the_command_answers_as_the_pipeline(
    bm25: Retriever, tokens: Retriever, tmp_path: Path, sluice: Call
) -> None:
    stage = bm25 % 9 >> Rerank(StoredMaxSim(tokens), 5)
    expected = [(hit.doc_id, hit.score) for hit in stage.search("gold river", 7)]
    stage.save(tmp_path / "p")
    code, out, err = sluice("search", tmp_path / "p", "gold river", "-k", 7, "--json")
    assert code == 0, err
    hits = [json.loads(line) for line in out.splitlines()]
    assert [(hit["doc_id"], hit["score"]) for hit in hits] == [
        (doc, pytest.approx(score, rel=1e-6)) for doc, score in expected
    ]
    code, out, err = sluice("explain", tmp_path / "p", "gold river", "-k", 1)
    assert code == 0, err
    assert "of the exact best" in out
    assert " ~ " in out  # which tokens met
    code, _, err = sluice("search", tmp_path / "p", "gold", "--param", "mode=exact")
    assert (code, "--param: 'p' is a pipeline" in err) == (2, True)
    shutil.rmtree(tmp_path / "p" / "retrievers" / "tokens" / "index")
    code, _, err = sluice("search", tmp_path / "p", "gold river")
    assert code == 2
    assert "tokens" in err


def test_vectors_that_are_gone_are_not_saved(
    bm25: Retriever, encoder: TokenEncoder, tmp_path: Path
) -> None:
    gone = Retriever.build(encoder, documents(), path=tmp_path / "gone", name="gone")
    stage = bm25 % 9 >> Rerank(StoredMaxSim(gone), 5)
    stage.save(tmp_path / "p")
    before = answers(load_pipeline(tmp_path / "p"))
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(IndexFormatError, match=r"gone: no such folder"):
        stage.save(tmp_path / "p")
    assert answers(load_pipeline(tmp_path / "p")) == before  # the older one stays


def test_functions_of_tokens_are_given_again(bm25: Retriever, tmp_path: Path) -> None:
    own = Retriever.build(token_vectors, documents(), name="own")
    stage = bm25 % 9 >> Rerank(StoredMaxSim(own), 5)
    stage.save(tmp_path / "p")
    with pytest.raises(ModelError, match=r"token_vectors: .* functions are not saved"):
        load_pipeline(tmp_path / "p").run(QUERIES)
    opened = load_pipeline(tmp_path / "p", given={"own": token_vectors})
    assert answers(opened) == answers(stage)


@pytest.mark.parametrize("kind", ["tokens", "dense"])
def test_the_model_of_max_sim_is_saved(
    kind: str, bm25: Retriever, encoder: TokenEncoder, bert: Path, tmp_path: Path
) -> None:
    chosen = DenseEncoder.from_pretrained(bert, document_prompt="a ", query_length=9)
    stage = bm25 % 9 >> Rerank(MaxSim(encoder if kind == "tokens" else chosen), 5)
    stage.save(tmp_path / "p")
    assert answers(load_pipeline(tmp_path / "p")) == answers(stage)
    file = tmp_path / "p" / "pipeline.json"
    facts = json.loads(file.read_text())
    assert facts["rerankers"]["MaxSim"]["type"] == "max_sim"
    del facts["rerankers"]["MaxSim"]["folder"]
    file.write_text(json.dumps(facts))
    with pytest.raises(IndexFormatError, match="the model of its reranker 'MaxSim' is missing"):
        load_pipeline(tmp_path / "p")


@pytest.mark.thorough
@pytest.mark.usefixtures("bfloat16")
def test_scorers_in_bfloat16_are_opened_so(
    bm25: Retriever, bert: Path, pair_bert: Path, tmp_path: Path
) -> None:
    for scorer, kind in (
        (MaxSim.from_pretrained(bert, dtype="bfloat16"), MaxSim),
        (CrossEncoder.from_pretrained(pair_bert, dtype="bfloat16"), CrossEncoder),
        (CrossEncoder.from_pretrained(pair_bert), CrossEncoder),
    ):
        stage = bm25 % 9 >> Rerank(scorer, 5)
        stage.save(tmp_path / kind.__name__)
        opened = load_pipeline(tmp_path / kind.__name__)
        assert answers(opened) == answers(stage)
        facts = json.loads((tmp_path / kind.__name__ / "pipeline.json").read_text())
        (noted,) = facts["rerankers"].values()
        half = scorer.dtype is torch.bfloat16
        assert noted.get("dtype") == ("bfloat16" if half else None)


def test_other_encoders_of_max_sim_are_given_again(bm25: Retriever, tmp_path: Path) -> None:
    encoder = FunctionEncoder(token_vectors, name="words")
    encoder.encode_queries(["gold"])  # which shows that its vectors are of tokens
    scorer = MaxSim(encoder)
    with pytest.raises(ConfigError, match="a FunctionEncoder is not saved with it"):
        scorer.save_pretrained(tmp_path / "model")
    stage = bm25 % 9 >> Rerank(scorer, 5)
    stage.save(tmp_path / "p")
    with pytest.raises(ConfigError, match=r"given=\{'MaxSim'"):
        load_pipeline(tmp_path / "p")
    assert answers(load_pipeline(tmp_path / "p", given={"MaxSim": scorer})) == answers(stage)
