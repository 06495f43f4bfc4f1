"""Late chunking: means of states that saw the document, by hand; windows; a retriever; refusals."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from command_line import Call
from small_world import WordEncoder, documents, write_beir

from sluice.encoders import DenseEncoder, SpladeEncoder, TowerEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Document, Passages, Retriever, load_pipeline
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.planning.problems import problems
from sluice.retrieval.retrievers.corpus.encoding import Encoding
from sluice.retrieval.retrievers.corpus.late_chunks import LateEncoder, grouped

TEXT = "gold in the river, a sluice of stone and deep water; search to rank dense vectors"
PARTS = [[(0, 17)], [(0, 4), (19, 36)], None, [(52, len(TEXT))]]


@pytest.fixture(scope="module")
def encoder(bert: Path) -> DenseEncoder:
    return DenseEncoder.from_pretrained(bert, device="cpu")


def by_hand(
    encoder: DenseEncoder, text: str, part: Any, prompt: str = "", *, pooled: bool = True
) -> list[float]:
    """The mean of the states of a part's tokens, special ones among them, of length 1."""
    whole = encoder.tokenizer(prompt + text, return_offsets_mapping=True)
    with torch.no_grad():
        ids = torch.tensor([whole["input_ids"]])
        states = encoder.model(input_ids=ids).last_hidden_state[0].double().tolist()
    chosen = []
    for state, (start, end) in zip(states, whole["offset_mapping"], strict=True):
        start, end = start - len(prompt), end - len(prompt)
        own = part is None or any(start < last and end > first for first, last in part)
        special = start == end
        if special or (end <= 0 and pooled) or (own and end > 0):
            chosen.append(state)
    if prompt and not pooled:
        chosen = chosen[1:]  # the special token before the prompt goes with it
    mean = [sum(column) / len(chosen) for column in zip(*chosen, strict=True)]
    length = sum(x * x for x in mean) ** 0.5
    return [x / length for x in mean]


@pytest.mark.parametrize("packed", [True, False])
def test_parts_by_hand(encoder: DenseEncoder, packed: bool, texts: list[str]) -> None:
    encoder.packed = packed
    assert encoder.encode_parts is not None
    found = encoder.encode_parts([TEXT, "", TEXT[:30]], [PARTS, [None], [[(0, 4)]]])
    expected = [by_hand(encoder, TEXT, part) for part in PARTS]
    expected += [by_hand(encoder, "", None), by_hand(encoder, TEXT[:30], [(0, 4)])]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    whole = encoder.encode_parts(texts, [[None]] * len(texts))
    np.testing.assert_allclose(whole, encoder.encode_documents(texts), atol=1e-6)
    plain = encoder.encode_documents([TEXT[:17]])[0]
    assert np.abs(found[0] - plain).max() > 1e-3  # its states saw more
    assert encoder.encode_parts([], []).shape == (0, 32)
    encoder.packed = True


def test_means_are_of_float32_in_bfloat16_too(bert: Path, texts: list[str], bfloat16: None) -> None:
    encoder = DenseEncoder.from_pretrained(bert, dtype="bfloat16", device="cpu")
    assert encoder.encode_parts is not None
    whole = encoder.encode_parts(texts, [[None]] * len(texts))
    np.testing.assert_allclose(whole, encoder.encode_documents(texts), atol=1e-6)


@pytest.mark.parametrize("pooled", [True, False])
def test_a_prompt_is_pooled_as_the_model_does(bert: Path, pooled: bool) -> None:
    encoder = DenseEncoder.from_pretrained(bert, document_prompt="the document: ", device="cpu")
    encoder.pool_prompt = pooled
    assert encoder.encode_parts is not None
    found = encoder.encode_parts([TEXT], [PARTS])
    expected = [by_hand(encoder, TEXT, part, "the document: ", pooled=pooled) for part in PARTS]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found[2], encoder.encode_documents([TEXT])[0], atol=1e-6)


def test_windows_hold_what_fits_and_begin_with_context() -> None:
    drawn = random.Random(3)
    for _ in range(300):
        length, overlap = drawn.randint(1, 9), drawn.randint(0, 4)
        starts = [0]
        for _ in range(drawn.randint(0, 12)):
            starts.append(starts[-1] + max(1, length - min(overlap, length - 1)))
        ends = [start + length for start in starts]
        room = drawn.choice([None, length, length + 1, 3 * length, 50])
        windows = grouped(starts, ends, room)
        assert [n for w in windows for n in range(w.own, w.stop)] == list(range(len(starts)))
        for first, own, stop in windows:
            assert 0 <= first <= own < stop
            if room is None:
                continue
            assert ends[stop - 1] - starts[first] <= room
            assert stop == len(starts) or ends[stop] - starts[first] > room
            assert starts[own] - starts[first] <= room // 4
            if first:  # one more before it would be too much
                longer = starts[own] - starts[first - 1] > room // 4
                assert longer or ends[own] - starts[first - 1] > room
    assert grouped([], [], 5) == []


