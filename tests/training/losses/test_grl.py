"""GRL: its parts by independent formulas, who gets gradients, and the folder that it leaves."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import bare_decoder
from tiny_generators import save_gpt2
from tiny_models import save_tokenizer
from torch import Tensor

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.generative.constrained_decoding import OwnWriting
from sluice.encoders.towers import TowerEncoder
from sluice.encoders.transformer.decoder_attention import causal_attention
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.loop.large_batches import cached_backward
from sluice.training.losses import LOSSES
from sluice.training.losses.composed.matryoshka import sliced
from sluice.training.losses.own.grl import GRL, agreement, preference
from sluice.training.losses.own.multi_similarity import mined
from sluice.training.protocol import Example, Text

QUERIES = ["river gold", "dense vector", "score document"]
# Of each query a positive and a negative; of the last only a positive.
DOCUMENTS = [
    "gold in the river and stone", "deep water", "learn to rank dense and sparse vector",
    "the sluice", "rank the document by score",
]  # fmt: skip
POSITIVES, OWNERS = [0, 2, 4], [0, 0, 1, 1, 2]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return save_gpt2(tmp_path_factory.mktemp("models") / "gpt2", initializer_range=0.3, **settings)


def opened(gpt2: Path) -> DenseEncoder:
    return DenseEncoder.from_pretrained(gpt2, attention="bidirectional")


def batch_of(encoder: DenseEncoder) -> VectorBatch:
    sides = {"query": encoder.tokenize(QUERIES, "query"),
             "document": encoder.tokenize(DOCUMENTS, "document")}  # fmt: skip
    vectors = {side: encoder.embed(each, side) for side, each in sides.items()}  # type: ignore[arg-type]
    labels = torch.zeros(3, 5)
    labels[range(3), POSITIVES] = 1.0
    return VectorBatch(
        vectors["query"], vectors["document"], labels=labels,
        mask=torch.ones(3, 5, dtype=torch.bool), positives=torch.tensor(POSITIVES),
        owners=torch.tensor(OWNERS), cosine=True, features=sides,
    )  # fmt: skip


def softmax(values: Any) -> Any:
    raised = np.exp(values - np.max(values))
    return raised / raised.sum()


def written(encoder: DenseEncoder, gpt2: Path, query: str, document: str) -> tuple[float, int]:
    """Of a plain causal model of the same weights, one text at a time, in float64."""
    import transformers

    model = transformers.GPT2LMHeadModel.from_pretrained(gpt2).double().eval()
    read = encoder.tokenize([query], "query")["input_ids"][0].tolist()
    text = encoder.tokenize([document], "document")["input_ids"][0].tolist()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*read, *text]])).logits[0].numpy()
    chances = [softmax(row) for row in logits[len(read) - 1 : -1]]
    return float(sum(np.log(c[t]) for c, t in zip(chances, text, strict=True))), len(text)


def test_the_value_is_the_sum_of_its_parts(gpt2: Path) -> None:
    encoder = opened(gpt2)
    batch = batch_of(encoder)
    q, d = (
        side.detach().double().numpy() / np.linalg.norm(side.detach().double(), axis=1)[:, None]
        for side in (batch.queries, batch.documents)
    )
    cosines = q @ d.T
    gaps = np.array([[-np.linalg.norm(one - other) for other in d] for one in q])
    pairs = [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4)]
    sums = {p: written(encoder, gpt2, QUERIES[p[0]], DOCUMENTS[p[1]]) for p in pairs}

    def contrast(scores: Any) -> float:
        return float(np.mean([-np.log(softmax(s / 0.05)[p]) for s, p in zip(scores, POSITIVES)]))  # noqa: B905

    gains = [sums[0, 0][0] - sums[0, 1][0], sums[1, 2][0] - sums[1, 3][0]]
    preferred = float(np.mean([np.log1p(np.exp(-0.2 * gain)) for gain in gains]))
    apart = []
    for n, own in ((0, [0, 1]), (1, [2, 3])):
        teacher = softmax(np.array([sums[n, c][0] / sums[n, c][1] for c in own]))
        student = softmax(cosines[n, own] / 0.05)
        apart.append(float((teacher * np.log(teacher / student)).sum()))
    taught = -sum(sums[n, c][0] for n, c in ((0, 0), (1, 2), (2, 4)))
    taught /= sum(sums[n, c][1] for n, c in ((0, 0), (1, 2), (2, 4)))
    expected = {
        GRL(beta=0.2): contrast(gaps) + preferred + float(np.mean(apart)),
        GRL(distance="cosine", writing_weight=0, agreement_weight=2.0):
            contrast(cosines) + 2 * float(np.mean(apart)),
        GRL(writing="supervised", writing_weight=0.5): contrast(gaps) + 0.5 * taught,
    }  # fmt: skip
    for loss, value in expected.items():
        loss.bind(encoder, 1)
        assert loss.over(batch).item() == pytest.approx(value, rel=1e-4), loss
    assert set(loss.notes()) == {"loss_contrast", "loss_writing"}


@pytest.mark.parametrize("writing", ["preference", "supervised"])
def test_inside_matryoshka_a_batch_is_written_once(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch, writing: Any
) -> None:
    encoder, dims = opened(gpt2), [16, 8, 4]
    written_for: list[int] = []
    whole = OwnWriting.log_probabilities

    def counted(self: OwnWriting, features: Any, queries: Tensor, *rest: Any, **more: Any) -> Any:
        written_for.append(len(queries))
        return whole(self, features, queries, *rest, **more)

    monkeypatch.setattr(OwnWriting, "log_probabilities", counted)
    alone = GRL(writing=writing)
    alone.bind(encoder, 1)
    parts = [alone.over(sliced(batch_of(encoder), dim)) for dim in dims]
    expected = torch.autograd.grad(sum(parts), encoder.model.wte.weight)[0]
    assert len(written_for) == 3
    written_for.clear()
    grl = {"type": "grl", "writing": writing}
    inside = build({"type": "matryoshka", "dims": dims, "loss": grl}, LOSSES, where="loss")
    inside.bind(encoder, 1)
    batch = batch_of(encoder)
    value = inside.over(batch)
    assert len(written_for) == 1
    assert value.item() == pytest.approx(sum(each.item() for each in parts), rel=1e-4)
    found = torch.autograd.grad(value, encoder.model.wte.weight)[0]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        inside.over(batch)
    assert len(written_for) == 2  # without gradients it is another result


def test_texts_that_do_not_fit_are_cut(gpt2: Path) -> None:
    encoder = opened(gpt2)  # which reads 64 tokens
    features = {
        side: encoder.tokenize(["gold river " * 40], side) for side in ("query", "document")
    }
    row = torch.zeros(1, dtype=torch.long)
    sums, lengths = OwnWriting(encoder).log_probabilities(features, row, row)
    assert lengths.tolist() == [32]
    assert bool(sums.isfinite().all())


def test_the_divergence_of_equal_softmaxes_is_zero() -> None:
    logits = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, float("nan")]], dtype=torch.float64)
    same = logits + torch.tensor([[3.0], [-2.0]])  # a softmax does not see a constant
    assert agreement(logits, same).item() == pytest.approx(0.0, abs=1e-12)
    assert agreement(logits, same * 2).item() > 0.01
    even = torch.zeros(4, dtype=torch.float64)
    assert preference(even, even, 0.1).item() == pytest.approx(np.log(2))


def gradients(encoder: DenseEncoder, value: Tensor) -> dict[str, Tensor]:
    encoder.module.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    return {
        name: each.grad.clone()
        for name, each in encoder.module.named_parameters()
        if each.grad is not None
    }


def test_nothing_is_learnt_to_write_by_the_divergence(gpt2: Path) -> None:
    """Its gradient is that of a divergence from numbers; the preference's reaches the network."""
    scores = torch.randn(2, 3, requires_grad=True)
    logits = torch.randn(2, 3, requires_grad=True)
    agreement(logits, scores).backward()
    assert scores.grad is None
    assert logits.grad is not None
    encoder = opened(gpt2)
    loss = GRL(writing_weight=0)
    loss.bind(encoder, 1)
    own = gradients(encoder, loss.over(batch_of(encoder)))
    writer: Any = loss._own
    plain = writer.log_probabilities

    def constant(*arguments: Any, **more: Any) -> tuple[Tensor, Tensor]:
        sums, lengths = plain(*arguments)
        return sums.detach(), lengths

    writer.log_probabilities = constant
    fixed = gradients(encoder, loss.over(batch_of(encoder)))
    assert own.keys() == fixed.keys()
    for name, gradient in own.items():
        assert torch.equal(gradient, fixed[name]), name
    other = GRL(agreement_weight=0)
    other.bind(encoder, 1)
    moved = gradients(encoder, other.over(batch_of(encoder)))
    assert any(not torch.allclose(moved[name], fixed[name]) for name in fixed)


