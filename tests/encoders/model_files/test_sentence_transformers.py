"""What sentence-transformers' folders may say and we must do alike, or refuse."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tiny_models import save_model

from sluice.encoders import CrossEncoder, DenseEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import kind_of
from sluice.encoders.splade.folder import has_mlm_head


@pytest.fixture
def dense(bert: Path, tmp_path: Path) -> Path:
    DenseEncoder.from_pretrained(bert, projection=8).save_pretrained(tmp_path / "dense")
    (tmp_path / "dense" / "sluice.json").unlink()
    return tmp_path / "dense"


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def theirs(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def test_modules_in_another_order_are_refused(dense: Path) -> None:
    path = dense / "modules.json"
    transformer, pooling, projection, normalize = json.loads(path.read_text())
    for order in (
        [transformer, normalize],
        [pooling, transformer],
        [transformer, projection, pooling],
    ):
        path.write_text(json.dumps(order))
        with pytest.raises(ModelError, match=r"modules\.json.*expected Transformer, Pooling"):
            DenseEncoder.from_pretrained(dense)


def test_the_old_layout_keeps_the_transformer_in_a_subfolder(dense: Path, texts: list[str]) -> None:
    change(dense / "sentence_bert_config.json", max_seq_length=7)
    expected = theirs(dense).encode(texts)
    (dense / "0_Transformer").mkdir()
    for name in ("config.json", "model.safetensors", "sentence_bert_config.json"):
        (dense / name).rename(dense / "0_Transformer" / name)
    for path in [*dense.glob("token*.json"), dense / "vocab.txt"]:
        if path.exists():
            path.rename(dense / "0_Transformer" / path.name)
    modules = json.loads((dense / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (dense / "modules.json").write_text(json.dumps(modules))
    assert kind_of(dense) == "dense"
    assert not has_mlm_head(dense)
    ours = DenseEncoder.from_pretrained(dense)
    assert ours.lengths == {"query": 7, "document": 7}
    np.testing.assert_allclose(ours.encode_queries(texts), expected, atol=1e-6)


def test_texts_are_lowered_where_the_folder_says_so(
    dense: Path, bert: Path, tmp_path: Path
) -> None:
    texts = ["Gold in the RIVER", "gold in the river"]
    vocabulary = str(bert / "vocab.txt")
    cased = transformers.BertTokenizer(vocabulary, do_lower_case=False, model_max_length=64)
    cased.save_pretrained(dense)
    assert len(np.unique(DenseEncoder.from_pretrained(dense).encode_queries(texts), axis=0)) == 2
    change(dense / "sentence_bert_config.json", do_lower_case=True)
    ours = DenseEncoder.from_pretrained(dense)
    vectors = ours.encode_queries(texts)
    np.testing.assert_array_equal(vectors[0], vectors[1])
    np.testing.assert_allclose(vectors, theirs(dense).encode(texts), atol=1e-6)
    ours.save_pretrained(tmp_path / "again")
    again = DenseEncoder.from_pretrained(tmp_path / "again")
    np.testing.assert_array_equal(again.encode_queries(texts), vectors)
    np.testing.assert_allclose(theirs(tmp_path / "again").encode(texts), vectors, atol=1e-6)
    assert again.fingerprint == ours.fingerprint


@pytest.mark.thorough
@pytest.mark.parametrize("trailing", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "max", "last"])
def test_prompts_left_out_of_the_pooling(
    dense: Path, texts: list[str], trailing: bool, pooling: str, bert: Path
) -> None:
    if not trailing:
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(bert / "tokenizer.json"), pad_token="[PAD]", model_max_length=64
        )
        tokenizer.backend_tokenizer.post_processor = None
        tokenizer.save_pretrained(dense)
    encoder = DenseEncoder.from_pretrained(dense, pooling=pooling, query_prompt="gold: ")
    encoder.pool_prompt = False
    shutil.rmtree(dense)
    encoder.save_pretrained(dense)
    ours = DenseEncoder.from_pretrained(dense)
    assert not ours.pool_prompt
    vectors = ours.encode_queries(texts)
    assert np.isfinite(vectors).all()
    assert (np.linalg.norm(vectors, axis=1) > 0.99).all()
    rows = [row for row, text in enumerate(texts) if trailing or text]
    expected = theirs(dense).encode(texts, prompt_name="query")
    np.testing.assert_allclose(vectors[rows], expected[rows], atol=1e-5)


def test_a_prompt_that_leaves_no_room_is_refused(bert: Path) -> None:
    for side in ("query", "document"):
        options: dict[str, Any] = {f"{side}_prompt": "deep " * 8, f"{side}_length": 10}
        with pytest.raises(ConfigError, match=rf"{side}_prompt: takes 10 tokens.*{side}_length"):
            DenseEncoder.from_pretrained(bert, **options)
        DenseEncoder.from_pretrained(bert, **{**options, f"{side}_length": 11})


def test_pairs_have_segments_only_where_the_tokenizer_names_them(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    folder = save_model(tmp_path / "m", "ForSequenceClassification", num_labels=1)
    pairs = [("gold", "river of water"), ("deep", "stone")]
    with_segments = CrossEncoder.from_pretrained(folder).score(pairs)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(folder)
    change(folder / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    ours = CrossEncoder.from_pretrained(folder)
    scores = ours.score(pairs)
    assert not np.allclose(scores, with_segments)
    assert "token_type_ids" not in ours.tokenize_pairs(pairs)
    ours.save_pretrained(tmp_path / "again")
    expected = Theirs(str(tmp_path / "again"), device="cpu").predict(pairs)
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_cross_encoders_lower_texts_too(pair_bert: Path, bert: Path, tmp_path: Path) -> None:
    shutil.copytree(pair_bert, tmp_path / "m")
    vocabulary = str(bert / "vocab.txt")
    cased = transformers.BertTokenizer(vocabulary, do_lower_case=False, model_max_length=64)
    cased.save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    encoder = CrossEncoder.from_pretrained(tmp_path / "m")
    encoder.save_pretrained(tmp_path / "again")
    again = CrossEncoder.from_pretrained(tmp_path / "again")
    # Each alone: two rows of one batch may differ in the last bit.
    upper, lower = (again.score([pair])[0] for pair in (("GOLD", "river"), ("gold", "RIVER")))
    assert upper == lower
    assert again.fingerprint == encoder.fingerprint
