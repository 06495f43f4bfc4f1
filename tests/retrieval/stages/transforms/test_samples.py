"""HyDE with several drafts of a prompt: drawn, cached, counted, and their mean."""

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_language_models import Echo
from loopback import Server
from small_world import WordEncoder, documents
from tiny_generators import save_gpt2

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.rerankers.language_model import Prompt, Template
from sluice.encoders.rerankers.local_language_model import LocalLanguageModel
from sluice.indexing import FlatIndex
from sluice.retrieval import Retriever
from sluice.retrieval.stages.generative.http_language_model import HttpLanguageModel
from sluice.retrieval.stages.transforms.drafts import hyde
from sluice.retrieval.stages.transforms.writer import Draw, Limits, Writer, estimated

DRAFTS = ("gold river", "stone stone water", "index of rank")


class Drawing(Echo):
    """Writes the draft of the draw's number."""

    def drawn(self, prompts: Any, max_new_tokens: int, temperature: float, seed: int) -> list[str]:
        self.asked += [f"{prompt.text} {temperature} {seed}" for prompt in prompts]
        return [DRAFTS[seed] for _ in prompts]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> LocalLanguageModel:
    return LocalLanguageModel.from_pretrained(save_gpt2(tmp_path_factory.mktemp("gpt2")))


def prompts(*texts: str) -> list[Prompt]:
    template = Template("Write of {query}.", ["query"])
    return [template.fill({"query": text}) for text in texts]


def test_the_mean_of_query_and_drafts_is_searched_for() -> None:
    encoder = WordEncoder()
    cosine = Retriever.build(encoder, documents(), index=FlatIndex("cosine"), name="cosine")
    stage = hyde(cosine, Drawing(), samples=3, temperature=0.9, query_weight=0.5)
    found = {doc: float(score) for doc, score in stage.run({"q": "sluice"}, None, 40)["q"]}
    vectors = encoder.encode_documents(["sluice", *DRAFTS]).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    mean = (0.5 * vectors[0] + vectors[1:].sum(axis=0)) / 3.5  # equation 8, N = 3
    texts = encoder.encode_documents([each.full_text for each in documents()]).astype(np.float64)
    scores = texts @ mean / np.linalg.norm(texts, axis=1) / np.linalg.norm(mean)
    expected = {each.id: score for each, score in zip(documents(), scores, strict=True)}
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_each_draw_is_paid_for_once(bm25: Retriever, tmp_path: Path) -> None:
    file = str(tmp_path / "answers.sqlite")
    writer = Drawing()
    stage = hyde(bm25, writer, prompt="Of {query}", samples=2, cache=file)
    first = stage.run({"q": "gold"})
    assert writer.asked == ["Of gold 0.7 0", "Of gold 0.7 1"]
    again = hyde(bm25, writer, prompt="Of {query}", samples=3, cache=file)
    again.run({"q": "gold"})
    assert writer.asked[2:] == ["Of gold 0.7 2"]
    other = hyde(bm25, writer, prompt="Of {query}", samples=2, temperature=1, cache=file)
    other.run({"q": "gold"})
    assert writer.asked[3:] == ["Of gold 1.0 0", "Of gold 1.0 1"]
    hyde(bm25, writer, prompt="Of {query}", cache=file).run({"q": "gold"})
    assert writer.asked[5:] == ["Of gold"]  # the likeliest answer is another
    same = hyde(bm25, Drawing(), prompt="Of {query}", samples=2, cache=file, budget=0)
    assert dict(same.run({"q": "gold"})) == dict(first)


def test_all_draws_share_the_budget(bm25: Retriever, caplog: Any) -> None:
    writer = Drawing()
    each = estimated("Of gold") + 8
    stage = hyde(bm25, writer, prompt="Of {query}", samples=3, tokens=8, budget=2 * each)
    with caplog.at_level(logging.WARNING):
        found = stage.search("gold")
    assert len(writer.asked) == 2
    assert "hyde: without an answer: 1 of 1 prompt" in caplog.text
    assert found == hyde(bm25, Drawing(), prompt="Of {query}", samples=2).search("gold")


def test_endpoints_are_asked_with_temperature_and_seed(
    bm25: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def reply(body: dict[str, Any]) -> Any:
        content = DRAFTS[body.get("seed", 0)]
        return {"choices": [{"message": {"role": "assistant", "content": content}}]}

    server = Server(reply)
    model = HttpLanguageModel(server.url, "fake", retries=0)
    hyde(bm25, model, samples=3).search("gold")
    told = [(each["temperature"], each["seed"]) for each in server.requests]
    assert told == [(0.7, 0), (0.7, 1), (0.7, 2)]
    hyde(bm25, model).search("gold")
    assert server.requests[-1]["temperature"] == 0
    assert "seed" not in server.requests[-1]
    server.close()


@pytest.mark.parametrize("body", [{"seed": 3}, {"temperature": 0}])
def test_a_body_that_makes_all_draws_alike_is_refused(
    bm25: Retriever, body: dict[str, int]
) -> None:
    model = HttpLanguageModel("http://127.0.0.1:9", "fake", body=body)
    (name,) = body
    with pytest.raises(ConfigError, match=rf"hyde: samples are drawn with a {name} each, .*body"):
        hyde(bm25, model, samples=2).search("gold")


def test_a_local_model_draws_by_its_probabilities(gpt2: LocalLanguageModel) -> None:
    """Against softmax(logits / T) in float64 over logits of transformers, a token at a time."""
    made = prompts("gold river", "a stone in the water", "vector")
    temperature, seed, most = 1.5, 4, 5
    (before,) = gpt2.prompt_tokens(made[:1], most)
    (text,) = gpt2.drawn(made[:1], most, temperature, seed)
    digest = hashlib.sha256(f"{seed}:{made[0].text}".encode()).digest()
    chance = np.random.default_rng(int.from_bytes(digest[:16], "little"))
    ids = before.tolist()
    for _ in range(most):
        with torch.no_grad():
            logits = gpt2.model(torch.tensor([ids])).logits[0, -1].double().numpy()
        shares = np.exp((logits - logits.max()) / temperature)
        ids.append(int(np.searchsorted(np.cumsum(shares / shares.sum()), chance.random(), "right")))
        if ids[-1] == gpt2.tokenizer.sep_token_id:
            break
    expected = gpt2.tokenizer.decode(ids[len(before) :], skip_special_tokens=True).strip()
    assert text == expected
    together = gpt2.drawn(made, most, temperature, seed)
    assert together == [gpt2.drawn([each], most, temperature, seed)[0] for each in made]
    assert len({gpt2.drawn(made[:1], most, 2.0, number)[0] for number in range(6)}) > 2
    assert gpt2.drawn(made, most, 1e-6, seed) == gpt2.completions(made, most)


def test_settings_that_draw_nothing_are_refused(bm25: Retriever) -> None:
    for options, fault in (
        ({"samples": 0}, r"hyde: samples is 0"),
        ({"samples": 101}, r"hyde: samples is 101"),
        ({"temperature": 0.5}, r"hyde: temperature is for several samples; set samples"),
        ({"samples": 2, "temperature": 0}, r"temperature 0 draws 2 answers alike"),
        ({"samples": 2, "temperature": 3}, r"hyde: temperature is 3"),
    ):
        with pytest.raises(ConfigError, match=fault):
            hyde(bm25, Drawing(), **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"hyde: Echo writes one answer to a prompt"):
        hyde(bm25, Echo(), samples=2).search("gold")
    writer = Writer(Drawing(), Limits(), "hyde")
    assert writer.write(prompts("a"), draw=Draw(0.7, 1)) == [DRAFTS[1]]
