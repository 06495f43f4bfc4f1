"""No hook of our own is looked up by name in indexing and retrieval: it has a type, and a default.

A hook by name is ``hasattr``, or ``getattr`` with a default. What is looked up so is of others:
frames, arrays, tensors, errors, and the objects that users bring.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OTHERS = {
    "indexing/databases/pgvector/connection.py": {"poll"},
    "indexing/faiss/engine.py": {"IO_FLAG_MMAP_IFC"},
    "indexing/faiss/engines.py": {"pq"},
    "indexing/faiss/structure.py": {"cp", "pq", "quantizer"},
    "indexing/storage/rows.py": {"MADV_DONTNEED", "_mmap"},
    "retrieval/cli/__init__.py": {"format_message"},
    "retrieval/cli/app.py": {"option_name", "rich_help_panel"},
    "retrieval/cli/terminal/printing.py": {"ctx", "remedy"},
    "retrieval/config/schema/arguments.py": {"name", "summary"},  # of any annotation and class
    "retrieval/config/yaml_file.py": {"problem", "problem_mark"},
    "retrieval/datasets/libraries.py": {"docs_count", "text", "title"},
    "retrieval/documents/readers/fields.py": {"tolist"},
    "retrieval/documents/readers/files/folder.py": {"strerror"},
    "retrieval/documents/readers/frames.py": {
        "_fingerprint", "collect", "collect_schema", "column_names", "columns", "index", "iter",
        "iter_rows", "itertuples", "schema", "to_batches",
    },
    "retrieval/documents/readers/source.py": {"id", "id_", "meta", "metadata", "name"},
    "retrieval/evaluation/scores.py": {"columns", "level"},  # of a dataset of a user's own
    "retrieval/exchange/adapters/retrievers.py": {"columns"},
    "retrieval/exchange/vector_files.py": {"ndim"},
    "retrieval/exchange/formats/format.py": {"dtype", "kind"},
    "retrieval/experiments/training/checks.py": {"f'is_{short}_available'"},
    "retrieval/pipelines/expression.py": {"msg"},
    "retrieval/pipelines/saving.py": {"dtype", "is_saved", "name"},  # of scorers, see ScorerHooks
    "retrieval/pipelines/scorer.py": {"name", "parameters"},  # ScorerHooks: a user's scorer
    "retrieval/pipelines/search.py": {"columns"},
    "retrieval/retrievers/corpus/passages.py": {"is_fast"},
    "retrieval/retrievers/corpus/vectors/index_tasks.py": {"detach", "shape"},
    "retrieval/retrievers/folder/parts.py": {"from_pretrained"},
    "retrieval/retrievers/quality/perplexity.py": {"max_position_embeddings"},
    "retrieval/retrievers/retriever.py": {"dtype", "kind"},
    "retrieval/runs/queries.py": {"columns", "index", "items"},
    "retrieval/runs/run.py": {"columns"},
    "retrieval/stages/rerankers/long_documents.py": {"is_fast"},
    "retrieval/studies/upgrades.py": {"shape"},
    "retrieval/studies/report/origin.py": {"model_dump"},
    "retrieval/testing/encoder.py": {
        "fingerprint", "from_pretrained", "method", "name",  # of users' classes
    },
    "retrieval/testing/loss.py": {"__name__", "loss"},
    "retrieval/testing/loss_batches.py": {"loss", "name"},
    "retrieval/training_data/example_sources.py": {"tolist"},
    "retrieval/training_data/files/rows.py": {"changes", "examples", "paths"},  # a user's source
    "retrieval/training_data/teachers/judges.py": {"scores"},
    "retrieval/training_data/teachers/scoring_tasks.py": {"save_pretrained"},
}  # fmt: skip


def by_name(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3):
            name = node.args[1]
            yield name.value if isinstance(name, ast.Constant) else ast.unparse(name)


@pytest.mark.parametrize("room", ["indexing", "retrieval"])
def test_hooks_of_our_own_have_types(room: str) -> None:
    for path in sorted((ROOT / room).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        names = set(by_name(ast.parse(path.read_text("utf-8"))))
        assert names == OTHERS.get(place, set()), f"{place}: give the hook a type and a default"
