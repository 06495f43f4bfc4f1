"""The experiments of tests/kinds.yaml, and the tiny models that they name."""

from __future__ import annotations

import copy
import math
import string
from pathlib import Path
from typing import Any

import yaml
from small_world import SUBJECTS, documents, write_beir, write_marked
from sparse_codes import save_csr
from static_embeddings import save_static
from tiny_generators import save_gpt2, save_t5
from tiny_models import save_model
from training_files import lines

from sluice.encoders import StaticEncoder
from sluice.retrieval import Retriever, load_dataset
from sluice.retrieval.training_data.false_negatives import fit_adapter

FILE = Path(__file__).parents[1] / "kinds.yaml"
TABLE: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))["kinds"]
KINDS = tuple(TABLE)


class Models(dict[str, Path]):
    """Folders of tiny models by name, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, name: str) -> Path:
        folder = self.folder / name
        if name == "bert":
            save_model(folder, "Model")
        elif name == "csr":
            save_csr(self["bert"], folder)
        elif name == "t5":
            save_t5(folder)
        elif name == "gpt2":
            save_gpt2(folder, initializer_range=0.3)
        elif name == "static":
            save_static(folder)
        elif name == "unit":
            from sentence_transformers.base.modules import Normalize

            save_static(folder, Normalize())
        elif name == "adapter":
            data = load_dataset(str(write_beir(self.folder / "data")), "train")
            base = Retriever.build(StaticEncoder.from_pretrained(self["static"]), data.corpus)
            fit_adapter(base, data, hidden=4, steps=3).save_pretrained(folder)
        else:
            raise KeyError(name)
        self[name] = folder
        return folder


class _Names(dict[str, Any]):
    """What a template asks for: the folder, or a model."""

    def __init__(self, models: Models, folder: Path) -> None:
        super().__init__(folder=folder)
        self.models = models

    def __missing__(self, name: str) -> Path:
        return self.models[name]


def filled(template: Any, folder: Path, models: Models) -> Any:
    """Return what a template has, with the names of the folder and of models in their places."""
    text = string.Template(yaml.safe_dump(template, sort_keys=False))
    return copy.deepcopy(yaml.safe_load(text.substitute(_Names(models, folder))))


def experiment(kind: str, folder: Path, models: Models) -> dict[str, Any]:
    """Write the files that the experiment of a kind needs, and return its configuration."""
    facts = filled(TABLE[kind], folder, models)
    del facts["cards"], facts["exports"]
    if kind == "concepts":
        (folder / "concepts.txt").write_text("".join(f"{name}\n" for name in SUBJECTS))
    elif kind == "listwise":
        ranked(folder)
    elif kind == "experts":
        for name, word in (("a", "red"), ("b", "blue")):
            write_marked(folder / name, word)
    if "dataset" not in facts:
        facts["dataset"] = str(write_beir(folder / "data"))
    measured = {"measures": ["nDCG@10"], "baseline": next(iter(facts["pipelines"]))}
    return {**facts, "output": str(folder / "out"), "evaluate": {**measured, "latency_queries": 0}}


def ranked(folder: Path, depth: int = 3) -> Path:
    """Write what `sluice teach rank` writes, about the train queries of the small world."""
    corpus, rows = documents(), []
    for number in range(12):
        chosen = [corpus[(number * 3 + at) % 40] for at in range(depth)]
        rows.append({
            "query_id": f"q{number}", "query": " ".join(chosen[0].text.split()[:3]),
            "documents": [each.full_text for each in chosen],
            "doc_ids": [each.id for each in chosen],
            "grades": [1 / math.log2(1 + rank) for rank in range(1, depth + 1)],
        })  # fmt: skip
    return lines(folder / "ranked.jsonl", rows)
