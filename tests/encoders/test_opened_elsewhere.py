"""Where a saved model opens: in sentence-transformers with equal scores, or refused.

``docs/models.md`` says the same in words. No model may open there and score otherwise.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_specs import encoder_specs
from sentence_transformers import (
    CrossEncoder,
    MultiVectorEncoder,
    SentenceTransformer,
    SparseEncoder,
)
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer import modules as theirs
from tiny_generators import save_t5
from tiny_models import save_model

import sluice.encoders.sentence_transformers as modules
from sluice.encoders import BM25Encoder, CrossEncoder as Ranker, as_encoder, as_scorer
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout.read import OWN
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.table import ENCODERS, KNOWN, RANKERS, RERANKERS
from sluice.encoders.tuning.tune import tune

QUERIES = ["gold river", "the river of gold water stone deep dense sparse index term weight vector"]
DOCUMENTS = [
    "gold gold in the river of water",
    "deep stone",
    "a sluice for the river and that gold by this search index weight vector the and to",
]
PAIRS = [(query, document) for query in QUERIES for document in DOCUMENTS]

# What becomes of a folder there.
OPENS, TRUSTED, REFUSED, NOTHING = (
    "equal",
    "equal with trust_remote_code=True",
    "refused",
    "no model",  # no network at its top: only what it is made of may be one
)
# The quickstart's three, with its settings, come first.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "dense-ft": ("dense", {"query_length": 6, "document_length": 12}, OPENS),
    "splade-ft": (
        "splade",
        {
            "query_model": "idf", "train_idf": True, "term_frequency": True, "query_length": 6,
            "document_length": 12,
        },
        TRUSTED,
    ),
    "cross-ft": ("cross_encoder", {"head": "similarity", "max_length": 20}, TRUSTED),
    "dense, cls, not normalised": ("dense", {"pooling": "cls", "normalize": False}, OPENS),
    "dense, several poolings": ("dense", {"pooling": ["mean", "cls"]}, OPENS),
    "dense, prompts": ("dense", {"query_prompt": "query: ", "document_prompt": "text: "}, OPENS),
    "dense, dim": ("dense", {"dim": 8}, OPENS),
    "dense, projection": ("dense", {"projection": 8}, OPENS),
    "dense, fewer layers": ("dense", {"layers": 1}, OPENS),
    "dense, top_layers": ("dense", {"top_layers": 2}, REFUSED),
    "dense, adapter": ("dense", {"tuning": "adapter"}, REFUSED),
    "dense, prefix": ("dense", {"tuning": "prefix"}, REFUSED),
    "dense, lora": ("dense", {"tuning": "lora"}, OPENS),
    "static": ("static", {}, OPENS),
    "splade": ("splade", {"query_length": 6}, OPENS),
    "splade, sum": ("splade", {"pooling": "sum", "activation": "log1p_relu"}, OPENS),
    "splade, idf": ("splade", {"query_model": "idf", "query_length": 6}, OPENS),
    "splade, idf, pruned": (
        "splade",
        {"query_model": "idf", "lexical": "document", "document_top_k": 3},
        TRUSTED,
    ),
    "splade, idf, fewer terms of queries": (
        "splade", {"query_model": "idf", "query_top_k": 2}, REFUSED,
    ),
    "splade, bow": ("splade", {"query_model": "bow"}, TRUSTED),
    "splade, term_frequency": ("splade", {"term_frequency": {"length": 4}}, TRUSTED),
    "splade, lexical": ("splade", {"lexical": "both"}, TRUSTED),
    "splade, prune_below": ("splade", {"prune_below": 0.5}, TRUSTED),
    "splade, prune_ratio": ("splade", {"prune_ratio": 0.5}, TRUSTED),
    "splade, top_k": ("splade", {"document_top_k": 3, "query_top_k": 2}, TRUSTED),
    "splade, prune_quantile": ("splade", {"prune_quantile": 0.5}, REFUSED),
    "splade, adapter": ("splade", {"tuning": "adapter"}, REFUSED),
    "csr": ("csr", {}, OPENS),
    "concepts": ("concepts", {}, REFUSED),
    "experts": ("experts", {}, REFUSED),
    "gaussian": ("gaussian", {}, REFUSED),
    "hypencoder": ("hypencoder", {}, REFUSED),
    "pseudo_queries": ("pseudo_queries", {}, REFUSED),
    "tokens": ("tokens", {}, OPENS),
    "tokens, pooled": ("tokens", {"pool_factor": 2}, OPENS),
    "tokens, adapter": ("tokens", {"tuning": "adapter"}, REFUSED),
    "three_heads": ("three_heads", {"head": "dense"}, OPENS),
    "towers": ("towers", {}, OPENS),
    "cross_encoder": ("cross_encoder", {}, OPENS),
    "cross_encoder, adapter": ("cross_encoder", {"tuning": "adapter"}, REFUSED),
    "cross_encoder, similarity, iaa": (
        "cross_encoder", {"head": "similarity", "tuning": "iaa"}, REFUSED,
    ),
    "pyramid": ("pyramid", {}, REFUSED),
    "pyramid, similarity": ("pyramid", {"head": "similarity"}, REFUSED),
    "true_false": ("true_false", {}, REFUSED),
    "listwise": ("listwise", {}, REFUSED),
    "seal": ("seal", {}, REFUSED),
    "dsi": ("dsi", {}, REFUSED),
    **{
        kind: (kind, {}, NOTHING)
        for kind in (
            "bm25", "conv_knrm", "drmm", "duet", "knrm", "match_pyramid", "pacrr", "precomputed",
            "rrra", "vocabulary",
        )
    },
}  # fmt: skip


def vectors_of(model: Any, names: tuple[str, str]) -> list[Any]:
    """What a model makes of queries and documents; of tokens, in any order, MaxSim."""
    sides = [
        [array(vector) for vector in getattr(model, name)(texts)]
        for name, texts in zip(names, (QUERIES, DOCUMENTS), strict=True)
    ]
    if sides[0][0].ndim == 1:
        return [*sides[0], *sides[1]]
    return [np.array([(q @ d.T).max(1).sum() for d in sides[1]]) for q in sides[0]]


def array(vector: Any) -> Any:
    if isinstance(vector, torch.Tensor):
        return (vector.to_dense() if vector.is_sparse else vector).cpu().numpy()
    return vector.toarray().reshape(-1) if hasattr(vector, "toarray") else vector


def same(there: Any, here: Any, kind: str) -> None:
    """Check that both give equal scores, or vectors of as many dimensions."""
    if kind in RANKERS:
        scores = here.score(PAIRS)
        np.testing.assert_allclose(there.predict(PAIRS), scores, atol=2e-5)
        best = there.rank(QUERIES[0], DOCUMENTS)[0]["score"]
        assert best == pytest.approx(scores[: len(DOCUMENTS)].max(), abs=2e-5)
        return
    expected = vectors_of(here, ("encode_queries", "encode_documents"))
    found = vectors_of(there, ("encode_query", "encode_document"))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_every_type_has_a_case() -> None:
    named = {kind for kind, _, _ in CASES.values()}
    assert set(KNOWN) - named == {"http"}  # its folder holds an address


def test_every_module_of_ours_is_a_class() -> None:
    old = {"TermFrequency"}  # of folders that earlier versions wrote
    for name in OWN.keys() - old:
        assert issubclass(getattr(modules, name), torch.nn.Module)


def test_importing_sluice_imports_neither_torch_nor_these_modules() -> None:
    code = "import sluice, sys; print([m for m in sys.modules if m[:5] in ('torch', 'sente')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def made(
    request: pytest.FixtureRequest, bert: Path, masked_bert: Path, pair_bert: Path, tmp_path: Path
) -> tuple[Any, Path]:
    """The encoder of a case, and its folder."""
    kind, options, _ = CASES[request.param]
    options = dict(options)
    tuning = options.pop("tuning", None)
    spec = encoder_specs(bert, masked_bert, pair_bert, tmp_path).get(kind, {"model": str(bert)})
    if options.get("head") == "similarity":
        spec = {"model": str(bert)}
    if kind in ("seal", "dsi", "listwise"):
        spec = {"model": str(save_t5(tmp_path / "generator"))}
    encoder = build({"type": kind, **spec, **options}, {**ENCODERS, **RERANKERS}, where="encoder")
    if isinstance(encoder, BM25Encoder):
        encoder.fit(DOCUMENTS)
    if tuning:
        tune(encoder, {"type": tuning})
    torch.manual_seed(3)
    head = getattr(encoder, "similarity_head", None)
    with torch.no_grad():
        for parameter in head.parameters() if head is not None else ():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        if kind == "splade" and encoder.query_model == "idf":
            encoder.queries.weights.add_(torch.rand(encoder.dim))
    encoder.save_pretrained(tmp_path / "saved")
    return encoder, tmp_path / "saved"


def opened(kind: str, folder: Path, *, trusted: bool) -> Any:
    vectors = "scores" if kind in RANKERS else KNOWN[kind].form
    known = {"scores": CrossEncoder, "sparse": SparseEncoder, "tokens": MultiVectorEncoder}
    there: Any = known.get(vectors, SentenceTransformer)
    return there(str(folder), device="cpu", trust_remote_code=trusted)


@pytest.mark.thorough
@pytest.mark.parametrize("made", CASES, indirect=True)
def test_scores_there_are_ours_or_the_folder_is_refused(
    made: tuple[Any, Path], request: pytest.FixtureRequest
) -> None:
    encoder, folder = made
    kind, _, verdict = CASES[request.node.callspec.params["made"]]
    if verdict == NOTHING:
        for trusted in (False, True):
            with pytest.raises((ValueError, OSError), match="Unrecognized model"):
                opened(kind, folder, trusted=trusted)
        return
    if verdict != OPENS:
        with pytest.raises(ValueError, match=r"sluice\.encoders\.sentence_transformers\.\w+"):
            opened(kind, folder, trusted=False)
    if verdict == REFUSED:
        with pytest.raises(ModelError, match=r"only Sluice runs its \w+, .* would be others; open"):
            opened(kind, folder, trusted=True)
    else:
        there = opened(kind, folder, trusted=verdict == TRUSTED)
        same(there, encoder, kind)
    if verdict == TRUSTED:  # and saved there, it opens there
        there.save_pretrained(str(folder / "again"))
        same(opened(kind, folder / "again", trusted=True), encoder, kind)
    assert open_encoder(folder).fingerprint == encoder.fingerprint


def test_of_two_labels_both_logits_are_there(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m", "ForSequenceClassification", num_labels=2)
    encoder = as_scorer(folder)
    encoder.save_pretrained(tmp_path / "saved")
    logits = CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(PAIRS)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], encoder.score(PAIRS), atol=1e-5)


def test_a_head_of_an_earlier_version_is_read(bert: Path, tmp_path: Path) -> None:
    encoder = Ranker.from_pretrained(bert, head="similarity")
    encoder.save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "1_SimilarityHead").rename(tmp_path / "m" / "similarity_head")
    for file in (tmp_path / "m" / "0_Transformer").iterdir():
        file.rename(tmp_path / "m" / file.name)
    (tmp_path / "m" / "modules.json").unlink()
    assert open_encoder(tmp_path / "m").fingerprint == encoder.fingerprint


@pytest.fixture
def network(bert: Path) -> Any:
    return theirs.Transformer(str(bert), max_seq_length=30)


def test_their_dense_model_opens_here(network: Any, tmp_path: Path) -> None:
    modules = [network, theirs.Pooling(32, "mean")]
    prompts = {"query": "gold: ", "document": ""}
    model = SentenceTransformer(modules=modules, prompts=prompts, device="cpu")
    model.similarity_fn_name = "dot"
    for name, length in ("whole", None), ("short", 6):
        network.query_length = length
        model.save_pretrained(str(tmp_path / name))
        same(model, as_encoder(tmp_path / name), "dense")
    cut = SentenceTransformer(modules=modules, truncate_dim=8, device="cpu")
    cut.similarity_fn_name = "dot"
    cut.save_pretrained(str(tmp_path / "cut"))
    same(cut, as_encoder(tmp_path / "cut"), "dense")


@pytest.mark.parametrize("limit", [None, 3])
def test_their_sparse_model_opens_here(
    limit: int | None, masked_bert: Path, tmp_path: Path
) -> None:
    model = SparseEncoder(str(masked_bert), max_active_dims=limit, device="cpu")
    model.save_pretrained(str(tmp_path / "m"))
    same(model, as_encoder(tmp_path / "m"), "splade")


@pytest.mark.parametrize("name", ["Identity", "Sigmoid", "Tanh"])
def test_their_cross_encoder_opens_here(name: str, pair_bert: Path, tmp_path: Path) -> None:
    activation = getattr(torch.nn, name)()
    model = CrossEncoder(str(pair_bert), activation_fn=activation, device="cpu")
    model.save_pretrained(str(tmp_path / "m"))
    logits = torch.from_numpy(as_scorer(tmp_path / "m").score(PAIRS))
    np.testing.assert_allclose(activation(logits), model.predict(PAIRS), atol=1e-5)


def test_their_cross_encoders_of_several_labels_are_refused(bert: Path, tmp_path: Path) -> None:
    CrossEncoder(str(bert), num_labels=3, device="cpu").save_pretrained(str(tmp_path / "m"))
    with pytest.raises(ModelError, match="3 labels; a reranker has one or two"):
        as_scorer(tmp_path / "m")


def test_their_cross_encoder_of_other_modules_is_refused(network: Any, tmp_path: Path) -> None:
    head = [theirs.Pooling(32, "mean"), Dense(32, 1, module_output_name="scores")]
    model = CrossEncoder(modules=[network, *head], device="cpu")
    model.save_pretrained(str(tmp_path / "m"))
    with pytest.raises(ModelError, match=r"CrossEncoder\('.*m'\)"):
        as_scorer(tmp_path / "m")
    found = as_scorer(model).score(PAIRS)
    np.testing.assert_allclose(found, model.predict(PAIRS))
