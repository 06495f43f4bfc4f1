"""Families of bi-encoders in the layout of published folders: sentence-transformers' vectors."""

import json
import logging
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from families import FAMILIES, bare_decoder, t5_whole
from five_steps import five_steps, searched
from published import modules
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models

from sluice.encoders import DenseEncoder, as_encoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import kind_of, open_encoder
from sluice.encoders.transformer.tokens import end_texts, ends_specially
from sluice.retrieval.training_data.teachers.spec import Context, teacher_spec

ROWS = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "make_models_docs.py"))["DENSE"]
TEXTS = [
    "gold in the river", "x", "a sluice is a water search for gold, stone and gold",
    "Rank the DOCUMENT by score; learn to rank. " * 8, "gold in the river",
]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folders of the families, each made when first asked for."""
    base, made = tmp_path_factory.mktemp("families"), dict[str, Path]()

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = FAMILIES[family](base / family.replace(" ", "-"))
        return made[family]

    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_a_published_folder(family: str, folders: Any, tmp_path: Path) -> None:
    folder = folders(family)
    assert kind_of(folder) == "dense"
    theirs = SentenceTransformer(str(folder), device="cpu")
    expected = {
        "query": theirs.encode_query(TEXTS, prompt_name="web_search_query")
        if "web_search_query" in theirs.prompts else theirs.encode_query(TEXTS),
        "document": theirs.encode_document(TEXTS),
    }  # fmt: skip
    if theirs.similarity_fn_name == "cosine":
        expected = {
            side: vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            for side, vectors in expected.items()
        }
    ours = as_encoder(str(folder))
    assert isinstance(ours, DenseEncoder)
    for row in ROWS:
        if row.family == family:
            assert (ours.pooling, ours.similarity) == (row.pooling, row.similarity), row.models
            assert bool(ours.prompts["query"]) or row.prompts != "own"
    for encoder in (ours, _saved_and_opened(ours, tmp_path / "ours")):
        np.testing.assert_allclose(encoder.encode_queries(TEXTS), expected["query"], atol=1e-5)
        documents = encoder.encode_documents(TEXTS)
        np.testing.assert_allclose(documents, expected["document"], atol=1e-5)
    alone = np.concatenate([ours.encode_documents([text]) for text in TEXTS[::-1]])[::-1]
    np.testing.assert_allclose(alone, expected["document"], atol=1e-5)
    back = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(back.encode_query(TEXTS), expected["query"], atol=1e-5)
    np.testing.assert_allclose(back.encode_document(TEXTS), expected["document"], atol=1e-5)
    assert len(np.unique(expected["document"].round(4), axis=0)) == len(set(TEXTS))


def _saved_and_opened(encoder: DenseEncoder, folder: Path) -> Any:
    encoder.save_pretrained(folder)
    again = open_encoder(folder, device="cpu")
    assert again.fingerprint == encoder.fingerprint
    return again


def test_what_changes_a_pass_changes_the_fingerprint(folders: Any, tmp_path: Path) -> None:
    for family, change in (
        ("T5 encoder", {"dense_act_fn": "gelu"}),
        ("T5 encoder", {"relative_attention_max_distance": 20}),
        ("Gemma 3", {"query_pre_attn_scalar": 16}),
    ):
        folder = tmp_path / f"{family} {next(iter(change))}"
        shutil.copytree(folders(family), folder)
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        one, other = (DenseEncoder.from_pretrained(f) for f in (folders(family), folder))
        assert one.fingerprint != other.fingerprint
        assert np.abs(one.encode_queries(TEXTS) - other.encode_queries(TEXTS)).max() > 1e-6


def test_a_pretrained_t5_is_its_encoder(tmp_path: Path) -> None:
    """Its decoder is left out, and what is saved is an encoder alone."""
    t5_whole(tmp_path / "m")
    with pytest.raises(ModelError, match="a language model without modules"):
        open_encoder(tmp_path / "m")
    ours = DenseEncoder.from_pretrained(tmp_path / "m", document_length=48, device="cpu")
    modules(tmp_path / "m", "mean")
    theirs = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    np.testing.assert_allclose(ours.encode_documents(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    ours.save_pretrained(tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["architectures"] == ["T5EncoderModel"]


@pytest.mark.parametrize("opened_as", [open_encoder, as_encoder, "teacher"])
def test_a_language_model_is_no_encoder_without_a_word(opened_as: Any, tmp_path: Path) -> None:
    folder = bare_decoder(tmp_path / "m")
    assert kind_of(folder) == "language_model"
    with pytest.raises(ModelError, match=r"does not say what it encodes by; .*type: generative"):
        if opened_as == "teacher":
            teacher_spec(folder).make(Context())
        else:
            opened_as(str(folder))


def test_last_token_pooling_and_the_end_of_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = bare_decoder(tmp_path / "m")
    with caplog.at_level(logging.WARNING, "sluice"):
        DenseEncoder.from_pretrained(folder, device="cpu")
    assert "see only those before them" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "sluice"):
        plain = DenseEncoder.from_pretrained(folder, pooling="last", device="cpu")
    assert "append_eos: true adds it" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "sluice"):
        ended = DenseEncoder.from_pretrained(
            folder, pooling="last", append_eos=True, document_length=8, device="cpu"
        )
        left = DenseEncoder.from_pretrained(folder, pooling="last", append_eos=False, device="cpu")
    assert not caplog.records
    end = ended.tokenizer.eos_token_id
    for side in ("query", "document"):
        bare, whole = plain.token_ids(TEXTS, side), ended.token_ids(TEXTS, side)
        most = ended.lengths[side]
        assert whole == [[*ids[: most - 1], end] for ids in bare]  # also where a text is cut
        assert left.token_ids(TEXTS, side) == bare
    by_hand = plain.encode_queries([f"{text}<|im_end|>" for text in TEXTS[:3]])
    np.testing.assert_allclose(ended.encode_queries(TEXTS[:3]), by_hand, atol=1e-5)
    assert len({each.fingerprint for each in (plain, ended)}) == 2
    for encoder, name in ((ended, "ended"), (left, "left")):
        encoder.save_pretrained(tmp_path / name)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "sluice"):
            again = open_encoder(tmp_path / name, device="cpu")
        assert not caplog.records
        assert again.fingerprint == encoder.fingerprint
        theirs = SentenceTransformer(str(tmp_path / name), device="cpu")
        documents = encoder.encode_queries(TEXTS)
        np.testing.assert_allclose(theirs.encode_query(TEXTS), documents, atol=1e-5)


def test_an_end_that_stays_is_said_and_an_unknown_word_is_none(
    bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        DenseEncoder.from_pretrained(bert, append_eos=False, device="cpu")
    assert "append_eos: false, but its tokenizer ends every text" in caplog.text
    with pytest.raises(ConfigError, match="append_eos: 'false', expected true or false"):
        DenseEncoder.from_pretrained(bert, append_eos="false", device="cpu")  # type: ignore[arg-type]
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "</s>": 1, "gold": 2}, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", eos_token="</s>"
    )
    assert not ends_specially(tokenizer)
    end_texts(tokenizer, True, tmp_path)
    assert ends_specially(tokenizer)
    assert tokenizer("gold")["input_ids"] == [2, 1]


def test_a_tokenizer_whose_settings_say_that_texts_end(folders: Any, tmp_path: Path) -> None:
    """transformers 5 does not read ``add_eos_token``; e5-mistral was trained with it."""
    shutil.copytree(folders("Mistral"), tmp_path / "m")
    path = tmp_path / "m" / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))
    ended = DenseEncoder.from_pretrained(tmp_path / "m", device="cpu")
    [ids] = ended.token_ids(["gold"], "query")
    [whole] = DenseEncoder.from_pretrained(folders("Mistral"), device="cpu").token_ids(
        ["gold"], "query"
    )
    assert ids == whole[1:]  # without the first, of which there is no word
    plain = DenseEncoder.from_pretrained(tmp_path / "m", append_eos=False, device="cpu")
    assert plain.token_ids(["gold"], "query") == [ids[:-1]]
    ended.save_pretrained(tmp_path / "ended")
    theirs = SentenceTransformer(str(tmp_path / "ended"), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), ended.encode_documents(TEXTS), atol=1e-5)


def test_a_tokenizer_without_an_end(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "m")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(bert / "tokenizer.json"), pad_token="[PAD]", model_max_length=64
    )
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.save_pretrained(tmp_path / "m")
    with pytest.raises(
        ConfigError, match=r"append_eos: true, and the tokenizer of .* no eos_token"
    ):
        DenseEncoder.from_pretrained(tmp_path / "m", pooling="last", append_eos=True)


@pytest.mark.thorough
@pytest.mark.parametrize("family", [name for name in FAMILIES if "," not in name])
def test_a_family_is_trained_and_searched(family: str, folders: Any) -> None:
    encoder = DenseEncoder.from_pretrained(folders(family), device="cpu")
    five_steps(encoder)
    searched(encoder)
