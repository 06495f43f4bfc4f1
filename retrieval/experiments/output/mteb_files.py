"""Writes results in MTEB's format beside ours: a file for each task, which its reader takes.

The layout is that of its cache, ``mteb.ResultCache(OUTPUT / "mteb")``: ``results/MODEL/REVISION/
TASK.json``. A system is the model ``sluice/NAME``, its revision a hash of its encoders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sluice.encoders.foundation.disk.files import fingerprint_of, write_json
from sluice.retrieval.config.output_names import folder_name
from sluice.retrieval.evaluation.measures import parse_measure

FOLDER: Final = "mteb"
MAIN: Final = "ndcg_at_10"
UNKNOWN: Final = "und-Zyyy"  # a language and a script in ISO 639 and 15924
MEASURES: Final = {  # MTEB's names of those with a cut-off
    "nDCG": "ndcg", "R": "recall", "P": "precision", "AP": "map", "RR": "mrr", "Success": "hit_rate"
}  # fmt: skip
TASKS: Final = {  # MTEB's names of BEIR's collections and NanoBEIR's
    "arguana": "ArguAna", "climate-fever": "ClimateFEVER", "dbpedia-entity": "DBPedia",
    "fever": "FEVER", "fiqa": "FiQA2018", "hotpotqa": "HotpotQA", "msmarco": "MSMARCO",
    "nfcorpus": "NFCorpus", "nq": "NQ", "quora": "QuoraRetrieval", "scidocs": "SCIDOCS",
    "scifact": "SciFact", "trec-covid": "TRECCOVID", "webis-touche2020": "Touche2020",
    "NanoClimateFEVER": "NanoClimateFeverRetrieval", "NanoQuoraRetrieval": "NanoQuoraRetrieval",
    **{f"Nano{name}": f"Nano{name}Retrieval" for name in (
        "ArguAna", "DBPedia", "FEVER", "FiQA2018", "HotpotQA", "MSMARCO", "NFCorpus", "NQ",
        "SCIDOCS", "SciFact", "Touche2020",
    )},
}  # fmt: skip


def write_mteb(output: Path, results: Mapping[str, Any]) -> None:
    """Write the systems of a ``results.json``, one task, below ``<output>/mteb``.

    The main score is nDCG@10 where it was measured, else the first measure.
    """
    task, known = task_of(str(results["dataset"]))
    split = "train" if known and task.startswith("Nano") else str(results["split"])
    for system in results["systems"]:
        scores = {name_of(measure): value for measure, value in system["measures"].items()}
        scores["main_score"] = scores.get(MAIN, next(iter(scores.values())))
        about = {"hf_subset": "default", "languages": ["eng-Latn" if known else UNKNOWN]}
        revision = fingerprint_of(sorted(system["fingerprints"].items()))[:16]
        folder = output / FOLDER / "results" / f"sluice__{system['name']}" / revision
        folder.mkdir(parents=True, exist_ok=True)
        model = {"name": f"sluice/{system['name']}", "revision": revision, "loader": None}
        write_json(folder / "model_meta.json", model)
        write_json(folder / f"{task}.json", {
            "dataset_revision": fingerprint_of(results["contents"])[:16], "task_name": task,
            "mteb_version": None, "scores": {split: [scores | about]},  # it computed none of this
            "evaluation_time": results["origin"].get("seconds"), "kg_co2_emissions": None,
        })  # fmt: skip


def task_of(dataset: str) -> tuple[str, bool]:
    """Return what MTEB calls a dataset, and whether it has it."""
    name = dataset.removeprefix("beir/")
    if part := re.fullmatch(r"cqadupstack[-/](\w+)", name):
        return f"CQADupstack{part[1].title()}Retrieval", True
    task = TASKS.get(name.partition("/")[0])
    return task or folder_name(name), task is not None


def name_of(measure: str) -> str:
    """Return MTEB's name of a measure, ours where it has none."""
    parsed = parse_measure(measure)
    plain = parsed.cutoff is not None and parsed.level == 1 and parsed.name in MEASURES
    return f"{MEASURES[parsed.name]}_at_{parsed.cutoff}" if plain else measure
