"""Who writes files: by the functions of ``files``, or inside of what they give."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT

PACKAGES = ("encoders", "indexing", "training", "retrieval")
MODES = {kind + rest for kind in "wax" for rest in ("", "b", "+", "b+", "+b", "t")}
METHODS = {
    "copyfile", "rename", "save_file", "savez", "symlink_to", "to_parquet", "tofile", "touch",
    "write_bytes", "write_index", "write_index_binary", "write_table", "write_text",
}  # fmt: skip

# The protocol itself.
PROTOCOL = {f"encoders/foundation/disk/{name}.py" for name in ("files", "generations")}
# Into a draft, or into a new generation, that the caller has begun.
INSIDE = {
    "encoders/backends/backend.py",
    "encoders/dense/experts/mixture.py",
    "encoders/dense/precomputed.py",
    "encoders/lexical/bm25.py",
    "encoders/lexical/vocabulary.py",
    "encoders/model_files/adapters.py",
    "encoders/model_files/fetching/get.py",
    "encoders/model_files/weights/files.py",
    "encoders/splade/concepts/encoder.py",
    "encoders/splade/concepts/head.py",
    "encoders/own/csr.py",
    "encoders/splade/folder.py",
    "encoders/vectors/forms.py",
    "indexing/databases/pgvector/states.py",
    "indexing/faiss/engines.py",
    "indexing/storage/rows.py",
    "retrieval/documents/columns.py",
    "retrieval/documents/segment.py",
    "retrieval/documents/store.py",
    "retrieval/exchange/adapters/database_export.py",
    "retrieval/exchange/adapters/vector_databases.py",
    "retrieval/exchange/adapters/database_files.py",
    "retrieval/exchange/formats/arrays.py",
    "retrieval/exchange/formats/tensors.py",
    "retrieval/exchange/formats/parquet.py",
    "retrieval/exchange/formats/sparse_files.py",
    "retrieval/retrievers/quality/scores.py",
    "retrieval/stages/ltr/collection_terms.py",
    "retrieval/training_data/example_sources.py",
    "retrieval/training_data/list_tasks.py",
    "retrieval/training_data/teachers/distillation.py",
    "retrieval/training_data/teachers/scoring_tasks.py",
    "training/generation/query_prompt.py",
    "training/loop/final_weights.py",
    "training/negatives/report.py",
}
# Into temporary files that no reader looks for.
TEMPORARY = {
    "encoders/lexical/term_counts.py",
    "encoders/model_files/router.py",
    "indexing/inverted/spooling/spool.py",
    "retrieval/exchange/formats/ciff.py",
}
# A switch of the kernel.
KERNEL = {"encoders/foundation/processes.py"}
# Complete where something else says so: a checkpoint by its mark, lines by their ends.
MARKED = {
    "indexing/databases/qdrant/remote.py",
    "retrieval/serving/judging/judging.py",
    "retrieval/training_data/written/query_generation.py",
    "training/loop/callbacks.py",
    "training/loop/checkpoint.py",
    "training/loop/trainer.py",
}


def writes(file: Path) -> Iterator[str]:
    """Yield the calls of a module that write to a path by themselves."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if not isinstance(node, ast.Call):
            continue
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        texts = {each.value for each in values if isinstance(each, ast.Constant)}
        match node.func:
            case ast.Name("open") | ast.Attribute(attr="open" | "fdopen") if texts & MODES:
                yield "open"
            case ast.Attribute(value=ast.Name("np"), attr="save"):
                yield "np.save"
            case ast.Attribute(attr=name) if name in METHODS:
                yield name


@pytest.mark.thorough
def test_every_writer_keeps_to_the_protocol() -> None:
    """One that is new belongs to ``replaced_file``, ``replaced_folder`` or ``new_generation``."""
    found = {
        file.relative_to(ROOT).as_posix(): name
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        for name in writes(file)
    }
    known = PROTOCOL | INSIDE | TEMPORARY | KERNEL | MARKED
    assert {file: name for file, name in found.items() if file not in known} == {}
    assert known <= found.keys()
