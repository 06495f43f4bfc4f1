"""One journey of every kind: check, train, index, search, evaluate, open again, change, export."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from command_line import Call
from kinds import KINDS, TABLE, Models, experiment
from small_world import SUBJECTS
from transformers import GPT2LMHeadModel

from sluice.encoders import (
    ConceptEncoder,
    CsrEncoder,
    DenseEncoder,
    ExpertEncoder,
    GaussianEncoder,
    StaticEncoder,
    TowerEncoder,
)
from sluice.encoders.dense.error_adapter import ErrorAdapter
from sluice.encoders.generative.constrained_decoding import OwnWriting
from sluice.encoders.generative.listwise import ListwiseRanker
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.rerankers.local_language_model import LocalLanguageModel
from sluice.indexing import (
    FlatIndex,
    FmIndex,
    GraphIndex,
    PseudoQueryIndex,
    TokenIndex,
    TrieIndex,
)
from sluice.retrieval import Retriever, load_pipeline
from sluice.retrieval.pipelines.rerank import Rerank

UNKNOWN = {"dsi": 4, "seal": 2}  # times of steps: nobody knows how long a model writes


@pytest.mark.parametrize("kind", KINDS)
def test_a_journey(kind: str, shell: Call, tmp_path: Path, models: Models) -> None:
    def sluice(*words: object, code: int = 0) -> str:
        returned, out, err = shell(*words)
        assert returned == code, err
        return out + err

    facts, cards, exports = (
        experiment(kind, tmp_path, models),
        *(TABLE[kind][key] for key in ("cards", "exports")),
    )
    file, output = tmp_path / "x.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    plan = sluice("config", "check", file)
    assert all(f"train {name}" in plan for name in facts["train"])
    if kind in UNKNOWN:
        assert plan.count("time unknown") == UNKNOWN[kind], plan
    sluice("run", file)
    systems = json.loads((output / "results.json").read_text())["systems"]
    assert {each["name"] for each in systems} == set(facts["pipelines"])
    for model, texts in cards.items():
        card = (output / "models" / model / "README.md").read_text()
        assert [text for text in texts if text not in card] == []
        if any("from sluice" in text for text in texts):
            assert "sentence_transformers" not in card
    last = list(facts["pipelines"])[-1]
    pipeline = load_pipeline(output, last)
    hits = pipeline.search("gold river", 5)
    assert len(hits) == (4 if kind == "listwise" else 5)
    pipeline.save(tmp_path / "saved")
    assert load_pipeline(tmp_path / "saved").search("gold river", 5) == hits
    assert hits[0].doc_id in sluice("search", output, "gold river", "--pipeline", last, "-k", 100)
    if kind != "rrra" and kind != "listwise":
        sluice("explain", output, "gold river", "--pipeline", last, "-k", 2)
    for retriever, form in exports.items():
        form, refusal = (form, "") if isinstance(form, str) else form
        target = tmp_path / f"{retriever}.{form}"
        words = ("export", output / "retrievers" / retriever, target, "--format", form)
        assert refusal in sluice(*words, code=2 if refusal else 0)
        assert bool(refusal) != target.exists()
    if kind != "grl":  # whose folder says after it was saved that it writes too
        sluice("verify", output)
    if kind in OWN:
        OWN[kind](Journey(output, sluice, facts, models))
    new = tmp_path / "new.jsonl"
    new.write_text(json.dumps({"_id": "new", "text": "gold gold stone"}) + "\n")
    sluice("add", output, new)
    for name in facts["retrievers"]:
        opened = Retriever.open(output / "retrievers" / name)
        assert len(opened) == 41
        assert opened.search("gold river", 3) or kind == "seal"  # which has not learnt to write
    sluice("delete", output, "new")
    assert len(Retriever.open(output / "retrievers" / name)) == 40


class Journey(NamedTuple):
    """What a journey has made, for what is to be seen of one kind alone."""

    output: Path
    sluice: Callable[..., str]
    facts: dict[str, Any]
    models: Models

    def model(self, name: str) -> Path:
        return self.output / "models" / name

    def retriever(self, name: str) -> Retriever:
        return Retriever.open(self.output / "retrievers" / name)

    def explained(self, pipeline: str) -> str:
        return self.sluice("explain", self.output, "gold river", "--pipeline", pipeline, "-k", 2)


def gaussian(journey: Journey) -> None:
    first, second = (
        GaussianEncoder.from_pretrained(journey.model(name)) for name in ("spread", "taught")
    )
    variances = first.gaussians(first.encode_queries(["gold", "the river"]), "query").variances
    assert np.ptp(variances) > 0.01  # they were all alike before training
    assert first.fingerprint != second.fingerprint
    assert re.search(r"spread .*\(uncertainty -\d\.\d+\)", journey.explained("both"))


def hypencoder(journey: Journey) -> None:
    results = json.loads((journey.output / "results.json").read_text())
    gathers = {each["name"]: each["gathers"] for each in results["systems"]}
    assert gathers["all"] == []
    assert gathers["walked"] == gathers["both"]
    (recall,) = gathers["walked"]
    assert 0 < recall["recall"]["10"] <= 1
    assert "on 20 queries" in recall["note"]  # of train and dev, never of test
    assert "of 40 documents scored" in recall["note"]
    walked = journey.retriever("walked")
    assert isinstance(walked.index, GraphIndex)
    queries = walked.encoder.encode_queries(["gold river", "the stone"])
    assert (walked.index.search_counted(queries, 5, budget=20).visited <= 20).all()


def csr(journey: Journey) -> None:
    assert CsrEncoder.from_pretrained(journey.model("codes")).top_k == 6
    lines = next(journey.output.rglob("metrics.jsonl")).read_text().splitlines()
    journal = [line for line in map(json.loads, lines) if "loss" in line]
    assert journal[-1]["loss"] < journal[0]["loss"]
    assert {"reconstruction", "auxiliary", "dead_latents"} <= set(journal[0])
    hits = load_pipeline(journey.output, "codes").search("gold river", 500)
    assert 0 < len(hits) <= 40
    words = ("explain", journey.output / "retrievers" / "codes", "gold river", hits[0].doc_id)
    assert hits[0].doc_id in journey.sluice(*words)


def concepts(journey: Journey) -> None:
    model = journey.model("named")
    assert ConceptEncoder.from_pretrained(model).names == SUBJECTS
    [hit] = load_pipeline(journey.output, "named").search("gold river", 1)
    words = ("explain", journey.output / "retrievers" / "named", "gold river", hit.doc_id)
    shown = journey.sluice(*words)
    assert any(name in shown for name in SUBJECTS)
    before = (model / "manifest.json").stat().st_mtime_ns
    vocabulary = journey.facts["train"]["named"]["encoder"]["vocabulary"]
    Path(vocabulary).write_text("gold\nriver\nwells\n")
    journey.sluice("run", journey.output.parent / "x.yaml")  # another list, another model
    assert (model / "manifest.json").stat().st_mtime_ns != before
    assert ConceptEncoder.from_pretrained(model).names == ("gold", "river", "wells")


def dsi(journey: Journey) -> None:
    index = journey.retriever("dsi").index
    assert isinstance(index, TrieIndex)
    assert len(index) == 40
    assert "found by dsi" in journey.explained("dsi")


def seal(journey: Journey) -> None:
    index = journey.retriever("seal").index
    assert isinstance(index, FmIndex)
    assert (index.candidates, len(index)) == (20, 40)
    assert "gold" in journey.explained("seal")


def experts(journey: Journey) -> None:
    mixed = journey.model("mixed")
    one, other = (ExpertEncoder.from_pretrained(mixed, expert=name) for name in "ab")
    first, second = (encoder.encode_queries(["gold", "the river"]) for encoder in (one, other))
    assert float(np.abs(first - second).max()) > 1e-4
    words = [each.model.embeddings.word_embeddings.weight for each in (one, other)]
    assert words[0].equal(words[1])
    assert "sentence_transformers" not in (mixed / "README.md").read_text()
    gated = ExpertEncoder.from_pretrained(journey.model("gated"))
    plain = DenseEncoder.from_pretrained(journey.models["bert"])  # all but the experts stayed
    for name, parameter in gated.model.named_parameters():
        if name not in gated.expert_parameters():
            assert parameter.equal(plain.model.get_parameter(name))


def pseudo_queries(journey: Journey) -> None:
    for name, kind in (("all", FlatIndex), ("coded", TokenIndex)):
        index = journey.retriever(name).index
        assert isinstance(index, PseudoQueryIndex)
        assert isinstance(index.held, kind)


def rrra(journey: Journey) -> None:
    trained = ErrorAdapter.load(journey.model("joint"))
    start = ErrorAdapter.load(journey.models["adapter"])
    assert trained.hidden == start.hidden == 4
    assert not np.allclose(trained.inner.bias.detach(), start.inner.bias.detach())


def towers(journey: Journey) -> None:
    encoder = journey.retriever("dense").encoder
    assert isinstance(encoder, TowerEncoder)
    one = TowerEncoder.from_pretrained(
        query={"type": "dense", "model": str(journey.models["bert"])},
        document={"type": "dense", "model": str(journey.model("one"))},
    )
    np.testing.assert_array_equal(  # the frozen tower is the model it began as
        encoder.encode_documents(["gold"]), one.encode_documents(["gold"])
    )


def static(journey: Journey) -> None:
    retriever = journey.retriever("after")
    assert isinstance(retriever.encoder, StaticEncoder)
    assert retriever.search("日本", k=3) is not None


def listwise(journey: Journey) -> None:
    hits = load_pipeline(journey.output, "full").search("gold river", 10)
    assert [hit.score for hit in hits] == [3, 2, 1, 0]
    journey.sluice("verify", journey.model("ranker"))
    opened = Rerank(str(journey.model("ranker")), 5)
    assert isinstance(opened.scorer, ListwiseRanker)
    assert opened.scorer.settings()["document_length"] == 4


def matching(journey: Journey) -> None:
    pipeline = load_pipeline(journey.output, "light")
    hits = pipeline.search("gold river", 5)
    ranker = open_encoder(journey.model("light"))
    pairs = [("gold river", f"{hit.title} {hit.text}".strip()) for hit in hits]
    assert [hit.score for hit in hits] == pytest.approx(ranker.score(pairs).tolist(), abs=1e-5)
    assert len(pipeline.search("gold river", 1000)) <= 40
    assert "read(depth=5)" in journey.explained("both")
    assert open_encoder(journey.model("pyramid")).shape.lower_layers == 1


def grl(journey: Journey) -> None:
    (curves,) = journey.output.rglob("metrics.jsonl")
    for name in ("loss_contrast", "loss_writing", "loss_agreement"):
        assert f'"{name}"' in curves.read_text("utf-8")
    model, gpt2 = journey.model("both"), journey.models["gpt2"]
    saved = DenseEncoder.from_pretrained(model)
    table = saved.model.get_input_embeddings().weight
    assert not torch.equal(table, GPT2LMHeadModel.from_pretrained(gpt2).lm_head.weight)
    texts = {
        "query": saved.tokenize(["river gold"], "query"),
        "document": saved.tokenize(["deep water"], "document"),
    }
    row = torch.zeros(1, dtype=torch.long)
    own, count = OwnWriting(saved).log_probabilities(texts, row, row)
    writer = LocalLanguageModel.from_pretrained(model).model
    ids = torch.cat([texts["query"]["input_ids"], texts["document"]["input_ids"]], dim=1)
    with torch.no_grad():
        chances = writer(input_ids=ids).logits[0].double().log_softmax(dim=1)
    start = ids.shape[1] - int(count)
    expected = sum(chances[at - 1, ids[0, at]].item() for at in range(start, ids.shape[1]))
    assert own.item() == pytest.approx(expected, rel=1e-4)
    rows, data = journey.output.parent / "q.jsonl", journey.facts["dataset"]
    options = ("--output", rows, "--documents", 2, "--length", 4)
    assert "for 2 documents" in journey.sluice("teach", "generate", model, data, *options)
    config = copy.deepcopy(journey.facts)
    del config["train"]["both"]["negatives"]
    file = journey.output.parent / "y.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    assert "grl prefers a positive to a negative" in journey.sluice("run", file, code=2)


OWN: dict[str, Callable[[Journey], None]] = {
    each.__name__: each
    for each in (
        gaussian, hypencoder, csr, concepts, dsi, seal, experts, pseudo_queries, rrra, towers,
        static, listwise, matching, grl,
    )
}  # fmt: skip