def long_documents() -> list[Document]:
    made = [
        document._replace(text=" ".join([document.text] * (1 + 5 * place % 7)))
        for place, document in enumerate(documents(12))
    ]
    return [*made, Document("empty", "", ""), Document("titled", "about gold water", "")]


@pytest.mark.parametrize("repeat_title", [True, False])
def test_every_passage_is_read_whole_within_the_length(bert: Path, repeat_title: bool) -> None:
    encoder = DenseEncoder.from_pretrained(bert, document_length=40, device="cpu")
    docs = long_documents()
    plain = Passages(12, 3, repeat_title=repeat_title)
    late = Passages(12, 3, repeat_title=repeat_title, late=True)
    reader = late.reader(encoder)
    texts = [[each.full_text for each in parts] for parts in plain.split(encoder, docs)]
    shared = 0
    for own, read in zip(texts, late.split(reader, docs), strict=True):
        assert len(own) == len(read)
        for passage, each in zip(own, read, strict=True):
            given = document_input(reader, each)
            assert isinstance(given, dict)
            assert len(encoder.tokenizer(given["text"])["input_ids"]) <= 40
            places = json.loads(given.get("parts", f"[[0, {len(given['text'])}]]"))
            assert " ".join(given["text"][start:end] for start, end in places) == passage
        shared += len(read) - len({each.text for each in read})
    assert shared > 20


@pytest.mark.parametrize("aggregate", ["max", "first", "mean"])
def test_found_as_by_brute_force_whatever_changes(
    aggregate: Any, bert: Path, tmp_path: Path
) -> None:
    encoder = DenseEncoder.from_pretrained(bert, document_length=40, device="cpu")
    docs, cut = long_documents(), Passages(12, 3, aggregate, late=True)
    retriever = Retriever.build(encoder, docs[:8], path=tmp_path / "r", passages=cut)
    retriever.add(docs[8:])
    retriever.update([docs[5]._replace(text=docs[6].text + " and gold water again " * 5)])
    docs[5] = docs[5]._replace(text=docs[6].text + " and gold water again " * 5)
    opened = Retriever.open(tmp_path / "r")
    query = "gold water"
    asked = encoder.encode_queries([query])[0].astype(np.float64)
    reader = cut.reader(encoder)
    expected = {}
    for document, parts in zip(docs, cut.split(reader, docs), strict=True):
        vectors = np.array([
            by_hand(encoder, each.text, json.loads(str(each.metadata.get("parts", "null"))))
            for each in parts
        ])  # fmt: skip
        if aggregate == "mean":
            vectors = vectors.mean(axis=0, keepdims=True)
            vectors /= np.linalg.norm(vectors)
        expected[document.id] = float((vectors @ asked).max())
    for each in (retriever, opened):
        found = each.run({"q": query}, k=100).to_dict()["q"]
        assert found == {doc: pytest.approx(score, abs=1e-5) for doc, score in expected.items()}
    [hit] = opened.search(query, 1)
    if aggregate == "max":
        assert hit.passage is not None
        assert hit.text[hit.passage.start : hit.passage.end] == hit.passage.text


def test_a_tower_of_documents_is_read_late(bert: Path) -> None:
    tower = {"type": "dense", "model": str(bert)}
    towers = TowerEncoder.from_pretrained(query=tower, document=tower, device="cpu")
    reader = Passages(12, 3, late=True).reader(towers)
    alone = Passages(12, 3, late=True).reader(DenseEncoder.from_pretrained(bert, device="cpu"))
    given = [{"text": TEXT, "parts": "[[0, 17]]"}, {"text": TEXT, "parts": "[[19, 36]]"}]
    np.testing.assert_array_equal(reader.encode_documents(given), alone.encode_documents(given))
    assert reader.fingerprint != towers.fingerprint


