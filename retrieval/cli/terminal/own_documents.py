"""Makes an experiment of the user's own documents, for ``sluice index SOURCE``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.messages import echo

log = logging.getLogger("sluice")

LONG = 300_000  # characters that take longer than the trial of an estimate


def is_documents(source: str) -> bool:
    """Return whether a word names documents rather than the YAML file of an experiment."""
    from sluice.retrieval.documents.readers.source import is_source

    return Path(source).suffix.lower() not in (".yaml", ".yml") and is_source(source)


def own_experiment(
    source: str,
    columns: Mapping[str, Any],
    output: Path | None,
    *,
    language: str | None,
    model: str | None,
    lexical_only: bool,
    dry_run: bool,
) -> dict[str, Any]:
    """Return the config of a hybrid over a source, and print what was read and what it will cost.

    The model is looked up before anything is built. A dry run prints no estimate here: its caller
    does.
    """
    from sluice.encoders.lexical.analyzer import analyzer
    from sluice.retrieval.experiments.own_documents import hybrid_config, survey
    from sluice.retrieval.jobs import estimate

    if lexical_only and model is not None:
        raise ConfigError("--model: goes without --bm25, which uses no model")
    if language is not None:
        analyzer(language)  # an unknown one is an error before any work
    folder = output or Path("runs") / short_name(source)
    own = survey(source, columns, folder, language)
    echo(str(own))
    config = hybrid_config(own, folder, model=model, lexical_only=lexical_only)
    if not dry_run and not lexical_only:
        if own.characters < LONG:
            echo("estimate: less than half a minute, and a few MB on disk")
        else:
            echo(f"estimate: dense: {estimate(config, only=['dense'])['dense']}")
    return config


def short_name(source: str) -> str:
    """Return the folder's name below ``runs`` for a source."""
    if source == "-":
        return "documents"
    plain = source.partition("#")[0].rstrip("/").removeprefix("hf:")
    parts = [part for part in Path(plain).resolve().parts if not set(part) & set("*?[")]
    return parts[-1].split(".")[0] or "documents"
