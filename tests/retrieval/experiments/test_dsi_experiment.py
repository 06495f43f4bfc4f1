"""DSI from YAML: trained, indexed, fused, explained, changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from kinds import Models, experiment
from small_world import WordEncoder, documents, write_beir
from tiny_generators import save_t5
from tiny_models import WORDS

from sluice.encoders import DsiEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing import FlatIndex, FmIndex, TrieIndex
from sluice.retrieval import Dataset, Document, Passages, Retriever, load_dataset
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.reuse import Dependencies
from sluice.retrieval.experiments.training.checks import check_training
from sluice.retrieval.planning.problems import problems
from sluice.retrieval.training_data.files.corpus_examples import IndexingExamples
from sluice.training.losses.sequences import Identifiers
from sluice.training.protocol import Example, Text

CORPUS = documents(12)
QUERIES = {f"q{row}": f"which is {document.text.split()[2]}" for row, document in enumerate(CORPUS)}


def named(corpus: list[Document]) -> list[dict[str, str]]:
    return [{"id": each.id, "title": each.title, "text": each.text} for each in corpus]


def taught(encoder: DsiEncoder, pairs: list[tuple[str, str]], steps: int) -> DsiEncoder:
    """Train on texts with the ids of documents."""
    examples = [
        Example(Text(str(number), text), (Text(name, ""),))
        for number, (text, name) in enumerate(pairs)
    ]
    loss = Identifiers(smoothing=0.0)
    module, collator = loss.own_pass(encoder, seed=1, sparse=False)
    optimiser = torch.optim.AdamW(encoder.module.parameters(), lr=0.01)
    inputs = collator(examples)
    for _ in range(steps):
        optimiser.zero_grad()
        loss.over(loss.batch(module(**inputs["features"]), inputs)).backward()
        optimiser.step()
    return encoder


def small(folder: Path, corpus: list[Document], **settings: Any) -> DsiEncoder:
    """A small model, and identifiers of the documents."""
    model = save_t5(folder / "t5", d_model=32, initializer_factor=1.0, dropout_rate=0.0)
    encoder = DsiEncoder.from_pretrained(model, beams=16, **settings)
    encoder.assign_ids(named(corpus), WordEncoder(16).encode_documents([e.text for e in corpus]))
    return encoder


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> DsiEncoder:
    """Learnt by heart: for each of twelve queries its document, in clusters."""
    encoder = small(tmp_path_factory.mktemp("models"), CORPUS, ids="semantic", branches=4)
    pairs = [(text, CORPUS[row].id) for row, text in enumerate(QUERIES.values())]
    return taught(encoder, pairs, 80)


@pytest.mark.thorough
def test_queries_held_out_are_found_by_what_queries_taught_alone(tmp_path: Path) -> None:
    words = [word for word in WORDS.split() if len(word) > 3][-20:]
    corpus = [
        Document(f"d{n}", "", f"{words[n]} of the and to {words[10 + n]} for") for n in range(10)
    ]
    asked = [f"{a} {{}} {b}" for a in ("the", "a", "is", "on", "by") for b in ("of", "to")]
    starts = [(" ".join(each.text.split()[:5]), each.id) for each in corpus]
    queries = [(form.format(each.text.split()[5]), each.id) for each in corpus for form in asked]
    held_out = {f"q{row}": pair for row, pair in enumerate(queries) if row % 5 == 4}
    learnt_from = [pair for row, pair in enumerate(queries) if row % 5 != 4]
    shares = {}
    for pairs in (starts, [*starts, *learnt_from]):
        encoder = taught(small(tmp_path / str(len(pairs)), corpus, ids="atomic"), pairs, 60)
        run = Retriever.build(encoder, corpus).run({q: t for q, (t, _) in held_out.items()}, k=1)
        found = [run[name].doc_ids[:1] == [document] for name, (_, document) in held_out.items()]
        shares[len(pairs)] = sum(found) / len(found)
    assert shares[90] > 0.9
    assert shares[10] < 0.35


@pytest.mark.thorough
def test_a_retriever_searches_explains_and_changes(
    learnt: DsiEncoder, t5: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retriever = Retriever.build(learnt, CORPUS, path=tmp_path / "r")
    query = QUERIES["q0"]
    hits = retriever.search(query, 1_000)
    assert len(hits) == 12
    explained = retriever.explain(query, hits[0].doc_id)
    assert explained.rank == 1
    assert [part.contribution for part in explained.terms] == [pytest.approx(explained.score)]
    assert retriever.search("", 3) == []
    retriever.add([Document("new", "", CORPUS[0].text)])
    retriever.delete(["d01"])
    retriever.update([Document("d04", "", "stone")])
    opened = Retriever.open(tmp_path / "r")
    names = {hit.doc_id for hit in opened.search(query, 20)}
    assert names == {"new", *(each.id for each in CORPUS)} - {"d01"}
    assert opened.search(query, 20) == retriever.search(query, 20)
    place = [hit.doc_id for hit in opened.search(query, 20)].index("new")
    assert place < 6  # its cluster is found by the query of the document that it repeats
    retriever.compact()
    assert retriever.search(query, 20) == opened.search(query, 20)
    assert "new to the model" not in caplog.text
    Retriever.build(learnt, [*CORPUS[:3], Document("other", "", "water")])
    assert "1 document of 4 are new to the model" in caplog.text
    with pytest.raises(IndexFormatError, match="encoder"):
        Retriever.open(tmp_path / "r", encoder=DsiEncoder.from_pretrained(t5))


def test_other_corpora_and_other_indexes_are_refused(learnt: DsiEncoder, t5: Path) -> None:
    strangers = [Document(f"x{n}", "", "gold") for n in range(3)]
    with pytest.raises(DataError, match="of none of these 3 documents; train it on this"):
        Retriever.build(learnt, strangers)
    plain = DsiEncoder.from_pretrained(t5, beams=3)  # ids are texts: nothing has to be learnt
    assert len(Retriever.build(plain, strangers).search("gold", 5)) == 3
    assert Retriever.build(plain, []).search("gold", 5) == []
    assert len(Retriever.build(plain, strangers[:1]).search("gold", 5)) == 1
    for other in (FlatIndex(), FmIndex()):
        with pytest.raises(ConfigError, match="expected a TrieIndex"):
            Retriever.build(plain, strangers, index=other)
    with pytest.raises(ConfigError, match="it is for an encoder of type dsi"):
        Retriever.build(WordEncoder(), strangers, index=TrieIndex())
    with pytest.raises(ConfigError, match="a dsi encoder reads documents whole"):
        Retriever.build(plain, strangers, passages=Passages(length=8, overlap=2))


def test_one_wrong_key_is_one_problem(tmp_path: Path, bert: Path, models: Models) -> None:
    facts = experiment("dsi", tmp_path, models)
    writer = facts["train"]["writer"]
    encoder, by = writer["encoder"], {"type": "dense", "model": str(bert)}
    for changes, says in (
        ({"ids_by": {"type": "bm25"}}, "encoder.ids_by.type: unknown type 'bm25'"),
        ({"ids_by": "x"}, "encoder.ids_by: 'x'; expected an encoder"),
        ({"branches": 1}, "encoder.branches is 1"),
        ({"ids": "sematic"}, "encoder.ids: 'sematic'; expected one of"),
        ({"ids_by": None}, "encoder.ids_by: missing: semantic ids"),
    ):
        writer["encoder"] = {**encoder, "ids_by": by, **changes}
        [found] = problems(facts)
        assert found.startswith(f"train.writer.{says}")
    writer["encoder"] = {**encoder, "ids": "sematic"}
    writer["examples"] = {"type": "indexing", "words": -1}
    facts["retrievers"]["dsi"]["index"] = {"type": "flat"}
    assert len(problems(facts)) == 3  # other problems are told still


def test_judgements_need_a_train_split(tmp_path: Path, models: Models) -> None:
    facts = experiment("dsi", tmp_path, models)
    (tmp_path / "data" / "qrels" / "train.tsv").unlink()
    [found] = problems(facts)
    assert found.startswith("train.writer.examples.judgements: the dataset has dev, test, and")
    facts["train"]["writer"]["examples"] = {"type": "indexing", "words": 8}
    assert problems(facts) == []


def test_what_makes_the_vectors_is_trained_before(
    tmp_path: Path, bert: Path, models: Models
) -> None:
    facts = experiment("dsi", tmp_path, models)
    writer = facts["train"]["writer"]
    writer["encoder"]["ids_by"]["model"] = "later"
    facts["train"]["later"] = {"encoder": {"type": "dense", "model": str(bert)}, "loss": "info_nce"}
    needs = Dependencies(checked(facts, ExperimentConfig))
    assert "train.later" in needs.closure("train.writer")


def test_a_corpus_is_needed(tmp_path: Path, models: Models) -> None:
    writer = experiment("dsi", tmp_path, models)["train"]["writer"]
    section = checked({"dataset": "d", "output": "o", **writer}, TrainConfig)
    with pytest.raises(ConfigError, match="dataset: missing: a dsi encoder learns"):
        check_training(section, "", with_dataset=False)


def test_texts_and_queries_to_learn_from(tmp_path: Path) -> None:
    data = load_dataset(str(write_beir(tmp_path / "data", 6)), "train")
    rows = [{"query": "what is gold", "pos": ["x"], "neg": [], "pos_ids": ["d00"], "neg_ids": []}]
    file = tmp_path / "generated.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = IndexingExamples(words=4, phrases=2, queries=str(file), judgements=True)
    made = source.examples(data, 1)
    asked = {(each.query.text, each.documents[0].id) for each in made}
    texts = {each.id: each.full_text for each in data.corpus}
    assert {(" ".join(text.split()[:4]), name) for name, text in texts.items()} <= asked
    assert ("what is gold", "d00") in asked
    judged = {(data.queries[q], d) for q, own in data.qrels.items() for d, g in own.items() if g}
    assert judged <= asked
    assert len({each.query.id for each in made}) == len({each.query for each in made})
    assert source.paths == [file]
    with pytest.raises(DataError, match=r"examples.mentions: the corpus gives none"):
        IndexingExamples(mentions=2).examples(data, 1)
    with pytest.raises(DataError, match=r"examples.judgements: it has no train split"):
        IndexingExamples(judgements=True).examples(data.with_split(None), 1)
    useless = Dataset.from_memory(data.corpus, {"q": "gold"}, {"q": {"d00": 0}}, name="useless")
    with pytest.raises(DataError, match=r"useless: examples.judgements: no document of the corpus"):
        IndexingExamples(judgements=True).examples(useless, 1)


def test_the_tasks_of_corpus_brain_ask_by_the_documents_own_ids(t5: Path) -> None:
    first = "This is the first of ten and more words that name io.open.read here."
    corpus = [
        Document("path.Path.open", "", f"{first} Two. Three. Four is another paragraph."),
        Document("io.open.read", "", "Reads the file."),
    ]
    data = Dataset.from_memory(corpus, {}, {}, name="docs")
    source = IndexingExamples(words=0, sentences=11, paragraphs=4, mentions=3)
    made = source.examples(data.with_split(None), 1)
    assert [(each.query.text, each.documents[0].id) for each in made] == [
        (first, "path.Path.open"),
        (f"{first} Two. Three.", "path.Path.open"),
        ("Four is another paragraph.", "path.Path.open"),
        (f"{first} Two.", "io.open.read"),
        ("Reads the file.", "io.open.read"),
    ]
    encoder = DsiEncoder.from_pretrained(t5, ids="title")
    encoder.assign_ids(named(corpus))
    codes = [encoder.codes[each.documents[0].id] for each in made]
    collator = Identifiers().own_pass(encoder, seed=1, sparse=False)[1]
    labels = collator(made)["features"]["query"]["labels"]
    assert [tuple(row[row >= 0].tolist()) for row in labels[:, 0]] == codes
