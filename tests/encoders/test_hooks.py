"""Every hook of ``EncoderBase``: typed, with a default, and looked up by name in one place."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from sluice.encoders import BM25Encoder, DenseEncoder, SpladeEncoder, TowerEncoder
from sluice.encoders.encoder import FUNCTIONS, HOOKS, Dense, EncoderBase, encodes, hooks_of
from sluice.encoders.foundation.build import resolve
from sluice.encoders.table import ENCODERS
from sluice.encoders.vectors.cache import vector_identity

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("encoders", "indexing", "training", "retrieval")
OF_ARRAYS = ("device", "dtype", "kind")  # which others have too
# Where objects of users come in, and where encoders are checked.
BORDERS = (
    "encoders/dense/objects/sentence_transformer.py",
    "encoders/encoder.py",
    "encoders/rerankers/objects.py",
    "retrieval/pipelines/scorer.py",
    "retrieval/testing/encoder.py",
)
DERIVED = ("engine", "fits_documents")


class Bare:
    """An encoder of a user: the four methods and nothing else."""

    fingerprint = "bare"

    def encode_queries(self, texts: Any) -> Dense:
        return np.array([[len(text), 1] for text in texts], np.float32).reshape(-1, 2)

    encode_documents = encode_queries

    def save_pretrained(self, path: Any) -> None: ...


def test_no_other_module_looks_a_hook_up_by_name() -> None:
    looked_up = []
    for file in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        place = file.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(file.read_bytes())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id not in ("getattr", "hasattr") or place in BORDERS:
                continue
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
            encoder = "encoder" in ast.unparse(node.args[0]).lower()
            if encoder or (name in HOOKS and name not in OF_ARRAYS):
                looked_up.append(f"{place}:{node.lineno}: {ast.unparse(node)}")
    assert looked_up == []


def test_every_type_of_the_table_has_the_base() -> None:
    for target in ENCODERS.values():
        kind: Any = resolve(target.removesuffix(".from_pretrained"))
        assert issubclass(kind, EncoderBase), target
    assert {name for name in vars(EncoderBase) if name[0] != "_"} == {*HOOKS, *DERIVED}
    for name in HOOKS:
        hook: Any = vars(EncoderBase)[name]
        assert hook.__doc__, name
    assert set(HOOKS) > set(FUNCTIONS) > {"token_ids", "fit_documents", "raise_bias"}
    assert {"dim", "similarity", "fields", "head_parameters"}.isdisjoint(FUNCTIONS)


def test_a_bare_encoder_has_the_defaults() -> None:
    hooks, base = hooks_of(Bare()), EncoderBase()
    for name in (*HOOKS, *DERIVED):
        assert getattr(hooks, name) == getattr(base, name), name
    assert (hooks.similarity, hooks.dim, hooks.fits_documents) == ("dot", None, False)
    assert encodes(Bare())
    assert not encodes(hooks)
    identity = vector_identity(Bare(), "float32")
    assert (identity["dtype"], identity["backend"]) == ("", "")


def test_a_users_own_hooks_are_read_and_other_things_of_their_names_are_not() -> None:
    class Own(Bare):
        dim = 2
        fields = None
        hidden = 128  # a number: not the function that masked language models have

        def __init__(self) -> None:
            self.learnt = 0

        def similarity(self, one: Any, other: Any) -> float:  # a method: not the name of one
            return 0.0

        def add_documents(self, texts: Any) -> Dense:
            self.learnt += len(texts)
            return self.encode_documents(texts)

    own = Own()
    hooks = hooks_of(own)
    assert (hooks.dim, hooks.similarity, hooks.hidden) == (2, "dot", None)
    assert hooks.add_documents is not None
    assert hooks.fit_documents is None
    hooks.add_documents(["a", "b"])
    assert own.learnt == 2
    own.dim = 3  # read anew each time
    assert hooks.dim == 3


@pytest.mark.parametrize("form", ["class attribute", "instance attribute", "property"])
def test_a_subclass_may_set_a_hook_in_any_form(form: str) -> None:
    class OfClass(EncoderBase):
        similarity: Literal["cosine", "dot"] = "cosine"

    class OfInstance(EncoderBase):
        def __init__(self) -> None:
            self.similarity: Literal["cosine", "dot"] = "cosine"

    class OfProperty(EncoderBase):
        @property
        def similarity(self) -> Literal["cosine", "dot"]:
            return "cosine"

    kinds = {"class attribute": OfClass, "instance attribute": OfInstance, "property": OfProperty}
    encoder = kinds[form]()
    assert hooks_of(encoder) is encoder
    assert encoder.similarity == "cosine"
    assert encoder.normalize is False


def test_what_the_types_of_the_table_say(bert: Path, masked_bert: Path) -> None:
    dense = DenseEncoder.from_pretrained(bert)
    splade = SpladeEncoder.from_pretrained(masked_bert, prune_quantile=0.1)
    bm25 = BM25Encoder(fields={"title": 2.0, "text": 1.0})
    assert (dense.similarity, dense.normalize, dense.terms) == ("cosine", True, None)
    assert (splade.similarity, splade.needs_term_floors, splade.layer_count) == ("dot", True, None)
    assert (bm25.fits_documents, bm25.tokenizer, bm25.towers) == (True, None, {})
    assert bm25.fields == {"title": 2.0, "text": 1.0}
    towers = TowerEncoder(dense, DenseEncoder.from_pretrained(bert))
    assert list(towers.towers) == ["query", "document"]
    assert (towers.terms, towers.head_parameters, towers.learning_rates) == (None, (), {})
    assert towers.embed_layers is not None
    assert towers.layer_count == dense.layer_count
