"""The closed-form head: sparse from the start, a text's own tokens first, and loadable."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.splade.mlm_head import MlmHead, build_mlm_head, install_mlm_head

VOCABULARY, WIDTH = 60, 32


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=40,
        tie_word_embeddings=False,
    )
    return BertForMaskedLM(config).eval()


@pytest.fixture(scope="module")
def sample() -> tuple[Any, Tensor, Tensor]:
    """A model, texts [120, 20] of the tokens 5 to 49, and their hidden states."""
    model = bert()
    texts = torch.randint(5, 50, (120, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = model.bert(input_ids=texts).last_hidden_state
    return model, texts, states


@pytest.fixture(scope="module")
def head(sample: tuple[Any, Tensor, Tensor]) -> MlmHead:
    model, texts, states = sample
    idf = torch.linspace(1.0, 6.0, VOCABULARY)
    return build_mlm_head(
        model.get_input_embeddings().weight.detach(),
        states.reshape(-1, WIDTH),
        texts.reshape(-1),
        idf,
        silent=[0, 1, 2],
    )


def weights(model: Any, texts: Tensor) -> Tensor:
    with torch.no_grad():
        pooled: Tensor = torch.log1p(torch.relu(model(input_ids=texts).logits)).amax(dim=1)
    return pooled


def test_own_tokens_are_active_and_carry_the_weight_asked_for(
    sample: tuple[Any, Tensor, Tensor], head: MlmHead
) -> None:
    model, texts, _ = sample
    install_mlm_head(model, head)
    found = weights(model, texts)
    own = torch.zeros_like(found).scatter_(1, texts, 1.0).bool()
    assert (found[own] > 0).float().mean() > 0.95
    assert found[own].mean() > 3 * found[~own].mean()
    wanted = 0.3 * torch.linspace(1.0, 6.0, VOCABULARY) ** 0.75
    ratio = found[own] / wanted.expand_as(found)[own]
    assert 0.7 < ratio.mean() < 1.5


def test_special_tokens_are_silent(sample: tuple[Any, Tensor, Tensor], head: MlmHead) -> None:
    model, _, _ = sample
    install_mlm_head(model, head)
    assert weights(model, torch.tensor([[0, 1, 2, 9]]))[:, :3].count_nonzero() == 0


def test_every_number_is_finite_also_for_unseen_tokens(head: MlmHead) -> None:
    assert all(
        torch.isfinite(part).all()
        for part in (head.dense, head.dense_bias, head.decoder, head.decoder_bias)
    )
    assert head.decoder[55].norm() > 0


def test_the_transform_is_a_linear_map_and_a_normalisation(
    sample: tuple[Any, Tensor, Tensor], head: MlmHead
) -> None:
    model, _, states = sample
    install_mlm_head(model, head)
    with torch.no_grad():
        found = model.cls.predictions.transform(states[0])
        linear = states[0] @ head.dense.T + head.dense_bias
        wanted = torch.nn.functional.layer_norm(linear, (WIDTH,))
    torch.testing.assert_close(found, wanted, atol=0.05, rtol=0)


def test_blocks_of_rows_make_the_head_of_the_plain_formula(
    sample: tuple[Any, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.encoders.splade.mlm_head.BLOCK", 7)
    monkeypatch.setattr("sluice.encoders.splade.mlm_head.CHUNK", 100_000)
    model, texts, states = sample
    words, hidden = model.get_input_embeddings().weight.detach(), states.reshape(-1, WIDTH)
    ids, idf = texts.reshape(-1), torch.linspace(1.0, 6.0, VOCABULARY)
    head = build_mlm_head(words, hidden, ids, idf, silent=[2], threshold=0.3, scale=0.5, power=1.0)

    h, w, own = hidden.double().numpy(), words.double().numpy(), ids.numpy()
    counts = np.bincount(own, minlength=VOCABULARY)
    seen = counts > 0
    means = np.zeros((VOCABULARY, WIDTH))
    means[seen] = [h[own == token].mean(axis=0) for token in np.flatnonzero(seen)]
    centre, rest = h.mean(axis=0), h - means[own]
    values, vectors = np.linalg.eigh(rest.T @ rest / len(h))
    whitening = vectors @ np.diag((values + 0.01 * values.mean()) ** -0.5) @ vectors.T

    def unit(x: np.ndarray) -> np.ndarray:
        x = x - x.mean(axis=1, keepdims=True)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    rows, inputs = unit((means - centre) @ whitening), unit(w - w.mean(axis=0))
    known = inputs[seen]
    gram = known.T @ known + 0.01 * seen.sum() / WIDTH * np.eye(WIDTH)
    rows[~seen] = unit(inputs @ np.linalg.solve(gram, known.T @ rows[seen]))[~seen]
    whitening /= (h @ whitening).std(axis=0, ddof=1).mean()
    near = (unit((h - centre) @ whitening) * rows[own]).sum(axis=1)
    cosine = (np.bincount(own, near, VOCABULARY) + 5 * near.mean()) / (counts + 5)
    gain = np.expm1(0.5 * idf.double().numpy()) / np.maximum(cosine - 0.3, 0.1)
    decoder, bias = gain[:, None] * rows / WIDTH**0.5, -0.3 * gain
    decoder[2], bias[2] = 0.0, -10.0
    np.testing.assert_allclose(head.decoder, decoder, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(head.decoder_bias, bias, rtol=1e-5)
    np.testing.assert_allclose(head.dense, whitening.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(head.dense_bias, 6 - centre @ whitening, rtol=1e-5)


def test_a_higher_threshold_lets_fewer_terms_in(sample: tuple[Any, Tensor, Tensor]) -> None:
    model, texts, states = sample
    active = []
    for threshold in (0.2, 0.4, 0.6):
        other = build_mlm_head(
            model.get_input_embeddings().weight.detach(),
            states.reshape(-1, WIDTH),
            texts.reshape(-1),
            torch.ones(VOCABULARY),
            threshold=threshold,
        )
        install_mlm_head(model, other)
        active.append(int(weights(model, texts[:20]).count_nonzero()))
    assert active[0] > active[1] > active[2]


def test_saved_and_loaded_again(
    sample: tuple[Any, Tensor, Tensor], head: MlmHead, tmp_path: Path
) -> None:
    from transformers import AutoModelForMaskedLM

    model, texts, _ = sample
    install_mlm_head(model, head)
    model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(weights(again, texts[:5]), weights(model, texts[:5]))


def test_tied_decoder_is_refused(head: MlmHead) -> None:
    from transformers import BertForMaskedLM

    config = copy.deepcopy(bert().config)
    config.tie_word_embeddings = True
    with pytest.raises(ModelError, match="tie_word_embeddings=False"):
        install_mlm_head(BertForMaskedLM(config), head)


def test_a_model_without_a_known_head_is_refused(head: MlmHead) -> None:
    with pytest.raises(ModelError, match="layout of its masked-language-model head"):
        install_mlm_head(bert().bert, head)


@pytest.mark.parametrize(
    ("positions", "ids", "message"),
    [(100, 99, "expected"), (10, 10, "give more texts")],
)
def test_bad_shapes(positions: int, ids: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_mlm_head(
            torch.zeros(VOCABULARY, WIDTH),
            torch.zeros(positions, WIDTH),
            torch.zeros(ids, dtype=torch.long),
            torch.zeros(VOCABULARY),
        )
