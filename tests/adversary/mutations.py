"""Mutated inputs of every kind through the command line and Python.

Wrong is a traceback, a crash, a command that hangs or takes all memory; an answer of a changed
folder that is not the original's; a score that is not pytrec_eval's; what is left behind exit 2.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mutated_folders as folders
import mutated_inputs as inputs
import mutation_seeds as seeds
from fuzzing import Case, Fuzzer
from mutation_seeds import seed


def prepare(world: Path) -> None:
    """Load and compile what the commands need, so that none begins with it."""
    import pyarrow

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    seeds.compile_kernels(world)


def warmed(world: Path) -> None:
    """Import all of the package, torch and transformers: for a run of hours."""
    prepare(world)
    models = seed(world, seeds.models)
    seeds.run("search", models / "out", seeds.QUERY, "--pipeline", "splade")
    for name in ("faiss", "pandas", "pyarrow.parquet", "safetensors.torch", "torch",
                 "transformers.models.bert.modeling_bert", "transformers.trainer"):  # fmt: skip
        importlib.import_module(name)
    import torch

    import sluice

    torch.set_num_threads(1)
    for found in pkgutil.walk_packages(sluice.__path__, "sluice."):
        if not found.name.endswith(("__main__", "_worker")) and "adapters" not in found.name:
            importlib.import_module(found.name)


Kind = tuple[Callable[[Case], None], int]
FOREIGN = (  # forms of other tools' files, and the seed that is imported
    ("ciff", "x.ciff"), ("ciff", "x.ciff.gz"), ("impact-json", "x.jsonl"), ("vectors", "vectors"),
    ("npy", "x.npy"), ("parquet", "x.parquet"), ("safetensors", "x.safetensors"),
    ("jsonl", "x.jsonl"),
)  # fmt: skip
PLACES = (
    (seeds.lexical, "out/retrievers/bm25"), (seeds.lexical, "out/retrievers/two"),
    (seeds.flat, "flat"), (seeds.flat, "faiss"),
)  # fmt: skip
SPLADE = {"make": seeds.models, "place": "out/retrievers/splade"}
LIGHT: dict[str, Kind] = {  # those that need no torch
    "corpus": (inputs.corpus, 5),
    "documents": (inputs.documents, 6),
    "additions": (inputs.additions, 3),
    "queries": (inputs.queries, 4),
    "run": (partial(inputs.judged, run=True), 8),
    "qrels": (partial(inputs.judged, run=False), 8),
    "labels": (inputs.labels, 2),
    "training": (inputs.training_file, 7),
    "drafts": (inputs.drafts, 4),
    "check": (partial(inputs.configuration, name="x.yaml", verb="check"), 6),
    "yaml": (partial(inputs.configuration, name="x.yaml", verb="index"), 2),
    "evaluate": (partial(inputs.configuration, name="x.yaml", verb="evaluate"), 1),
    "query-vectors": (inputs.query_vectors, 3),
    **{
        f"import-{form}{'.gz' if source.endswith('.gz') else ''}": (
            partial(inputs.imported, form=form, source=source),
            2,
        )
        for form, source in FOREIGN
    },
    "experiment": (folders.experiment, 6),
    "reproduction": (folders.reproduction, 1),
    "pipeline": (folders.saved_pipeline, 2),
    "fitted": (folders.fitted, 2),
    "score-cache": (folders.score_cache, 2),
    **{
        f"{what.__name__}-{Path(place).name}": (partial(what, make=make, place=place), 3)
        for what in (folders.retriever, folders.forged)
        for make, place in PLACES
    },
}
HEAVY: dict[str, Kind] = {
    "model": (folders.model, 3),
    "retriever-splade": (partial(folders.retriever, **SPLADE), 1),
    "forged-splade": (partial(folders.forged, **SPLADE), 1),
    "check-models": (partial(inputs.configuration, name="dense.yaml", verb="check"), 2),
    "plan-models": (partial(inputs.configuration, name="dense.yaml", verb="plan"), 1),
    "check-training": (partial(inputs.configuration, name="train.yaml", verb="check"), 2),
    "train": (partial(inputs.configuration, name="train.yaml", verb="train"), 1),
}

FUZZER = Fuzzer("mutations", {**LIGHT, **HEAVY}, warmed, long=100_000)