def test_writing_and_encoding_differ_in_the_mask_alone(gpt2: Path) -> None:
    import transformers

    encoder = opened(gpt2)
    model: Any = encoder.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = encoder.tokenize(DOCUMENTS[:1], "document")["input_ids"]
    causal = transformers.GPT2Model.from_pretrained(gpt2).eval()
    with torch.no_grad():
        both = model(input_ids=ids).last_hidden_state
        with causal_attention(model):
            left = model(input_ids=ids).last_hidden_state
        torch.testing.assert_close(left, causal(input_ids=ids).last_hidden_state)
        assert torch.equal(model(input_ids=ids).last_hidden_state, both)
    assert not torch.allclose(both, left, atol=1e-3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"writing": "supervised", "agreement_weight": 1.0}, "grl.agreement_weight: compares"),
        ({"writing": "supervised", "beta": 1.0}, "grl.beta: compares"),
        ({"writing_weight": 0, "agreement_weight": 0}, "take loss: info_nce"),
        ({"writing_weight": 0, "beta": 0.2}, "grl.beta: is of the writing"),
        ({"writing_weight": -1}, "grl.writing_weight: -1"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GRL(**settings)


def test_what_cannot_be_trained(gpt2: Path, bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="grl: BertModel"):
        GRL().bind(DenseEncoder.from_pretrained(bert), 1)
    apart = save_gpt2(tmp_path / "apart", tie_word_embeddings=False)
    opened(apart).save_pretrained(tmp_path / "bare")  # an encoder alone
    with pytest.raises(ConfigError, match=r"has weights of its own \(lm_head.weight\), and .*bare"):
        GRL().bind(opened(tmp_path / "bare"), 1)
    alone = [Example(Text("q", "gold"), (Text("d", "river"),))]
    with pytest.raises(DataError, match="none of 1 examples has a negative"):
        GRL().bind_examples(alone)
    GRL(writing="supervised").bind_examples(alone)
    towers = TowerEncoder(opened(gpt2), opened(gpt2))
    with pytest.raises(ConfigError, match="one dense encoder, whose network writes, not TowerE"):
        GRL().bind(towers, 1)


LAYOUTS = {
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "Llama": {},
    "Mistral": {},
    "Phi": {},  # the head has a bias
}


def untied(folder: Path, family: str) -> Path:
    """A language model of a published layout, drawn at random, whose head is a matrix apart."""
    import transformers

    size = save_tokenizer(folder)
    torch.manual_seed(3)
    shape = LAYOUTS[family] or {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    config = getattr(transformers, f"{family}Config")(
        vocab_size=size, tie_word_embeddings=False, initializer_range=0.3, pad_token_id=0,
        eos_token_id=2, bos_token_id=2, attention_dropout=0.0, **shape,
    )  # fmt: skip
    kind = {"GPT2": "GPT2LMHeadModel"}.get(family, f"{family}ForCausalLM")
    getattr(transformers, kind)(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", LAYOUTS)
def test_a_head_of_its_own_writes_learns_and_is_kept(family: str, tmp_path: Path) -> None:
    import transformers

    folder = untied(tmp_path / "model", family)
    encoder = opened(folder)
    loss = GRL(writing="supervised")
    loss.bind(encoder, 1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).double().eval()

    def cross_entropy(model: Any) -> float:
        total, count = 0.0, 0
        for query, document in ((0, 0), (1, 2), (2, 4)):
            read = encoder.tokenize([QUERIES[query]], "query")["input_ids"][0].tolist()
            text = encoder.tokenize([DOCUMENTS[document]], "document")["input_ids"][0].tolist()
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*read, *text]])).logits[0].numpy()
            chances = [softmax(row) for row in logits[len(read) - 1 : -1]]
            total -= sum(np.log(c[t]) for c, t in zip(chances, text, strict=True))
            count += len(text)
        return total / count

    value = loss.over(batch_of(encoder))
    assert loss.notes()["loss_writing"] == pytest.approx(cross_entropy(model), rel=1e-4)
    value.backward()
    head = list(loss.parameters())
    assert [each.grad is not None and bool(each.grad.any()) for each in head] == [True] * len(head)
    assert len(head) == 1 + (family == "Phi")
    with torch.no_grad():
        head[0].add_(0.1)
    kept = {name: each.clone() for name, each in loss.state().items()}
    encoder.save_pretrained(tmp_path / "trained")
    loss.save(tmp_path / "trained")
    again = GRL()
    again.bind(opened(tmp_path / "trained"), 1)
    assert all(torch.equal(each, kept[name]) for name, each in again.state().items())
    assert again.state().keys() == kept.keys() != set()
    trained = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "trained", is_causal=True
    )
    other = trained.double().eval()
    loss.over(batch_of(opened(tmp_path / "trained")))
    assert loss.notes()["loss_writing"] == pytest.approx(cross_entropy(other), rel=1e-4)
    encoder.save_pretrained(tmp_path / "shards")  # a second time, over shards
    loss.save(tmp_path / "shards")
    loss.save(tmp_path / "shards")
    third = GRL()
    third.bind(opened(tmp_path / "shards"), 1)
    assert all(torch.equal(each, kept[name]) for name, each in third.state().items())
    fresh = GRL()
    fresh.bind(opened(folder), 1)
    fresh.restore(kept)
    assert all(torch.equal(each, kept[name]) for name, each in fresh.state().items())
    frozen = opened(folder)
    frozen.model.requires_grad_(False)
    fresh.bind(frozen, 1)
    assert list(fresh.parameters()) == []