def test_encoders_without_means_are_refused(
    bert: Path, masked_bert: Path, encoder: DenseEncoder
) -> None:
    for other in (
        DenseEncoder.from_pretrained(bert, pooling="cls"),
        DenseEncoder.from_pretrained(bert, pooling=["cls", "mean"]),
        SpladeEncoder.from_pretrained(masked_bert),
        WordEncoder(),
    ):
        with pytest.raises(ConfigError, match=r"passages\.late: a \w+ has no token states"):
            Retriever.build(other, documents(2), passages=Passages(12, 3, late=True))
    other = DenseEncoder.from_pretrained(bert)
    kind = type(other.tokenizer)
    own = type(
        "Own",
        (kind,),
        {"__call__": lambda self, *texts, **rest: kind.__call__(self, *texts, **rest)},
    )
    other.tokenizer.__class__ = own  # which could do more than tell where tokens stand
    assert other.encode_parts is None
    with pytest.raises(ConfigError, match=r"encoding\.workers: late chunking encodes in one"):
        Retriever.build(
            encoder, documents(2), passages=Passages(12, 3, late=True), encoding=Encoding(workers=2)
        )
    with pytest.raises(ConfigError, match="late: 'yes'; expected true or false"):
        Passages(late="yes")  # type: ignore[arg-type]
    assert "late" not in Passages().settings()
    assert isinstance(Passages(late=True).reader(encoder), LateEncoder)


def test_a_journey(sluice: Call, tmp_path: Path, bert: Path) -> None:
    facts: dict[str, Any] = {
        "dataset": str(write_beir(tmp_path / "data")), "output": str(tmp_path / "out"),
        "retrievers": {
            name: {
                "encoder": {"type": "dense", "model": str(bert)},
                "passages": {"length": 6, "overlap": 2, **({"late": True} if late else {})},
            }
            for name, late in (("plain", False), ("late", True))
        },
        "pipelines": {"late": "late", "both": "plain | late"},
        "evaluate": {"measures": ["nDCG@10"], "latency_queries": 0},
    }  # fmt: skip
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    code, _, err = sluice("run", file)
    assert code == 0, err
    [hit] = load_pipeline(tmp_path / "out", "late").search("gold river", 1)
    assert hit.passage is not None
    facts["retrievers"]["late"]["encoding"] = {"workers": 2}
    with pytest.raises(ConfigError, match=r"retrievers\.late\.encoding\.workers: late chunking"):
        check_experiment(checked(facts, ExperimentConfig))
    del facts["retrievers"]["late"]["encoding"]
    encoders: list[tuple[dict[str, Any], str]] = [
        ({"type": "bm25"}, "a bm25 encoder makes no means"),
        ({"type": "dense", "model": str(bert), "pooling": "cls"}, "pooling: cls makes no means"),
    ]
    for encoder, says in encoders:
        facts["retrievers"]["late"]["encoder"] = encoder
        with pytest.raises(ConfigError, match=rf"retrievers\.late\.passages\.late: {says}"):
            check_experiment(checked(facts, ExperimentConfig))


def test_what_a_models_folder_says_is_refused_before_any_work(bert: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    DenseEncoder.from_pretrained(bert, pooling="cls", document_length=40).save_pretrained(first)
    whole = {"length": 6, "overlap": 2}
    late = {**whole, "late": True}
    most = json.loads((bert / "config.json").read_text())["max_position_embeddings"]
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"model": str(first)}, late, r"passages\.late: pooling: cls makes no means"),
        ({"model": str(first), "pooling": "mean"}, {**late, "length": 41},
         r"passages\.length: 41 tokens; the encoder reads 40 of"),
        ({"model": str(bert)}, {**late, "length": most + 1}, f"the encoder reads {most} of"),
        ({"model": str(bert), "document_length": 9}, {**whole, "length": 10}, "reads 9 of"),
    ]  # fmt: skip
    facts: dict[str, Any] = {"dataset": "pydocs", "output": str(tmp_path / "out")}
    for encoder, passages, says in cases:
        own = {"encoder": {"type": "dense", **encoder}, "passages": passages}
        found = problems({**facts, "retrievers": {"late": own}})
        assert len(found) == 1, found
        assert re.search(says, found[0])
    for encoder, passages in (
        ({"model": str(first), "pooling": "mean"}, late), ({"model": str(first)}, whole),
        ({"model": str(bert)}, {**late, "length": 9}), ({"model": "not/here"}, late),
    ):  # fmt: skip
        own = {"encoder": {"type": "dense", **encoder}, "passages": passages}
        check_experiment(checked({**facts, "retrievers": {"late": own}}, ExperimentConfig))
