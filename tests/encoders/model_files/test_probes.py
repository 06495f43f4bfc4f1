"""Twenty texts with their vectors beside a saved model: what was changed is found and named."""

import json
import shutil
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from sparse_codes import save_csr
from tiny_generators import save_t5
from tiny_models import save_model

from sluice.encoders import (
    BM25Encoder,
    ConceptEncoder,
    CrossEncoder,
    CsrEncoder,
    DenseEncoder,
    ExpertEncoder,
    GaussianEncoder,
    SpladeEncoder,
    TokenEncoder,
    TowerEncoder,
)
from sluice.encoders.foundation.errors import IndexFormatError, ModelError
from sluice.encoders.generative.listwise import ListwiseRanker
from sluice.encoders.generative.true_false import TrueFalseRanker
from sluice.encoders.model_files import probes
from sluice.encoders.model_files.probes import PROBES, Row, verify_probes
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.own.matching import KNRM
from sluice.encoders.rerankers.pyramid import PyramidEncoder
from sluice.retrieval import Document, Retriever

Edit = Callable[[Path], None]


@pytest.fixture(scope="module")
def saved(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "dense"
    DenseEncoder.from_pretrained(bert, query_prompt="query: ", query_length=32).save_pretrained(
        folder
    )
    return folder


def edited(name: str, **values: Any) -> Edit:
    def edit(folder: Path) -> None:
        facts = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**facts, **values}))

    return edit


