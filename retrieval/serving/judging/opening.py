"""Opens what is judged: the queries of a file or of the dataset's split, and the log."""

from __future__ import annotations

from pathlib import Path

from sluice.encoders.foundation.errors import ConfigError, SluiceError
from sluice.retrieval.datasets.beir import placed_queries, read_queries
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.serving.content.content import Content
from sluice.retrieval.serving.judging.judging import Judging, judgements_file
from sluice.retrieval.serving.judging.log import JudgementLog
from sluice.retrieval.serving.settings import MOST_QUERY, ServeSettings

NAME = "--judge"


def open_judging(settings: ServeSettings, folder: Path, content: Content) -> Judging | None:
    """Open the queries to judge and the log of judgements; None where nothing is judged.

    ``ConfigError`` for queries that are neither a file nor a split of the dataset, for one that no
    pipeline could search for, and where nothing is served that finds candidates.
    """
    source = settings.judge
    if source is None:
        return None
    if not content.stages or content.store is None:
        raise ConfigError(
            f"{NAME}: {folder} has no documents to judge; serve an experiment's or a retriever's "
            "folder"
        )
    queries = _queries(source, folder, content)
    for query, text in queries.items():
        if wrong := _wrong(text):
            raise ConfigError(f"{NAME} {_place(source, query)}: query {query!r:.80} {wrong}")
    if not queries:
        raise ConfigError(f"{NAME} {source}: no queries in it; expected one or more")
    log = JudgementLog(settings.judgements or judgements_file(source, folder))
    return Judging(queries, log, list(content.stages), settings.judge_depth)


def _wrong(text: str) -> str:
    """Return why no pipeline could search for a text, an empty string if it can."""
    if not text.strip():
        return "is blank; give it a text, or leave it out"
    if len(text) > MOST_QUERY:
        return (
            f"has {len(text):,} characters; a search takes up to {MOST_QUERY:,}: shorten it, or "
            "leave it out"
        )
    return ""


def _place(source: str, query: str) -> str:
    """Return where a query stands: with its line, if it is in a file."""
    path = Path(source)
    if not path.is_file():
        return source
    places = (place for place, (name, _) in placed_queries(path)() if name == query)
    return next(places, source)


def _queries(source: str, folder: Path, content: Content) -> dict[str, str]:
    path = Path(source)
    if path.is_file():
        return dict(read_queries(path))
    experiment = content.source
    if not isinstance(experiment, Experiment):
        raise ConfigError(
            f"{NAME} {source}: no such file, and {folder} is not an experiment with a dataset; "
            "give a file of queries"
        )
    try:
        return dict(experiment.dataset(source).queries)
    except SluiceError as error:
        raise ConfigError(
            f"{NAME} {source}: no such file; as a split of the dataset: {error}"
        ) from None
