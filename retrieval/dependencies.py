"""What in an experiment is made from what, and the key that says whether it must be made again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from encoders.errors import ConfigError
from encoders.files import fingerprint_of
from retrieval.config import ExperimentConfig
from retrieval.expression import names_in


class Dependencies:
    """The parts of a config by node (``train.ft``, ``retrievers.bm25``, ...) and their needs.

    In an expression a name is a retriever, a reranker or another pipeline, in this order. As
    ``negatives.retriever`` a name is a pipeline or a retriever.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config

    def check(self) -> None:
        """Raise ``ConfigError`` if anything needs itself."""
        done: set[str] = set()
        sections = ("train", "retrievers", "rerankers", "pipelines")
        for node in [f"{s}.{name}" for s in sections for name in getattr(self.config, s)]:
            self._walk(node, [], done)

    def _walk(self, node: str, path: list[str], done: set[str]) -> None:
        if node in path:
            raise ConfigError(
                f"{node}: needs itself: {' -> '.join([*path[path.index(node) :], node])}"
            )
        if node not in done:
            for needed in self.needs(node):
                self._walk(needed, [*path, node], done)
            done.add(node)

    def key(self, node: str) -> str:
        """Return a hash of everything that decides what ``node`` is."""
        below = [self.key(needed) for needed in self.needs(node)]
        section = self._section(node)
        plain = section if isinstance(section, (str, dict)) else section.model_dump()
        return fingerprint_of(plain, self.config.dataset, self.config.seed, below)

    def needs(self, node: str) -> Iterator[str]:
        """Yield the nodes that ``node`` is made from."""
        kind, _, name = node.partition(".")
        section = self._section(node)
        if kind == "pipelines":
            for used in names_in(section, where=node):
                yield self.in_expression(used, within=name)
            return
        encoder = section if kind == "rerankers" else section.encoder
        if encoder.get("model") in self.config.train:
            yield f"train.{encoder['model']}"
        if kind == "train" and section.negatives is not None:
            named = section.negatives.get("retriever")
            if isinstance(named, str):
                yield from self._lists(named)
            elif isinstance(named, Mapping):
                inner = named.get("encoder", {}).get("model")
                if inner in self.config.train:
                    yield f"train.{inner}"

    def in_expression(self, name: str, *, within: str = "") -> str:
        """Return the node a name in a pipeline stands for."""
        for section in ("retrievers", "rerankers", "pipelines"):
            if name in getattr(self.config, section) and (section, name) != ("pipelines", within):
                return f"{section}.{name}"
        return f"pipelines.{name}"

    def _lists(self, name: str) -> Iterator[str]:
        for section in ("pipelines", "retrievers"):
            if name in getattr(self.config, section):
                yield f"{section}.{name}"
                return

    def _section(self, node: str) -> Any:
        kind, _, name = node.partition(".")
        return getattr(self.config, kind)[name]
