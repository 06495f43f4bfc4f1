import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.transformer.from_scratch import (
    check_fresh,
    draw_weights,
    fresh_from_config,
    fresh_model,
    is_fresh,
)
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.training_data.example_sources import file_examples
from sluice.training.generation.inverse_cloze import Passage, body_examples, ict_examples, sentences
from sluice.training.protocol import Example

CASES = [
    ("One here. Two there! Three?", ["One here.", "Two there!", "Three?"]),
    ("Dr. Smith et al. found it. It works.", ["Dr. Smith et al. found it.", "It works."]),
    ("J. Doe and A. B. Roe agreed. So did I.", ["J. Doe and A. B. Roe agreed.", "So did I."]),
    ("See e.g. Fig. 3 for 2.5 mg. Then stop", ["See e.g. Fig. 3 for 2.5 mg.", "Then stop"]),
    ('He said "no." She left.', ['He said "no."', "She left."]),
    ("no capital. here it goes on", ["no capital. here it goes on"]),
    ("A title\n\nIts body.", ["A title", "Its body."]),
    ("Really?! Yes... Maybe.", ["Really?!", "Yes...", "Maybe."]),
    ("这是一句。这是另一句。", ["这是一句。", "这是另一句。"]),
    ("", []),
    (" \n ", []),
    ("...", ["..."]),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.text(alphabet="aB. !?\n\"')。é", max_size=60))
def test_sentences_are_the_text_up_to_white_space(text: str) -> None:
    found = sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in found)


def passages(count: int = 30) -> list[Passage]:
    return [
        Passage(
            f"d{n}", f"Title {n}", " ".join(f"Fact {m} about thing {n}." for m in range(1 + n % 5))
        )
        for n in range(count)
    ]


def texts(example: Example) -> tuple[str, str]:
    return example.query.text, example.documents[0].text


