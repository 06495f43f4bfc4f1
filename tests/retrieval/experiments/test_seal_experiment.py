"""SEAL from YAML: trained, indexed, fused, explained, changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_world import WordEncoder, documents
from tiny_generators import save_t5

from sluice.encoders import SealEncoder
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, ModelError
from sluice.indexing import FlatIndex, FmIndex
from sluice.retrieval import Document, Passages, Retriever
from sluice.training.losses.sequences import Spans
from sluice.training.protocol import Example, Text

SMALL: dict[str, Any] = {"beams": 5, "length": 3, "unigrams": 40}
CORPUS = documents(12)
QUERIES = {f"q{row}": f"which is {document.text.split()[2]}" for row, document in enumerate(CORPUS)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SealEncoder:
    """Learnt by heart: for each of twelve queries the spans of its document."""
    folder = save_t5(tmp_path_factory.mktemp("models") / "t5", d_model=32, initializer_factor=1.0)
    encoder = SealEncoder.from_pretrained(folder, **SMALL)
    pairs = zip(QUERIES.items(), CORPUS, strict=True)
    examples = [
        Example(Text(*query), (Text(document.id, document.text),)) for query, document in pairs
    ]
    loss = Spans(spans=4, length=4, smoothing=0.0)
    module, collator = loss.own_pass(encoder, seed=1, sparse=False)
    steps = torch.optim.AdamW(encoder.module.parameters(), lr=0.01)
    for epoch in range(120):
        collator.set_epoch(epoch)
        inputs = collator(examples)
        made = module(**inputs["features"])
        steps.zero_grad()
        loss.over(loss.batch(made, inputs)).backward()
        steps.step()
    return encoder


def test_what_was_learnt_is_found(trained: SealEncoder, t5: Path) -> None:
    retriever = Retriever.build(trained, CORPUS)
    run = retriever.run(QUERIES, k=3)
    first = [run[query].doc_ids[0] == CORPUS[row].id for row, query in enumerate(QUERIES)]
    untrained = Retriever.build(SealEncoder.from_pretrained(t5, **SMALL), CORPUS).run(QUERIES, k=1)
    rows = enumerate(QUERIES)
    lucky = sum(untrained[query].doc_ids[:1] == [CORPUS[row].id] for row, query in rows)
    assert sum(first) >= 9 > 2 * lucky


def test_a_retriever_searches_explains_and_changes(
    trained: SealEncoder, t5: Path, tmp_path: Path
) -> None:
    retriever = Retriever.build(trained, CORPUS, path=tmp_path / "r")
    query = QUERIES["q0"]
    hits = retriever.search(query, 12)
    explained = retriever.explain(query, hits[0].doc_id)
    assert explained.rank == 1
    assert explained.score == pytest.approx(sum(part.contribution for part in explained.terms))
    assert [part.contribution for part in explained.terms] == sorted(
        (part.contribution for part in explained.terms), reverse=True
    )
    assert len(retriever.search(query, 1_000)) <= 12
    assert retriever.search("", 3) == []
    retriever.add([Document("new", "", f"{CORPUS[0].text} gold")])
    retriever.delete(["d00"])
    retriever.update([Document("d04", "", "stone")])
    opened = Retriever.open(tmp_path / "r")
    names = {hit.doc_id for hit in opened.search(query, 20)}
    assert "new" in names
    assert "d00" not in names
    assert opened.search(query, 20) == retriever.search(query, 20)
    retriever.compact()
    assert {hit.doc_id for hit in retriever.search(query, 20)} == names
    other = SealEncoder.from_pretrained(t5, **{**SMALL, "length": 2})
    with pytest.raises(IndexFormatError, match="encoder"):
        Retriever.open(tmp_path / "r", encoder=other)
    with pytest.raises(ModelError, match="written with the index that it searches"):
        retriever.encoder.encode_queries(["gold"])


def test_an_empty_corpus_and_a_single_document(t5: Path) -> None:
    encoder = SealEncoder.from_pretrained(t5, **SMALL)
    retriever = Retriever.build(encoder, [Document("a", "", "gold")])
    assert [hit.doc_id for hit in retriever.search("gold", 5)] in (["a"], [])
    retriever.delete(["a"])
    assert retriever.search("gold", 5) == []


def test_what_does_not_fit_is_refused(t5: Path) -> None:
    encoder = SealEncoder.from_pretrained(t5, **SMALL)
    with pytest.raises(ConfigError, match="expected an FmIndex"):
        Retriever.build(encoder, documents(3), index=FlatIndex())
    with pytest.raises(ConfigError, match="it is for an encoder of type seal"):
        Retriever.build(WordEncoder(), documents(3), index=FmIndex())
    with pytest.raises(ConfigError, match="reads documents whole"):
        Retriever.build(encoder, documents(3), passages=Passages(length=8, overlap=2))
