"""Language models as judges and teachers: their probabilities, what is kept, what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from fake_language_models import FakeModel
from loopback import Server
from small_world import documents, write_beir
from tiny_generators import save_gpt2

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.retrieval import Dataset, Retriever
from sluice.retrieval.stages.generative.pointwise import Pointwise
from sluice.retrieval.training_data.mining import mine_negatives
from sluice.retrieval.training_data.teachers.batch_teacher import check_batch_teacher
from sluice.retrieval.training_data.teachers.judges import check_judge, open_judge
from sluice.retrieval.training_data.teachers.spec import Context, teacher_spec
from sluice.retrieval.training_data.teachers.teachers import LanguageTeacher
from sluice.training import JudgedPair
from sluice.training.negatives.false_negatives import judged

PAIRS = [JudgedPair("q", "gold", f"d{n}", text) for n, text in enumerate(["a river", "stone", ""])]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Says yes where a document has a word of the query, and nothing to one of stone."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def reply(body: dict[str, Any]) -> Any:
        text = body["messages"][0]["content"]
        document = text.partition("Document: ")[2].partition("\n")[0].split()
        query = text.partition("Query: ")[2].partition("\n")[0].split()
        said = "perhaps" if "stone" in document else "no"
        content = "yes" if {*query} & {*document} else said
        return {"choices": [{"message": {"role": "assistant", "content": content}}]}

    made = Server(reply)
    yield made
    made.close()


def spec(server: Server, **others: Any) -> dict[str, Any]:
    fast = {"retries": 0, "backoff_s": 0.01, "logprobs": False}
    return {"type": "http", "url": server.url, "model": "fake", **fast, **others}


def test_a_local_models_score_is_its_softmax_over_yes_and_no(tmp_path: Path) -> None:
    import torch
    import transformers

    folder = save_gpt2(tmp_path / "gpt2")
    prompt = "{document} in {query}"
    named = {"type": "generative", "model": str(folder), "prompt": prompt, "answers": ["gold", "a"]}
    found = judged(open_judge(named, "negatives.judge"), PAIRS)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for pair, score in zip(PAIRS, found, strict=True):
        text = prompt.format(document=pair.document, query=pair.query)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        begin = [tokenizer.cls_token_id] if tokenizer(text)["input_ids"][0] != ids[0] else []
        with torch.no_grad():
            logits = model(torch.tensor([[*begin, *ids]])).logits[0, -1].double().numpy()
        one, other = (tokenizer.convert_tokens_to_ids(word) for word in named["answers"])
        expected = 1 / (1 + np.exp(logits[other] - logits[one]))
        assert score == pytest.approx(expected, rel=1e-5)
        one_word = {**named, "style": "logit", "answers": ["gold"], "cache": str(tmp_path / "c")}
        by_logit = judged(open_judge(one_word, "negatives.judge"), [pair])
        assert by_logit == pytest.approx([logits[one]], rel=1e-5)
    with pytest.raises(ModelError, match=r"language model without modules\.json.*type: generative"):
        teacher_spec(folder).make(Context())


def test_pairs_without_an_answer_have_no_score(server: Server) -> None:
    for named in (spec(server), spec(server, style="graded", answers=["no", "yes"], grades=2)):
        scores = judged(open_judge(named, "judge"), [*PAIRS, JudgedPair("q", "gold", "x", "gold")])
        base = 1.0 if "style" in named else 0.0
        assert str(scores.tolist()) == str([base, np.nan, base, base + 1.0])
    model = FakeModel(lambda prompt: (0.0, 0.0))
    by_name = open_judge("llm", "x", scorer=lambda _: Pointwise.yes_no(model), known=["llm"])
    assert np.isnan(judged(by_name, PAIRS)).all()
    assert Pointwise.yes_no(model).score([("q", "d")]).tolist() == [0.5]  # a reranker needs one


def test_what_was_answered_is_never_asked_again(server: Server, tmp_path: Path) -> None:
    file = str(tmp_path / "answers.sqlite")
    first = judged(open_judge(spec(server, cache=file), "judge"), PAIRS)
    assert len(server.requests) == 3
    again = judged(open_judge(spec(server, cache=file), "judge"), [*PAIRS, *PAIRS])
    assert str(again.tolist()) == str([*first.tolist()] * 2)
    assert len(server.requests) == 4  # that without an answer
    judged(open_judge(spec(server, cache=file, prompt="{query} {document}"), "judge"), PAIRS)
    assert len(server.requests) == 7


def test_an_interruption_keeps_the_blocks_that_were_answered(tmp_path: Path) -> None:
    pairs = [JudgedPair("q", "gold", str(n), f"text {n}") for n in range(100)]
    killed = FakeModel(lambda prompt: (1.0, 0.0) if killed.calls < 2 else 1 / 0)
    file = str(tmp_path / "answers.sqlite")
    with pytest.raises(ZeroDivisionError):
        LanguageTeacher(Pointwise.yes_no(killed), "x", file).scores(pairs)
    model = FakeModel(lambda prompt: (1.0, 0.0))
    assert LanguageTeacher(Pointwise.yes_no(model), "x", file).scores(pairs).tolist() == [1.0] * 100
    assert len(model.asked) == 36


def test_a_judge_drops_what_it_says_is_relevant(server: Server) -> None:
    corpus = documents()
    dataset = Dataset.from_memory(corpus, {"q": "gold"}, {"q": {"d00": 1}})
    bm25 = Retriever.build(BM25Encoder(), corpus, name="bm25")
    lists = bm25.run({"q": "gold river number"})
    plain = mine_negatives(lists, dataset, {"mode": "naive", "per_query": 9}, seed=1)
    mined = mine_negatives(
        lists, dataset, {"mode": "judge", "judge": spec(server), "per_query": 9}, seed=1
    )
    words = {each.id: each.full_text.split() for each in corpus}
    assert any("gold" in words[doc] for doc in plain.negatives["q"])
    assert mined.negatives["q"]
    assert not any("gold" in words[doc] for doc in mined.negatives["q"])


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"style": "listwise"}, r"judge\.style: listwise orders lists"),
        ({"style": "pairwise"}, r"judge\.style: pairwise orders lists"),
        ({"cache": ""}, r"judge\.cache: ''; expected a file"),
        ({"cache": 3}, r"judge\.cache: 3; expected a file"),
        ({"promt": "x"}, r"judge\.promt: unknown key.*did you mean 'prompt'"),
        ({"type": "generative"}, r"judge\.url: unknown key"),
        ({"type": "htpp"}, r"judge\.type: unknown type 'htpp'"),
    ],
)
def test_what_cannot_judge_is_refused(server: Server, changes: Any, fault: str) -> None:
    named = {**spec(server), **changes}
    for check in (check_judge, lambda value, where: teacher_spec(value, where).check()):
        with pytest.raises(ConfigError, match=fault):
            check(named, "judge")
    with pytest.raises(ConfigError, match=r"http: scores single pairs"):
        check_batch_teacher(spec(server), "teacher", vectors=False)


def test_teach_distil_asks_an_endpoint(server: Server, sluice: Call, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    data = write_beir(tmp_path / "data")
    dataset = Dataset.from_memory(documents(), {}, {})
    lists = Retriever.build(BM25Encoder(), dataset.corpus, name="bm25").run({"q0": "gold river"})
    lists.save(tmp_path / "bm25.trec")
    scores = tmp_path / "scores.parquet"
    code, _, err = sluice(
        "teach", "distil", data, "--teacher", json.dumps(spec(server)), "--candidates",
        tmp_path / "bm25.trec", "--output", scores, "--depth", "5",
    )  # fmt: skip
    assert code == 0, err
    rows = pq.read_table(scores).to_pylist()
    assert len(rows) > 5
    assert {row["score"] for row in rows} == {0.0, 1.0}
    code, _, err = sluice(
        "teach", "distil", data, "--teacher", "{type: http", "--candidates",
        tmp_path / "bm25.trec", "--output", scores,
    )  # fmt: skip
    assert (code, "is not YAML" in err) == (2, True), err
