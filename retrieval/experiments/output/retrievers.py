"""The retrievers of an experiment: opened from its output, or built there on first use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, SluiceError
from sluice.encoders.foundation.processes import give_back_memory
from sluice.encoders.table import traits_of
from sluice.retrieval.config.components import make_encoder, make_index, pruned
from sluice.retrieval.config.file_keys import Keys
from sluice.retrieval.config.sections import CachedEncoding, ExperimentConfig, RetrieverSection
from sluice.retrieval.datasets.dataset import Dataset, training_splits
from sluice.retrieval.execution.executor import Executor
from sluice.retrieval.experiments.output.folder import (
    RETRIEVERS,
    log_changes,
    loss_message,
    open_section,
    opening,
)
from sluice.retrieval.experiments.reuse import Dependencies, check_saved, is_built_of, saved_config
from sluice.retrieval.retrievers.corpus.index_queries import measures
from sluice.retrieval.retrievers.folder import HEAD, discard_leftovers, read_head
from sluice.retrieval.retrievers.retriever import Retriever

if TYPE_CHECKING:
    from sluice.retrieval.documents.document import Document
    from sluice.retrieval.retrievers.corpus.encoding import EncodingEstimate


log = logging.getLogger("sluice")


class ExperimentRetrievers:
    """The retrievers of one experiment by name, each opened or built once.

    ``dataset`` opens the experiment's dataset at a split, ``model`` returns the folder of a model
    by its name; the rest is as in ``Experiment``. ``opened`` are those in use.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        needs: Dependencies,
        *,
        file: str | Path | None,
        dataset: Callable[[str | None], Dataset],
        model: Callable[[str], str],
        executor: Executor,
        only_open: bool,
        quick: bool,
        rebuild: bool,
    ) -> None:
        self.config, self.needs, self.file = config, needs, file
        self.output = Path(config.output)
        self.dataset, self.model, self.executor = dataset, model, executor
        self.only_open, self.quick, self.rebuild = only_open, quick, rebuild
        self.opened: dict[str, Retriever] = {}
        self._said: set[str] = set()  # how the documents of some differ from those of the build

    def named(self, name: str) -> Retriever:
        """Return a retriever by name, built unless its folder holds the same one."""
        if name not in self.opened:
            section = self.config.retrievers[name]
            if self.only_open:
                self.opened[name] = self._opened(name, section)
            else:
                keys = self.needs.keys_of(section.as_built)
                self.opened[name] = self.built(name, section, keys)
        return self.opened[name]

    def is_built(self, name: str) -> bool:
        """Return whether ``retriever`` would open the saved folder rather than build it."""
        path = self.output / RETRIEVERS / name
        if name in self.opened:
            return True
        try:
            keys = self.needs.keys_of(self.config.retrievers[name].as_built)
            return (path / HEAD).exists() and self._is_kept(path, keys)
        except IndexFormatError:
            return False

    def _is_kept(self, path: Path, keys: Keys) -> bool:
        """Return whether the retriever at ``path`` is the one of ``keys`` and need not be built."""
        return is_built_of(path, keys) and not (self.rebuild and read_head(path).changes)

    def _opened(self, name: str, section: RetrieverSection) -> Retriever:
        path = self.output / RETRIEVERS / name
        saved = saved_config(path) if (path / HEAD).exists() else None
        check_saved(path, saved, self.needs.recipe_of(section.as_built), self.file)
        log_changes(path, self._said)
        return open_section(path, section, quick=self.quick)

    def built(self, name: str, section: RetrieverSection, keys: Keys) -> Retriever:
        """Open ``<output>/retrievers/<name>`` if it has this key, else build it."""
        path = self.output / RETRIEVERS / name
        where = f"retrievers.{name}"
        try:
            if (path / HEAD).exists():
                changes = read_head(path).changes
                if self._is_kept(path, keys):
                    retriever = open_section(path, section)
                    _ = retriever.index  # raises for an earlier format and for a damaged index
                    discard_leftovers(path)
                    log_changes(path, self._said)
                    return retriever
                if changes is None:
                    why = "its settings, or the files they name, changed"
                    log.info("%s: rebuilding: %s", path, why)
                elif self.rebuild:
                    log.warning("%s: rebuilding without the changes: %s", path, changes)
                else:
                    raise ConfigError(loss_message(self.output, [f"{name} ({changes})"]))
        except IndexFormatError as error:
            log.warning("%s; rebuilding", error)
        encoder = make_encoder(section.encoder, where=f"{where}.encoder", model=self.model)
        views = self._views_of(section.encoder)  # open while this one encodes
        log.info("%s: indexing", name)
        index = make_index(section.index, where=f"{where}.index")
        built = Retriever.build(
            encoder,
            pruned(section.prune, self.dataset(None).corpus, model=self.model),
            index=index,
            path=path,
            name=name,
            encoding=section.encoding or CachedEncoding(),
            passages=section.passages,
            shards=section.shards,
            shard_size=section.shard_size,
            executor=self.executor,
            queries=self._queries() if measures(index) else None,
            config={
                "retriever": section.model_dump(exclude={"search"}),
                "dataset": self.config.dataset,
                **keys._asdict(),
            },
        )
        built.params = section.search
        del views
        give_back_memory()
        return built

    def _views_of(self, spec: Mapping[str, Any]) -> list[Any]:
        """Open the other heads of a retriever's model that retrievers are yet to be built with.

        One pass then makes the vectors of all, which the cache keeps for them.
        """
        traits = traits_of(spec)
        if traits is None or not traits.heads:
            return []
        return [
            make_encoder(other.encoder, where=f"retrievers.{name}.encoder", model=self.model)
            for name, other in self.config.retrievers.items()
            if {**other.encoder, "head": spec.get("head")} == {**spec}
            and other.encoder != spec
            and not self.is_built(name)
        ]

    def _queries(self) -> Mapping[str, str]:
        """Return the queries to choose an index by: train and dev, never those of the test."""
        try:
            train, dev = training_splits(self.dataset(None), self.config.seed)
            tested = self.dataset(self.config.evaluate.split).queries
        except SluiceError as error:
            log.info("index: measuring without train queries (%s)", error)
            return {}
        keys = set(map(same_text_key, tested.values()))
        queries = {**train.queries, **dev.queries}
        return {
            query: text
            for query, text in queries.items()
            if query not in tested and same_text_key(text) not in keys
        }

    def let_go(self) -> None:
        """Let go of what is open only to search: what comes next needs the memory."""
        for name, retriever in self.opened.items():
            retriever.let_go(**opening(self.config.retrievers[name]))

    def estimate(self, name: str) -> EncodingEstimate | None:
        """Estimate the cost of encoding the corpus for a retriever; None if nothing is encoded."""
        from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import corpus_estimate

        section = self.config.retrievers[name]
        where = f"retrievers.{name}.encoder"
        encoder = make_encoder(section.encoder, where=where, model=self.model)
        passages = section.passages
        corpus = pruned(section.prune, self.dataset(None).corpus, score=False)

        if passages is not None:
            encoder = passages.reader(encoder)

        def read() -> Iterable[Document]:
            return corpus if passages is None else passages.parts(encoder, corpus)

        return corpus_estimate(encoder, read, section.encoding or CachedEncoding())
