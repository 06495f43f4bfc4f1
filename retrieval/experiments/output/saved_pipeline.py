"""Opens a pipeline's folder, put together by its expression; searches with one that was sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.disk.files import check_version, read_json
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, suggest
from sluice.encoders.objects import as_scorer
from sluice.retrieval.execution.executor import Facts
from sluice.retrieval.pipelines.expression import (
    NAME,
    RERANK_OPTIONS,
    functions_in,
    options_in,
    parse,
)
from sluice.retrieval.pipelines.fusion.fusion import Fusion
from sluice.retrieval.pipelines.saving import FORMAT, GIVEN, HALF, PIPELINE, VERSION
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.table import OF_TRANSFORMS, SAVED, UNWRITTEN, WRITES
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.stages.confidence import Confidence
from sluice.retrieval.stages.transforms.writer import Writes
from sluice.retrieval.training_data.list_tasks import Asked, find_lists, write_lists

# Other functions (than ``WRITES``) and options of expressions read and write files anywhere on the
# machine, which the folder of somebody else must not.
OPTIONS = frozenset(
    {
        *RERANK_OPTIONS,
        *OF_TRANSFORMS,
        "threshold",
        *(each.name for of in (Fusion, Confidence) for each in fields(of)),
    }
)


def open_pipeline(
    folder: Path,
    *,
    allow: Collection[str],
    given: Mapping[str, Any],
    params: Mapping[str, Mapping[str, Any]] | None = None,
) -> Stage:
    """Return the pipeline of a folder that ``Stage.save`` wrote.

    ``given`` has the scorers that were not saved, and the encoders of retrievers, by name;
    ``params`` the search parameters of retrievers, which are not saved. Raises
    ``IndexFormatError`` for a damaged or newer file, ``ConfigError`` for a part that is missing.
    """
    text, retrievers, rerankers = _read(folder / PIPELINE)
    for name in given:
        if name not in {**retrievers, **rerankers}:
            known = [*retrievers, *rerankers]
            raise ConfigError(
                f"given: {folder} has no part {name!r}; its parts are {', '.join(known)}"
                f"{suggest(name, known)}"
            )
    opened: dict[str, Any] = {}

    def once(name: str, opener: Callable[[], Any]) -> Any:
        if name not in opened:
            opened[name] = opener()
        return opened[name]

    openers: dict[str, Callable[[], Any]] = {
        **{
            n: partial(_retriever, folder, facts, allow, given.get(n), (params or {}).get(n))
            for n, facts in retrievers.items()
        },
        **{n: partial(_scorer, folder, n, facts, given.get(n)) for n, facts in rerankers.items()},
    }
    names = {name: partial(once, name, opener) for name, opener in openers.items()}
    return parse(text, names, where=str(folder / PIPELINE))


def _read(path: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    facts = read_json(path)
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise IndexFormatError(f"{path}: not the file of a pipeline; save the pipeline again")
    check_version(facts.get("version"), VERSION, path)
    text: Any = facts.get("expression")
    retrievers: Any = facts.get("retrievers")
    rerankers: Any = facts.get("rerankers")
    sound = isinstance(text, str)
    for parts, room in ((retrievers, "retrievers"), (rerankers, "rerankers")):
        sound = sound and isinstance(parts, dict)
        for name, part in parts.items() if sound else ():
            sound = sound and isinstance(part, dict) and re.fullmatch(NAME, name) is not None
            sound = sound and part.get("folder") in (f"{room}/{name}", None)
    if not sound:
        raise IndexFormatError(f"{path}: not as Sluice writes it; save the pipeline again")
    where = str(path)
    foreign = functions_in(text, where=where) - WRITES
    foreign |= options_in(text, where=where) - OPTIONS
    if foreign:
        raise IndexFormatError(
            f"{path}: the expression uses {', '.join(sorted(foreign))}, which a saved pipeline "
            "never does; save the pipeline again"
        )
    return text, retrievers, rerankers


def _retriever(
    folder: Path, facts: Mapping[str, Any], allow: Collection[str], given: Any, params: Any
) -> Stage:
    path = folder / str(facts.get("folder"))
    retriever = Retriever.open(path, encoder=given, allow=allow, params=params)
    where = facts.get("where")
    return retriever if where is None else retriever.filtered(where)


def _scorer(folder: Path, name: str, facts: Mapping[str, Any], given: Any) -> Any:
    if given is not None:
        return given if isinstance(given, Writes) else as_scorer(given)
    kind = str(facts.get("type"))
    if kind == GIVEN:
        raise ConfigError(
            f"{folder}: its reranker {name!r} ({facts.get('of')}) is not saved, because it is "
            f"code; give it again: load_pipeline(..., given={{{name!r}: ...}})"
        )
    if kind not in SAVED:
        raise IndexFormatError(f"{folder}: reranker {name!r} is of unknown type {kind!r}")
    model = folder / str(facts.get("folder"))
    if facts.get("folder") is None or not model.is_dir():  # else it might be a name on the hub
        raise IndexFormatError(
            f"{folder}: the model of its reranker {name!r} is missing; save the pipeline again"
        )
    options = {setting: facts[setting] for setting in UNWRITTEN.get(kind, ()) if setting in facts}
    options |= {"dtype": HALF} if facts.get("dtype") == HALF else {}
    return resolve(SAVED[kind])(model, **options)


def lists_task(*, stage: Mapping[str, Any], inputs: str, output: str) -> Facts:
    """Search the queries of the file ``inputs`` into the file ``output``; see ``find_lists``."""
    opened = _opened(json.dumps(stage, sort_keys=True))
    write_lists(find_lists(opened, Asked(**read_json(Path(inputs)))), Path(output))
    return {}


@lru_cache(maxsize=1)
def _opened(form: str) -> Stage:
    """Open what ``SentStage.form`` describes; the last one stays open."""
    facts = json.loads(form)
    if "retriever" in facts:
        return Retriever.open(**facts["retriever"])
    return open_pipeline(
        Path(facts["pipeline"]), allow=facts["allow"], given={}, params=facts["params"]
    )
