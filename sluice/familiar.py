"""Names that other libraries use: each one line over what is here, or the line to write instead.

Encoders, rerankers and stages inherit the methods. A name in ``familiar.toml`` is answered by an
``AttributeError`` with the line to write; ``hasattr`` is False, as for any name of nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
import tomllib
from abc import ABCMeta
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

K: Final = "top_k topk top_n n_results num_results max_results limit n size num_hits"
QUERY: Final = "queries query_texts query_text text question q"
OPTIONS: Final = {"model_name_or_path": "model", "model_name": "model", "truncate_dim": "dim"}


@functools.cache
def lines() -> Mapping[str, Mapping[str, str]]:
    """Return, of the package and of each class, the names and the line to write for each."""
    text = Path(__file__).with_name("familiar.toml").read_text(encoding="utf-8")
    return {
        owner: {name: line for line, names in table.items() for name in names.split()}
        for owner, table in tomllib.loads(text).items()
    }


def unknown(thing: Any, name: str) -> Any:
    """Raise what Python does for a missing attribute, with the line to write where one is known."""
    kind = thing if isinstance(thing, type) else type(thing)
    tables = () if name.startswith("__") else (lines().get(c.__name__, {}) for c in kind.__mro__)
    line = next((table[name] for table in tables if name in table), "")
    if not line:  # this raises, a property's own error too
        return (type if kind is thing else object).__getattribute__(thing, name)
    raise AttributeError(f"{kind.__name__} has no {name!r}; write: {line}", name=name, obj=thing)


def of_package(name: str) -> Any:
    """Return ``sluice.open``, or a stage by its name in pipelines, ``rm3`` or ``RM3``."""
    if name == "open":
        return opened
    stages = {} if name[:1] in "_" else resolve_name("sluice.retrieval.pipelines.table:STAGES")
    plain = {stage.replace("_", ""): path for stage, path in stages.items()}
    if path := plain.get(name.lower().replace("_", "")):
        return resolve_name(path)
    if name not in lines()["sluice"]:
        raise AttributeError(f"module 'sluice' has no attribute {name!r}")
    # `from sluice import` drops the message of an AttributeError
    imported = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    kind = ImportError if imported else AttributeError
    raise kind(f"sluice has no {name!r}; write: {lines()['sluice'][name]}")


def opened(path: str | Path, **options: Any) -> Any:
    """Open a retriever's folder, a saved pipeline's or an experiment's, with the options of each.

    These are ``Retriever.open`` and ``load_pipeline``.
    """
    if (Path(path) / "retriever.json").exists():
        return resolve_name("sluice.retrieval:Retriever").open(path, **options)
    return resolve_name("sluice.retrieval:load_pipeline")(path, **options)


def refused(call: str, options: Mapping[str, Any], line: str = "") -> None:
    """Raise ``TypeError`` with the line to write for options that a familiar name does not take."""
    if options:
        known = lines()["options"]
        line = line or next(known[name] for name in (*options, call) if name in known)
        raise TypeError(f"{call} takes no {', '.join(options)}; write: {line}")


def in_passes(
    model: Any, call: str, work: Callable[[Any], Any], items: list[Any], options: dict[str, Any]
) -> Any:
    """Return ``work(items)`` with the options of ``encode``, and refuse others."""
    names = "batch_size", "show_progress_bar", "convert_to_tensor"
    size, shown, tensor = (options.pop(name, None) for name in names)
    unit = call == "encode" and options.pop("normalize_embeddings", False)
    if tensor or options.get("convert_to_numpy"):
        options.pop("convert_to_numpy", None)
    refused(call, options)
    if size is None and shown is None:
        values = work(items)
    else:
        whole_number = resolve_name("sluice.encoders.foundation.numbers:whole_number")
        size, parts = whole_number(1_000 if size is None else size, "batch_size", 1), []
        watched: Any = resolve_name("sluice.encoders.foundation.progress")
        bar = watched.progress(call, len(items), show=bool(shown))
        with bar as advance, watched.counted_by(lambda amount=1: None):
            for start in range(0, len(items) or 1, size):
                parts.append(work(items[start : start + size]))
                advance(min(size, len(items) - start))
        together = resolve_name("sluice.encoders.vectors.forms:put_together")
        values = together(parts, [np.arange(len(items))])
    if (unit or tensor) and not isinstance(values, np.ndarray):
        refused(call, {"normalize_embeddings" if unit else "convert_to_tensor": True})
    values = unit_length(values) if unit else values
    return resolve_name("torch:from_numpy")(values).to(model.device) if tensor else values


def unit_length(vectors: Any) -> Any:
    """Return vectors ``[n, dim]`` divided by their lengths; those of length 0 stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def renamed(**others: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take arguments by other names too, as in ``renamed(k="top_k limit")``."""
    own = {other: name for name, names in others.items() for other in names.split()}

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        known = inspect.signature(function).parameters
        free = any(each.kind is each.VAR_KEYWORD for each in known.values())
        arguments = ", ".join(known).removeprefix("self, ").removeprefix("cls, ")

        @functools.wraps(function)
        def called(*args: P.args, **named: P.kwargs) -> R:
            if not named:
                return function(*args, **named)
            options: Any = {own.get(name, name): value for name, value in named.items()}
            if len(options) < len(named):
                raise TypeError(f"{function.__name__}: one argument twice: {', '.join(named)}")
            left = {} if free else {name: 0 for name in options if name not in known}
            refused(function.__name__, left, f"{function.__name__}({arguments})")
            return function(*args, **options)

        return called

    return decorated


def named_item(record: Any, key: Any) -> Any:
    """Return an item of a named tuple by its place, or by name: ``hit["score"]``."""
    if not isinstance(key, str):
        return tuple.__getitem__(record, key)
    if key not in dir(record):
        raise KeyError(f"{key!r}; there are {', '.join(record._fields)}")
    return getattr(record, key)


class Similarity(str):
    """The name of a similarity; called, it compares two sets of vectors."""

    __slots__ = ()

    def __call__(self, a: Any, b: Any) -> Any:
        """Return the similarities ``[n, m]``, float32, of vectors ``[n, dim]`` and ``[m, dim]``."""
        if hasattr(a, "toarray"):
            return (a @ b.T).toarray()
        if self == "max_sim":
            return resolve_name("sluice.encoders:max_sim")(a, b)
        both = [np.atleast_2d(np.asarray(vectors, np.float32)) for vectors in (a, b)]
        if self == "cosine":
            both = [unit_length(vectors) for vectors in both]
        return both[0] @ both[1].T


class Answering(ABCMeta):
    """Lets a class answer a name of another library, as its objects do."""

    if not TYPE_CHECKING:  # a checker would take any name
        __getattr__ = unknown


class Named(Answering):
    """Lets a model's class be called with a name: ``DenseEncoder("all-MiniLM-L6-v2")``."""

    @property
    def __signature__(cls) -> inspect.Signature:
        own: Any = cls.__init__  # type: ignore[misc]
        return inspect.Signature([*inspect.signature(own).parameters.values()][1:])

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Open the model of a folder's or a hub's name; of anything else make an object.

        A user's subclass with an ``__init__`` of its own is called as any class.
        """
        given = {OPTIONS.get(name, name): value for name, value in options.items()}
        model = args[0] if args else given.pop("model", None)
        ours = cls.__init__.__module__.startswith("sluice.")  # type: ignore[misc]
        if not ours or not isinstance(model, str | Path):
            return super().__call__(*args, **options)
        given |= {repr(each): each for each in args[1:]}
        make: Any = cls.from_pretrained  # type: ignore[attr-defined]
        known = inspect.signature(make).parameters
        others = {name: value for name, value in given.items() if name not in known}
        line = f'model = {cls.__name__}("{model}")  # its options: {", ".join([*known][1:])}'
        refused(cls.__name__, others, line)
        return make(model, **given)


class Familiar:
    """Lets objects answer a name of another library with the line to write."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __getattr__ = unknown


class FamiliarEncoder(Familiar):
    """What sentence-transformers calls the methods of encoders."""

    def encode(self: Any, sentences: Any, prompt_name: str | None = None, **options: Any) -> Any:
        """Return vectors of documents; of queries with ``prompt_name="query"``.

        One text has a vector ``[dim]``, the row ``[1, vocab]`` of a sparse array, or its
        ``TokenVectors``. ``batch_size`` is the most texts of a pass, which without it has so many
        tokens; with ``show_progress_bar`` True there is a bar or a log line, with False neither.
        Dense vectors have length 1 with ``normalize_embeddings``, and are a tensor on the model's
        device with ``convert_to_tensor``.
        """
        encode = self.encode_queries if prompt_name == "query" else self.encode_documents
        if prompt_name not in (None, "query", "document", "passage"):
            options["prompt_name"] = prompt_name
        if hasattr(sentences, "columns") or isinstance(sentences, Mapping):
            raise TypeError(
                'encode takes texts; write: vectors = model.encode(list(frame["text"]))'
            )
        alone = isinstance(sentences, str)
        texts = [sentences] if alone else list(sentences)
        vectors = in_passes(self, "encode", encode, texts, options)
        return vectors[0] if alone and not hasattr(vectors, "toarray") else vectors

    def encode_query(self, sentences: Any, **others: Any) -> Any:
        """Return vectors of queries, as ``encode`` does."""
        return self.encode(sentences, "query", **others)

    def encode_document(self, sentences: Any, **others: Any) -> Any:
        """Return vectors of documents, as ``encode`` does."""
        return self.encode(sentences, "document", **others)

    def save(self: Any, path: str | Path) -> None:
        """Write the model's folder: ``save_pretrained``."""
        self.save_pretrained(path)

    @classmethod
    def load(cls: Any, path: str | Path, **options: Any) -> Any:
        """Open a model's folder: ``from_pretrained``."""
        return cls.from_pretrained(path, **options)


class FamiliarScorer:
    """What sentence-transformers calls the methods of cross-encoders."""

    def predict(self: Any, pairs: Any, **options: Any) -> Any:
        """Return the raw logit of each (query, document) pair, ``[n]``; of one pair a number.

        The options are those of ``encode`` but ``normalize_embeddings``.
        """
        pairs = pairs.to_numpy().tolist() if hasattr(pairs, "columns") else list(pairs)
        alone = len(pairs) == 2 and all(isinstance(text, str) for text in pairs)
        several = [tuple(pair) for pair in ([pairs] if alone else pairs)]
        scores = in_passes(self, "predict", self.score, several, options)
        return scores[0] if alone else scores

    def rank(
        self, query: str, documents: Any, top_k: int | None = None,
        return_documents: bool = False, **options: Any,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Return ``{"corpus_id": place, "score": logit}`` of the texts, best first.

        With ``return_documents`` each has its ``text`` too. The options are those of ``predict``.
        """
        texts = [getattr(each, "full_text", each) for each in documents]
        scores = self.predict([(query, text) for text in texts], **options)
        places = np.argsort(-np.asarray(scores.tolist()), kind="stable")[:top_k].tolist()
        ranked = [{"corpus_id": place, "score": scores[place]} for place in places]
        return [r | ({"text": texts[r["corpus_id"]]} if return_documents else {}) for r in ranked]

    def __rrshift__(self, stage: Any) -> Any:
        """Return ``stage >> Rerank(self)``."""
        return stage >> resolve_name("sluice.retrieval:Rerank")(self)


class FamiliarStage(Familiar):
    """What PyTerrier, Pyserini and LangChain call the methods of what searches."""

    def __call__(self: Any, queries: Any, k: int = 10) -> Any:
        """Return hits as ``search`` does; of a frame what ``transform`` does."""
        return self.transform(queries) if hasattr(queries, "columns") else self.search(queries, k)

    def transform(self: Any, frame: Any, k: int | None = None) -> Any:
        """Return PyTerrier's results for a frame of ``qid`` and ``query``, with ranks from 0.

        The columns are qid, docid and docno (the document's id), rank, score, query and others that
        queries have. A stage that needs candidates reads a frame of results.
        """
        adapter = "sluice.retrieval.exchange.adapters.retrievers:transformed"
        return resolve_name(adapter)(self, frame, k)

    def batch_search(
        self: Any, queries: Any, qids: Any = None, k: int = 10, threads: int = 1
    ) -> dict[str, list[Any]]:
        """Return the hits of each query by its id. ``threads`` changes nothing: all are used."""
        as_queries = resolve_name("sluice.retrieval.runs.queries:as_queries")
        asked = as_queries(queries)
        if qids is not None:  # of which none may occur twice
            asked = as_queries(list(zip(qids, asked.values(), strict=True)))
        return dict(zip(asked, self.search(list(asked.values()), k), strict=True))

    def as_retriever(self: Any, k: int = 10, *, search_kwargs: Any = None, **others: Any) -> Any:
        """Return a LangChain retriever; ``search_kwargs`` are ``k`` and ``filter`` (``where``)."""
        options = {"k": k, "filter": None, **(search_kwargs or {}), **others}
        k, where = options.pop("k"), options.pop("filter")
        refused("as_retriever", options)
        stage = self if where is None else self.filtered(where)
        return resolve_name("sluice.retrieval.exchange.adapters:langchain_retriever")(stage, k)


class FamiliarRetriever(metaclass=Answering):
    """What other libraries call the methods of documents with their index."""

    @classmethod
    def from_texts(
        cls: Any, texts: Any, embedding: Any = None, metadatas: Any = None, *, ids: Any = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Build from texts; ``embedding`` is the encoder, else BM25.

        Without ``ids`` these are 0 to n - 1.
        """
        if ids is not None or metadatas is not None:
            texts = resolve_name("sluice.retrieval.documents.document:of_texts")(
                texts, ids, metadatas
            )
        return cls.build(embedding, texts, **options)

    @classmethod
    def from_documents(cls: Any, documents: Any, embedding: Any = None, **options: Any) -> Any:
        """Build from documents in any form; ``embedding`` is the encoder, else BM25."""
        return cls.build(embedding, documents, **options)

    @classmethod
    @renamed(vectors="embeddings")
    def from_vectors(
        cls: Any, vectors: Any, ids: Any = None, texts: Any = None, *, encoder: Any = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Build from vectors ``[n, dim]``; without ``encoder`` it is searched by ``vector=``."""
        table = np.asarray(vectors, np.float32)
        if encoder is None:
            encoder = resolve_name("sluice.encoders:PrecomputedEncoder")(dim=table.shape[-1])
        texts = [""] * len(table) if texts is None else texts
        return cls.from_texts(texts, encoder, ids=ids, vectors=table, **options)

    def serve(self: Any, port: int = 8080, **options: Any) -> None:
        """Serve searches over HTTP until Ctrl-C, with the options of ``sluice serve``."""
        resolve_name("sluice.retrieval.cli.searching.serve:serve")(
            str(self.path), port=port, **options
        )

    def get(self: Any, ids: Any, default: Any = None) -> Any:
        """Return the document of an id, ``default`` without one; of a list of ids a list."""
        if isinstance(ids, list | tuple):
            return [self.get(each, default) for each in ids]
        return self[ids] if ids in self else default  # noqa: SIM401  (this is get)

    doc = get