@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_the_gradient_a_few_texts_at_a_time_is_the_whole_batch_s(
    family: str, tmp_path: Path
) -> None:
    """With gradient_cache: the vectors from chunks, and the writing run again by chunks."""
    folder = untied(tmp_path / "model", family)
    gradients, values = [], []
    for size in (None, 2):
        encoder = opened(folder)
        loss = GRL()
        loss.bind(encoder, 1)
        whole = batch_of(encoder)

        def value_of(vectors: Any, whole: Any = whole, size: Any = size, loss: Any = loss) -> Any:
            made = whole.with_vectors(vectors["query"], vectors["document"], chunk=size)
            return loss.over(made)

        if size is None:
            value = value_of({"query": whole.queries, "document": whole.documents})
            value.backward()
        else:
            value = cached_backward(
                lambda sides, encoder=encoder: {
                    side: encoder.embed(each, side) for side, each in sides.items()
                },
                whole.features, size, value_of, arithmetic=nullcontext,
            )  # fmt: skip
        values.append(value.item())
        own = {**dict(encoder.model.named_parameters()), "head": next(iter(loss.parameters()))}
        gradients.append({name: each.grad for name, each in own.items()})
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    for name, gradient in gradients[0].items():
        if gradient is not None:
            torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-5)


def test_beside_codes_the_head_has_those_of_the_words(tmp_path: Path) -> None:
    encoder = DenseEncoder.from_pretrained(
        bare_decoder(tmp_path / "m"), attention="bidirectional", weights="int8", device="cpu"
    )
    sides = {"query": encoder.tokenize(QUERIES[:1], "query"),
             "document": encoder.tokenize(DOCUMENTS[:1], "document")}  # fmt: skip
    row = torch.zeros(1, dtype=torch.long)
    value, count = OwnWriting(encoder).log_probabilities(sides, row, row)
    encoder.save_pretrained(tmp_path / "saved")  # what the codes stand for
    plain = DenseEncoder.from_pretrained(tmp_path / "saved", weights="float32", device="cpu")
    expected, _ = OwnWriting(plain).log_probabilities(sides, row, row)
    assert int(count) > 1
    assert value.item() == pytest.approx(expected.item(), rel=1e-4)


def test_mining_leaves_out_what_says_nothing(gpt2: Path) -> None:
    encoder = opened(gpt2)
    batch = batch_of(encoder)
    loss, plain = GRL(mining=0.05, writing="supervised"), GRL(writing="supervised")
    for each in (loss, plain):
        each.bind(encoder, 1)
        each.over(batch)
    q, d = (torch.nn.functional.normalize(v, dim=1) for v in (batch.queries, batch.documents))
    taking = mined(q @ d.T, batch.labels, batch.mask, 0.05)
    assert 0 < int(taking.sum()) < taking.numel()
    expected = GRL(writing="supervised")
    expected.bind(encoder, 1)
    expected.over(replace(batch, mask=taking))
    assert loss.notes()["loss_contrast"] == expected.notes()["loss_contrast"]
    assert loss.notes()["loss_contrast"] != plain.notes()["loss_contrast"]