class TestCloze:
    def test_the_sentence_is_not_in_its_document(self) -> None:
        made = list(ict_examples(passages(), 1, 0, keep=0))
        assert len(made) == 24  # documents of two sentences or more
        for example in made:
            query, document = texts(example)
            assert query not in document
            assert document.startswith("Title")
            assert example.relevant == {example.documents[0].id}

    def test_kept_sentences_stay(self) -> None:
        for example in ict_examples(passages(), 1, 0, keep=1):
            assert texts(example)[0] in texts(example)[1]
        mixed = [a in b for a, b in map(texts, ict_examples(passages(2000), 1, 0, keep=0.1))]
        assert 0.06 < np.mean(mixed) < 0.14

    def test_sentences_that_stand_elsewhere_are_not_asked(self) -> None:
        repeated = "The same old words. Other words are here. The same old words."
        inside = "A river of gold runs. He said a river of gold runs. He said it again."
        titled = Passage("t", "We sell the gold here.", "We sell the gold here. Nobody buys.")
        documents = [Passage("r", "", repeated), Passage("i", "", inside), titled]
        for epoch in range(20):
            for query, document in map(texts, ict_examples(documents, 1, epoch, keep=0)):
                assert query not in document

    @settings(derandomize=True, deadline=None, max_examples=60)
    @given(
        st.lists(st.sampled_from(["a b c d.", "A b c d.", "x. a b c d.", "One two three four!"])),
        st.integers(0, 5),
    )
    def test_never_for_any_text(self, parts: list[str], epoch: int) -> None:
        passage = Passage("d", "", " ".join(parts))
        for query, document in map(
            texts, ict_examples([passage], 1, epoch, keep=0, per_document=3)
        ):
            assert query not in document
            assert document

    def test_a_function_of_seed_and_epoch(self) -> None:
        def drawn(seed: int, epoch: int) -> list[Example]:
            return list(ict_examples(passages(), seed, epoch))

        assert drawn(1, 2) == drawn(1, 2)
        assert drawn(1, 2) != drawn(1, 3) != drawn(2, 3)
        assert len({len(drawn(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 1
        backwards = list(ict_examples(passages()[::-1], 1, 2))
        assert backwards[::-1] == drawn(1, 2)  # whichever documents came before

    def test_several_sentences_of_a_document_differ(self) -> None:
        made = list(ict_examples(passages(), 1, 0, keep=0, per_document=3))
        asked = [(example.documents[0].id, example.query.text) for example in made]
        assert len(set(asked)) == len(asked) > 24

    @pytest.mark.parametrize(("options", "message"), [
        ({"keep": 1.5}, "keep: 1.5"), ({"keep": -0.1}, "keep: -0.1"),
        ({"per_document": 0}, "per_document: 0"),
    ])  # fmt: skip
    def test_bad_settings(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            list(ict_examples(passages(), 1, 0, **options))

    def test_titles_and_bodies(self) -> None:
        documents = [
            Passage("a", "A title", "First things first here. Then more."),
            Passage("b", "", "x"),
        ]
        drawn = {texts(e) for n in range(20) for e in body_examples(documents, 1, n)}
        assert drawn == {
            ("A title", "First things first here. Then more."),
            ("First things first here.", "Then more."),
        }


@pytest.fixture
def dataset() -> Dataset:
    documents = [Document(p.id, p.title, p.text) for p in passages()]
    return Dataset.from_memory(documents, {"q": "thing 4"}, {"q": {"d4": 1}}, split="train")


class TestSection:
    def test_epochs_differ(self, dataset: Dataset) -> None:
        first, again, other = (
            file_examples({"type": "ict", "keep": 0.0}, dataset, 1, epoch=epoch)
            for epoch in (0, 0, 1)
        )
        assert first == again != other
        assert len(first) == len(other) == 24

    def test_bodies_beside_and_alone(self, dataset: Dataset) -> None:
        both = file_examples({"type": "ict", "bodies": True}, dataset, 1)
        alone = file_examples({"type": "bfs"}, dataset, 1)
        assert both[24:] == alone
        assert len(file_examples({"type": "bfs", "documents": 3}, dataset, 1)) == 3

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ({"type": "ict", "keep": 2}, "keep: 2; expected a number"),
            ({"type": "ict", "documents": 0}, "ict.documents is 0"),
            ({"type": "ict", "kep": 2}, "did you mean 'keep'"),
            ({"type": "bfs", "documents": 0}, "bfs.documents is 0"),
        ],
    )
    def test_bad_settings(self, spec: dict[str, Any], message: str, dataset: Dataset) -> None:
        with pytest.raises(ConfigError, match=message):
            file_examples(spec, dataset, 1)

    def test_documents_of_one_sentence(self) -> None:
        data = Dataset.from_memory([Document("a", "", "One.")], {}, {"q": {"a": 1}}, split="train")
        with pytest.raises(DataError, match="none of 1 documents has two sentences"):
            file_examples({"type": "ict"}, data, 1)
        with pytest.raises(DataError, match="no document has a title or a second sentence"):
            file_examples({"type": "bfs"}, data, 1)


SMALL: dict[str, Any] = {"layers": 1, "hidden": 32, "heads": 2, "vocabulary": 120, "length": 32}


class TestFresh:
    TEXTS = ("gold in the river", "deep water, gold and stone", "rank the documents", "Straße é")

    def test_every_encoder_loads_it(self, tmp_path: Path) -> None:
        path = fresh_model(self.TEXTS, tmp_path / "model", **SMALL)
        vectors = DenseEncoder.from_pretrained(path).encode_queries(["GOLD river", "stone"])
        assert vectors.shape == (2, 32)
        assert np.isfinite(vectors).all()
        sparse = SpladeEncoder.from_pretrained(path).encode_documents(["gold"])
        assert sparse.shape[0] == 1
        assert CrossEncoder.from_pretrained(path).score([("gold", "river")]).shape == (1,)
        names = {file.name for file in path.iterdir()}
        assert "model.safetensors" in names
        assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in names)

    def test_the_same_model_each_time(self, tmp_path: Path) -> None:
        def made(name: str, seed: int) -> dict[str, str]:
            path = fresh_model(self.TEXTS, tmp_path / name, seed=seed, **SMALL)
            return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in path.iterdir()}

        assert made("a", 1) == made("b", 1)
        other = made("c", 2)
        assert other["model.safetensors"] != made("a", 1)["model.safetensors"]
        assert other["tokenizer.json"] == made("a", 1)["tokenizer.json"]

    def test_the_random_state_stays(self, tmp_path: Path) -> None:
        import torch

        state = torch.get_rng_state()
        fresh_model(self.TEXTS, tmp_path / "model", **SMALL)
        assert torch.equal(state, torch.get_rng_state())

    def test_weights_are_drawn_anew_by_the_seed(self, tmp_path: Path) -> None:
        import torch

        path = fresh_model(self.TEXTS, tmp_path / "model", **SMALL)
        state = torch.get_rng_state()
        vectors = []
        for seed in (None, 1, 1, 2):
            encoder = DenseEncoder.from_pretrained(path)
            before = encoder.fingerprint
            if seed is not None:
                draw_weights(encoder.model, seed)
                assert encoder.fingerprint != before
            vectors.append(encoder.encode_queries(["stone and river"]))
        assert torch.equal(state, torch.get_rng_state())
        assert np.array_equal(vectors[1], vectors[2])
        assert not np.allclose(vectors[0], vectors[1])
        assert not np.allclose(vectors[2], vectors[3])

    def test_pieces_are_the_texts_own(self, tmp_path: Path) -> None:
        path = fresh_model(["stone stones stoned"] * 5, tmp_path / "model", **SMALL)
        tokenizer = DenseEncoder.from_pretrained(path).tokenizer
        assert tokenizer.tokenize("Stone") == ["stone"]
        assert tokenizer.unk_token not in tokenizer.tokenize("nest")
        assert tokenizer.decode(tokenizer("stone")["input_ids"]) == "[CLS] stone [SEP]"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"layers": 0}, "layers is 0"),
            ({"hidden": 30, "heads": 4}, "hidden: 30, expected a multiple of heads: 4"),
            ({"vocabulary": 5}, "vocabulary is 5"),
        ],
    )
    def test_bad_sizes(self, options: dict[str, Any], message: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=message):
            fresh_model(self.TEXTS, tmp_path / "model", **{**SMALL, **options})
        assert not (tmp_path / "model").exists()

    def test_no_texts(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="no texts"):
            fresh_model(["", " "], tmp_path / "model", **SMALL)

    def test_from_a_config(self, tmp_path: Path) -> None:
        spec = {"type": "dense", "pooling": "cls", "start": {"type": "fresh", **SMALL}}
        assert is_fresh(spec["start"])
        assert not is_fresh(True)
        made = fresh_from_config(spec, self.TEXTS, tmp_path / "f", where="encoder", seed=3)
        assert made == {"type": "dense", "pooling": "cls", "model": str(tmp_path / "f")}
        assert DenseEncoder.from_pretrained(made["model"]).pooling == "mean"
        with pytest.raises(ConfigError, match=r"encoder.start.layer: .*did you mean 'layers'"):
            check_fresh({"start": {"type": "fresh", "layer": 2}}, "encoder")
        with pytest.raises(ConfigError, match=r"encoder.model: 'x' beside start"):
            check_fresh({"start": {"type": "fresh"}, "model": "x"}, "encoder")
