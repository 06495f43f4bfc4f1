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
    "encoders/objects.py",
    "encoders/rerankers/external.py",
    "retrieval/pipelines/scorer.py",
    "retrieval/testing/encoder.py",
    "training/losses/base.py",
)
# What objects of other libraries may have (networks, their settings, tokenizers, files), and ours
# have too.
FOREIGN = (
    "_attn_implementation", "activation_checkpointing_enable", "backend_tokenizer", "base_layer",
    "config", "dtype", "gradient_checkpointing_enable", "is_causal", "layer_types",
    "model_max_length", "name", "prefix", "score", "strerror", "write",
)  # fmt: skip
DERIVED = ("engine",)
CAPABILITIES = (
    "learner", "identifiers", "token_names", "q_nets", "fitted_terms", "term_bias",
)  # fmt: skip


class Bare:
    """An encoder of a user: the four methods and nothing else."""

    fingerprint = "bare"

    def encode_queries(self, texts: Any) -> Dense:
        return np.array([[len(text), 1] for text in texts], np.float32).reshape(-1, 2)

    encode_documents = encode_queries

    def save_pretrained(self, path: Any) -> None: ...


def named_in(tree: ast.AST) -> set[str]:
    """Return what classes define, and what attributes are set to."""
    names = set()
    for node in ast.walk(tree):
        for each in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef):
                names.add(each.name)
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                names.add(each.target.id)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return {name for name in names if not name.startswith("__")}


def test_no_other_module_looks_a_hook_up_by_name() -> None:
    looked_up = []
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    trees = {f.relative_to(ROOT).as_posix(): ast.parse(f.read_bytes()) for f in files}
    rooms = {p: tree for p, tree in trees.items() if p.startswith(("encoders/", "training/"))}
    ours = {name for tree in rooms.values() for name in named_in(tree)} - {*FOREIGN}
    for place, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id not in ("getattr", "hasattr") or place in BORDERS:
                continue
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
            encoder = "encoder" in ast.unparse(node.args[0]).lower()
            hook = name in HOOKS and name not in OF_ARRAYS
            if encoder or hook or (place in rooms and name in ours):
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
    assert set(HOOKS) > set(FUNCTIONS) > {"token_ids", "terms", "of_source"}
    assert {"dim", "similarity", "fields", "head_parameters", *CAPABILITIES}.isdisjoint(FUNCTIONS)
    assert set(CAPABILITIES) < set(HOOKS)


def test_a_bare_encoder_has_the_defaults() -> None:
    hooks, base = hooks_of(Bare()), EncoderBase()
    for name in (*HOOKS, *DERIVED):
        assert getattr(hooks, name) == getattr(base, name), name
    assert (hooks.similarity, hooks.dim) == ("dot", None)
    assert {getattr(hooks, name) for name in CAPABILITIES} == {None}
    assert encodes(Bare())
    assert not encodes(hooks)
    identity = vector_identity(Bare(), "float32")
    assert (identity["dtype"], identity["backend"]) == ("", "")


def test_a_users_own_hooks_are_read_and_other_things_of_their_names_are_not() -> None:
    class Own(Bare):
        dim = 2
        fields = None
        terms = 128  # a number: not the function that names columns

        def __init__(self) -> None:
            self.learnt = 0

        @property
        def learner(self) -> Own:
            return self

        def similarity(self, one: Any, other: Any) -> float:  # a method: not the name of one
            return 0.0

        def remove_documents(self, texts: Any) -> None: ...

        def fit_in_parts(self, texts: Any) -> Any:
            yield self.add_documents([*texts])

        def add_documents(self, texts: Any) -> Dense:
            self.learnt += len(texts)
            return self.encode_documents(texts)

    own = Own()
    hooks = hooks_of(own)
    assert (hooks.dim, hooks.similarity, hooks.terms) == (2, "dot", None)
    assert hooks.learner is own
    hooks.learner.add_documents(["a", "b"])
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
    assert (splade.similarity, splade.fitted_terms.needs_floors) == ("dot", True)
    assert (bm25.learner, bm25.tokenizer, bm25.towers) == (bm25, None, {})
    assert bm25.fields == {"title": 2.0, "text": 1.0}
    towers = TowerEncoder(dense, DenseEncoder.from_pretrained(bert))
    assert list(towers.towers) == ["query", "document"]
    assert (towers.terms, towers.head_parameters, towers.learning_rates) == (None, (), {})
    assert towers.embed_layers is not None
    assert towers.layer_count == dense.layer_count
