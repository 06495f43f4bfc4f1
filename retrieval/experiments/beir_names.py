"""BEIR's public datasets by their ir_datasets ids, and what ``beir:*`` stands for.

Thakur et al. (2021), table 1: eighteen datasets, of which BioASQ, Signal-1M, TREC-NEWS and Robust04
cannot be downloaded freely. The headline average leaves out MS MARCO, which models are trained on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, suggest

CQADUPSTACK = tuple(
    f"cqadupstack-{part}"
    for part in (
        "android", "english", "gaming", "gis", "mathematica", "physics", "programmers", "stats",
        "tex", "unix", "webmasters", "wordpress",
    )
)  # fmt: skip
IDS = {
    "trec-covid": "beir/trec-covid", "nfcorpus": "beir/nfcorpus", "nq": "beir/nq",
    "hotpotqa": "beir/hotpotqa", "fiqa": "beir/fiqa", "arguana": "beir/arguana",
    "webis-touche2020": "beir/webis-touche2020/v2",
    **{name: f"beir/{name.replace('-', '/', 1)}" for name in CQADUPSTACK},
    "quora": "beir/quora", "dbpedia-entity": "beir/dbpedia-entity", "scidocs": "beir/scidocs",
    "fever": "beir/fever", "climate-fever": "beir/climate-fever", "scifact": "beir/scifact",
}  # fmt: skip
MSMARCO = "msmarco"  # evaluated on dev


def beir_datasets(entry: str | Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the datasets that an entry of a list stands for, each as keys of a config.

    ``beir:*`` is every public one but MS MARCO, ``beir:NAME`` one of them, ``beir:cqadupstack`` its
    twelve parts; a folder of that name under ``$SLUICE_DATA`` comes before a download. Anything
    else stands for itself.
    """
    if not (isinstance(entry, str) and entry.startswith("beir:")):
        return [{"dataset": dict(entry) if isinstance(entry, Mapping) else entry}]
    asked = entry.removeprefix("beir:")
    names = {"*": tuple(IDS), "cqadupstack": CQADUPSTACK}.get(asked, (asked,))
    known = [*IDS, MSMARCO, "cqadupstack"]
    found = []
    for name in names:
        if name not in IDS and name != MSMARCO:
            raise ConfigError(
                f"dataset: {entry!r}: BEIR has no {name!r}; known: {', '.join(known)}, * for all "
                f"but {MSMARCO}{suggest(name, known)}"
            )
        local = _local(name)
        made: dict[str, Any] = {"dataset": local or IDS.get(name, f"beir/{name}")}
        if name == MSMARCO:
            made["evaluate"] = {"split": "dev"}
        found.append(made)
    return found


def _local(name: str) -> str | None:
    """Return the name of a folder under ``$SLUICE_DATA`` that holds this dataset."""
    data = os.environ.get("SLUICE_DATA")
    return name if data and (Path(data).expanduser() / name / "corpus.jsonl").exists() else None
