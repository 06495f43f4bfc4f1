from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_architectures import save_architecture
from tiny_models import save_model, save_tokenizer

from sluice.encoders.foundation.errors import ModelError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.retrievers.quality.perplexity import Perplexity

TEXTS = ["the river of gold and stone", "gold", "", "water in the sluice " * 40]
DOCUMENTS = [Document(str(number), "", text) for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    folder = tmp_path_factory.mktemp("causal")
    config = transformers.GPT2Config(
        vocab_size=save_tokenizer(folder), n_embd=32, n_layer=2, n_head=4, n_positions=64,
        initializer_range=0.2, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    torch.manual_seed(7)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def tokens_of(scorer: Perplexity, text: str) -> tuple[list[int], Any]:
    found = scorer._tokenizer(text, truncation=True, max_length=scorer._length)["input_ids"]
    return found, scorer._model


@torch.no_grad()
def test_causal_is_the_mean_log_probability(causal: Path) -> None:
    scorer = Perplexity.from_pretrained(causal, batch=2)
    found = scorer.quality(DOCUMENTS)
    for place in (0, 1, 3):
        ids, model = tokens_of(scorer, TEXTS[place])
        logs = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        expected = np.mean([float(logs[n, ids[n + 1]]) for n in range(len(ids) - 1)])
        assert found[place] == pytest.approx(expected, rel=1e-4)
    assert found[2] == -1e4


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["Bert", "Roberta"])
def test_masked_hides_one_token_at_a_time(tmp_path: Path, architecture: str) -> None:
    save_architecture(tmp_path, architecture, "splade")
    scorer = Perplexity.from_pretrained(tmp_path, batch=3, positions=100)
    found = scorer.quality(DOCUMENTS[:3])
    for place in (0, 1):
        ids, model = tokens_of(scorer, TEXTS[place])
        logs = []
        for hidden in range(1, len(ids) - 1):
            shown = [4 if n == hidden else token for n, token in enumerate(ids)]
            logits = model(torch.tensor([shown])).logits[0, hidden].double()
            logs.append(float(torch.log_softmax(logits, -1)[ids[hidden]]))
        assert found[place] == pytest.approx(np.mean(logs), rel=1e-4)
    assert found[2] == -1e4


def test_positions_are_spread(tmp_path: Path) -> None:
    scorer = Perplexity.from_pretrained(save_model(tmp_path, "ForMaskedLM"), positions=4)
    assert scorer._spread(3) == [0, 1, 2]
    assert scorer._spread(8) == [1, 3, 5, 7]
    assert scorer._spread(0) == []
    assert np.isfinite(scorer.quality(DOCUMENTS)).all()
    assert scorer.facts["length"] == 64  # all that the model has room for


def test_batches_change_nothing(causal: Path) -> None:
    one = Perplexity.from_pretrained(causal, batch=1).quality(DOCUMENTS)
    four = Perplexity.from_pretrained(causal, batch=4).quality(DOCUMENTS)
    np.testing.assert_allclose(one, four, rtol=1e-4)


def test_models_that_predict_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="BertModel predicts no tokens"):
        Perplexity.from_pretrained(save_model(tmp_path, "Model"))