def other_words(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"gold"', '"golf"'))


def other_weights(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    name = next(key for key in state if key.endswith("word_embeddings.weight"))
    save_file({**state, name: -state[name]}, folder / "model.safetensors", {"format": "pt"})


CHANGES: dict[str, tuple[Edit, tuple[str, ...]]] = {
    "pooling": (
        edited(
            "1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True
        ),
        ("pooling_mode_cls_token is True, and was False", "20 of 20 probe vectors"),
    ),
    "length": (
        edited("sluice.json", query_length=16),
        ("sluice.json: query_length is 16, and was 32",),
    ),
    "prompt": (
        edited("config_sentence_transformers.json", prompts={"query": "", "document": ""}),
        ("prompts.query is '', and was 'query: '", "10 of 20 probe vectors"),
    ),
    "tokenizer": (
        other_words,
        ("tokenizer.json: its contents were changed", "of 'who washed GOLD", "probe vectors"),
    ),
    "weights": (
        other_weights,
        ("its settings and tokens are what they were: either the weights", "20 of 20"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found_and_named(change: str, saved: Path, tmp_path: Path, shell: Call) -> None:
    edit, expected = CHANGES[change]
    shutil.copytree(saved, tmp_path / "m")
    edit(tmp_path / "m")
    code, _, err = shell("verify", tmp_path / "m")
    assert code == 2
    for words in expected:
        assert words in " ".join(err.split())


def test_an_unchanged_model_is_verified(saved: Path, tmp_path: Path, shell: Call) -> None:
    code, out, err = shell("verify", saved)
    assert (code, err) == (0, "")
    assert out == f"{saved}: gives the vectors of 20 texts that it gave when saved\n"
    facts = json.loads((saved / PROBES).read_text())
    assert len(facts["queries"]) == len(facts["documents"]) == 10
    stored = [np.frombuffer(b64decode(each["values"]), "<f4") for each in facts["vectors"]]
    encoder = DenseEncoder.from_pretrained(saved)
    expected = [*encoder.encode_queries(facts["queries"]),
                *encoder.encode_documents(facts["documents"])]  # fmt: skip
    np.testing.assert_array_equal(stored, expected)
    assert (saved / PROBES).stat().st_size < 20_000
    shutil.copytree(saved, tmp_path / "m")
    edited("config.json", transformers_version="9.9", _name_or_path="x")(tmp_path / "m")
    (tmp_path / "m" / "README.md").write_text("a model card")
    (tmp_path / "m" / "more.json").write_text("{}")
    assert shell("verify", tmp_path / "m")[0] == 0


@pytest.mark.thorough
def test_every_kind_of_encoder_is_saved_with_probes(
    bert: Path, masked_bert: Path, pair_bert: Path, tmp_path: Path
) -> None:
    (tmp_path / "concepts.txt").write_text("gold\nriver\nwater\n")
    made: dict[str, Any] = {
        "dense": DenseEncoder.from_pretrained(bert),
        "splade": SpladeEncoder.from_pretrained(masked_bert),
        "doc": SpladeEncoder.from_pretrained(masked_bert, query_model="bow"),
        "tokens": TokenEncoder.from_pretrained(bert, dim=16),
        "gaussian": GaussianEncoder.from_pretrained(bert),
        "concepts": ConceptEncoder.from_pretrained(bert, vocabulary=str(tmp_path / "concepts.txt")),
        "csr": CsrEncoder.from_pretrained(save_csr(bert, tmp_path / "codes")),
        "gated": ExpertEncoder.from_pretrained(bert, experts=2),
        "pairs": CrossEncoder.from_pretrained(pair_bert),
        "pyramid": PyramidEncoder.from_pretrained(pair_bert, body_length=8),
        "knrm": KNRM.from_pretrained(bert, vectors="table"),
        "true_false": TrueFalseRanker.from_pretrained(save_t5(tmp_path / "t5")),
        "listwise": ListwiseRanker.from_pretrained(
            save_t5(tmp_path / "t5b", initializer_factor=1.0), prompt="{query} {documents}"
        ),
        "towers": TowerEncoder.from_pretrained(
            query={"type": "dense", "model": str(bert)},
            document={"type": "dense", "model": str(bert)},
        ),
    }
    for name, encoder in made.items():
        encoder.save_pretrained(tmp_path / name)
        opened = open_encoder(tmp_path / name)
        verified = verify_probes(tmp_path / name, opened)
        assert verified is not None, name
        assert not verified.differences, (name, verified.differences)
        assert verified.texts == (40 if name == "towers" else 20), name
        scores = name in ("pairs", "pyramid", "knrm", "true_false", "listwise")
        assert str(verified).startswith("the scores of 10" if scores else "the vectors of"), name
    named = ExpertEncoder.from_pretrained(bert, experts=["a", "b"])
    named.save_pretrained(tmp_path / "named")  # has no vectors until an expert is chosen
    assert verify_probes(tmp_path / "named", named) is None
    BM25Encoder().fit(["gold"]).save_pretrained(tmp_path / "bm25")
    assert not (tmp_path / "bm25" / PROBES).exists()
    (tmp_path / "towers" / "query" / "1_Pooling" / "config.json").write_text("{}")
    verified = verify_probes(tmp_path / "towers", made["towers"])
    assert verified is not None
    assert len(verified.differences) == 1


def test_a_retriever_names_what_was_changed_of_its_encoder(
    bert: Path, tmp_path: Path, shell: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Retriever.build(
        DenseEncoder.from_pretrained(bert), [Document("a", "", "gold")], path=tmp_path / "r"
    )
    assert shell("verify", tmp_path / "r")[0] == 0
    real = DenseEncoder.encode_documents
    monkeypatch.setattr(DenseEncoder, "encode_documents", lambda self, texts: -real(self, texts))
    code, _, err = shell("verify", tmp_path / "r")  # as another library would, without a trace
    assert code == 2
    assert "another version computes otherwise (the versions are the same)" in " ".join(err.split())
    monkeypatch.undo()
    edited("encoder/sluice.json", document_length=16)(tmp_path / "r")
    with pytest.raises(IndexFormatError, match="the index was built with encoder"):
        _ = Retriever.open(tmp_path / "r").encoder
    code, _, err = shell("verify", tmp_path / "r")
    assert code == 2
    assert "document_length is 16, and was 64" in " ".join(err.split())


def test_distances_by_their_formula() -> None:
    rng = np.random.default_rng(3)
    old, new = rng.normal(size=(2, 7)).astype(np.float32)
    exact = np.sqrt(((new.astype(float) - old) ** 2).sum() / (old.astype(float) ** 2).sum())
    assert probes._distance(Row(old), Row(new)) == pytest.approx(exact, rel=1e-6)
    sparse_old = Row(np.float32([1, 2]), np.int32([3, 9]))
    sparse_new = Row(np.float32([2, 2, 1]), np.int32([2, 9, 11]))
    assert probes._distance(sparse_old, sparse_new) == pytest.approx(np.sqrt((1 + 4 + 1) / 5))
    assert probes._distance(sparse_old, sparse_old) == 0
    empty = Row(np.zeros(0, np.float32), np.zeros(0, np.int32))
    assert probes._distance(empty, empty) == 0
    assert probes._distance(Row(old), Row(new[:5])) == float("inf")
    two = Row(rng.normal(size=(2, 7)).astype(np.float32))  # two tokens, no terms and weights
    assert probes._distance(two, Row(two.values * np.float32(1 + 1e-6))) < 1e-5
    assert "1 of 2" in probes._moved([Row(old), two], [Row(old * np.nan), two], 1e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vectors": [{"shape": [3], "values": "!!"}]}, "damaged"),
        ({"vectors": [{"shape": [3], "values": "AAAA"}]}, "damaged"),
        ({"vectors": [{"shape": [1e999], "values": "AAAA"}]}, "damaged"),
        ({"tokens": 5}, "damaged"),
        ({"vectors": 5}, "damaged"), ({"files": 5}, "damaged"), ({"version": 2}, "newer version"),
        ({"queries": ["x"] * 10}, "its texts were changed"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_a_model_error(
    values: dict[str, Any], message: str, saved: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved, tmp_path / "m")
    edited(PROBES, **values)(tmp_path / "m")
    with pytest.raises(ModelError, match=message):
        verify_probes(tmp_path / "m", DenseEncoder.from_pretrained(saved))


def test_models_that_others_made_have_no_probes(tmp_path: Path, shell: Call) -> None:
    folder = save_model(tmp_path / "m", "Model")
    code, _, err = shell("verify", folder)
    assert code == 2
    assert f"no {PROBES} to compare with" in " ".join(err.split())
