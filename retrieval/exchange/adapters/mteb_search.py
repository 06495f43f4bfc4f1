"""MTEB: a stage as a model that ``mteb.evaluate`` runs on retrieval and reranking tasks.

mteb (2 or later) is an optional package: ``pip install 'sluice-ir[interop]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, MissingPackageError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.exchange.adapters.mteb_corpus import TaskCorpus, kept, queries_of
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.run import Ranking, Run


class MtebSearch:
    """A stage under mteb's ``SearchProtocol``, for ``mteb.evaluate(MtebSearch(...), task)``.

    ``stage`` was made of the task's corpus, or is a function that makes one of a corpus, called for
    every corpus. mteb keeps results under ``name`` (``maker/model``) and ``revision`` and does not
    compute again what it finds there: give each system its own. In reranking tasks a reranker gets
    the candidates; another stage ranks the whole corpus, and the candidates are kept.
    """

    def __init__(
        self, stage: Stage | Callable[[Iterable[Document]], Stage], *, name: str, revision: str
    ) -> None:
        try:
            from mteb.models import ModelMeta
        except ImportError:
            raise MissingPackageError("mteb", "interop", "evaluation by mteb") from None
        if "/" not in name:
            raise ConfigError(f"name: {name!r}; mteb expects maker/model, as in 'me/{name}'")
        self._given = stage
        settings = {"name": name, "revision": revision, "modalities": ["text"]}
        self.mteb_model_meta = ModelMeta.create_empty(settings)

    def index(self, corpus: Any, **_: Any) -> None:
        """Take a task's corpus: make the stage of it, or check that it was made of it."""
        self._corpus = TaskCorpus(corpus)
        given = self._given
        self._stage = given if isinstance(given, Stage) else given(self._corpus)
        self._corpus.check(self._stage)

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **_: Any
    ) -> dict[str, dict[str, float]]:
        """Return ``{query id: {document id: score}}``, from which mteb reads the stage's order."""
        asked = queries_of(queries)
        if top_ranked is None:
            return self._stage.run(asked, None, top_k).top(top_k).to_dict()
        ids = {query: list(dict.fromkeys(top_ranked.get(query, ()))) for query in asked}
        if self._stage.needs_candidates:
            given = Run({q: Ranking(c, range(len(c), 0, -1)) for q, c in ids.items()})
            run = self._stage.attached(self._corpus).run(asked, given)
        else:
            run = kept(self._stage.run(asked, None, len(self._corpus)), ids)
        return run.top(top_k).to_dict()
