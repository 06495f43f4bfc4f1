"""What an encoder is: four methods and, all with defaults, the hooks that others read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.q_net import QNetShape
from sluice.encoders.foundation.tokens import TokenVectors, WeightedNgrams
from sluice.familiar import FamiliarEncoder, Similarity

if TYPE_CHECKING:
    from builtins import property as hook
else:

    class hook:
        """A property that gives way to a plain attribute of a subclass or of an instance."""

        def __init__(self, default: Callable[[Any], Any]) -> None:
            self.default = default
            self.__doc__ = default.__doc__

        def __get__(self, encoder: Any, kind: type | None = None) -> Any:
            return self if encoder is None else self.default(encoder)


Side: TypeAlias = Literal["query", "document"]
Dense: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Vectors: TypeAlias = Dense | sp.csr_array | TokenVectors


@runtime_checkable
class Encoder(Protocol):
    """Text in, vectors out: float32 ``[n, dim]``, dense (numpy) or sparse (``csr_array``).

    Or several vectors a text, one for each token: ``TokenVectors``, whose rows are texts.

    ``fingerprint`` changes whenever the vectors could: weights, tokenizer, pooling, prompts,
    lengths. An index remembers it and refuses another encoder's queries.

    These four are all that an encoder needs. ``EncoderBase`` lists what it may have beside them.
    """

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides the vectors."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per query, in input order."""
        ...

    def encode_documents(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per document, in input order."""
        ...

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder from which the encoder can be loaded again."""
        ...


# What few encoders can do beside encoding: see ``EncoderBase``. One that has the methods returns
# itself there.


class DocumentLearner(Protocol):
    """Learns from the documents of an index, and changes with them, as BM25 does."""

    def fit_in_parts(self, texts: Iterable[Any]) -> Iterator[Any]:
        """Learn from all documents; return their vectors in parts, in bounded memory."""

    def add_documents(self, texts: Iterable[Any]) -> Any:
        """Learn from further documents and return their vectors."""

    def remove_documents(self, texts: Iterable[Any]) -> None:
        """Unlearn documents that are deleted."""


class Identifiers(Protocol):
    """Learns identifiers of documents, and writes them for a query, as ``DsiEncoder`` does."""

    @property
    def ids_by(self) -> Mapping[str, Any] | None:
        """The encoder, as YAML describes it, by whose vectors identifiers are assigned."""

    @property
    def open_to_all(self) -> bool:
        """Whether it finds documents although it has learnt none."""

    def known_ids(self, documents: Sequence[Any]) -> int:
        """Return how many of the documents it has learnt identifiers of."""

    def assign_ids(self, documents: Sequence[Any], vectors: Any = None, seed: int = 13) -> None:
        """Give documents identifiers to learn."""


class FittedTerms(NamedTuple):
    """Term weights that a collection is counted for, see ``SpladeEncoder``.

    ``prune_quantile`` is the share of each term's postings that is pruned, or None;
    ``needs_floors`` and ``needs_idf`` say whether it has yet to be fitted, and the weights of query
    terms yet to be counted.
    """

    prune_quantile: float | None
    needs_floors: bool
    needs_idf: bool


class TermBias(Protocol):
    """Sparse vectors that training may give more terms."""

    def raises(self, side: Any) -> bool:
        """Return whether ``raise_bias`` changes the vectors of a side."""

    def raise_bias(self, amount: float) -> None:
        """Add to the logits of all terms."""


class NamedTokens(Protocol):
    """Token vectors that stand for parts of a text."""

    def token_texts(self, texts: Sequence[str], side: Any) -> Sequence[Sequence[str]]:
        """Return the names of the token vectors of texts, one by one."""

    def token_places(
        self, texts: Sequence[str], side: Any
    ) -> Sequence[Sequence[Sequence[tuple[int, int]]]] | None:
        """Return where in a text the tokens of each vector stand: characters [start, end).

        Nowhere for tokens that are not of the text, such as masks. None: not known.
        """


class QNets(NamedTuple):
    """Queries that are networks: their sizes, and whether documents' vectors have length 1."""

    shape: QNetShape
    unit_documents: bool


class EncoderBase(FamiliarEncoder):
    """All that indexing, search and training may ask of an encoder, each hook with its default.

    A hook may be overridden by a class attribute, an attribute set in ``__init__``, a property, or
    where its value is a function by a method. ``HOOKS`` names them. An encoder of your own may
    have any of them without this base: callers read them by ``hooks_of``, and nowhere else.
    """

    # What it is.

    @hook
    def kind(self) -> str:
        """Its type's name in YAML, empty for a type outside the table."""
        return ""

    @hook
    def dim(self) -> int | None:
        """The width of its vectors; None: known only from a vector."""
        return None

    @hook
    def similarity(self) -> str:
        """What turns two of its vectors into a score; MaxSim takes all of two texts' tokens.

        ``q_net``: a query is a network that scores documents' vectors. ``attention``: a query is a
        vector that attends to a document's several ones. ``ngrams``: documents are
        ``TokenSequences`` and queries ``WeightedNgrams``, see ``decode_queries``; of
        ``identifiers`` too, and a document is its identifier. Called, ``cosine`` and ``dot``
        compare two sets of vectors.
        """
        return Similarity("dot")

    @hook
    def one_way(self) -> bool:
        """Whether vectors of queries and of documents are of two kinds.

        Only a query and a document can then be compared, by their inner product: not two queries,
        two documents, or directions.
        """
        return False

    @hook
    def scoring(self) -> Any:
        """What makes training's scores where no product of vectors does, see ``Scoring``."""
        return None

    @hook
    def normalize(self) -> bool:
        """Whether all its vectors have length 1."""
        return False

    @hook
    def towers(self) -> Mapping[Side, Any]:
        """The encoders of the two sides, empty where one encoder serves both."""
        return {}

    @hook
    def views(self) -> Sequence[Any]:
        """Other encoders that its passes make the vectors of too, as they are asked for them."""
        return ()

    @hook
    def derived(self) -> tuple[Any, Callable[[Any], Any]] | None:
        """The encoder of whose documents' vectors its own are made, and what makes them of any."""
        return None

    # What it computes with.

    @hook
    def device(self) -> Any:
        """Where it computes; None: unknown."""
        return None

    @hook
    def dtype(self) -> Any:
        """Its arithmetic type, empty if unknown; part of the key of cached vectors."""
        return ""

    @hook
    def batch_tokens(self) -> int | None:
        """The tokens of one pass; None: not a setting of this encoder."""
        return None

    @hook
    def backend(self) -> Any:
        """The back end that runs in place of torch; None: torch, or no network at all."""
        return None

    @property
    def engine(self) -> str:
        """The name of ``backend``, empty without one."""
        backend = self.backend
        return "" if backend is None else str(getattr(backend, "name", type(backend).__name__))

    # What it reads of a text.

    @hook
    def tokenizer(self) -> Any:
        """A transformers tokenizer, which passages are cut by; None: they are cut by words."""
        return None

    @hook
    def prompts(self) -> Mapping[str, str]:
        """What is put before a text of each side."""
        return {}

    @hook
    def lengths(self) -> Mapping[str, int]:
        """The most tokens of a text of each side; without a side, its length is unknown."""
        return {}

    @hook
    def fields(self) -> Mapping[str, float] | None:
        """The weights of the fields it reads documents by; None: it reads one text of each."""
        return None

    @hook
    def reads_ids(self) -> bool:
        """Whether it reads documents as mappings of id, title and text."""
        return False

    @hook
    def token_ids(self) -> Callable[[Sequence[str], Side], Sequence[Sequence[int]]] | None:
        """Tokenises texts as for encoding, by which the work ahead is estimated."""
        return None

    @hook
    def map_texts(self) -> Callable[..., None] | None:
        """Passes batches of tokenised texts to a function, see ``TextEncoder.map_texts``."""
        return None

    @hook
    def encode_parts(self) -> Callable[[Sequence[str], Sequence[Sequence[Any]]], Dense] | None:
        """Encodes parts of documents by states that saw the whole, see ``transformer.text_parts``.

        None: it has no such states, or pools other than by their mean.
        """
        return None

    @hook
    def decode_queries(self) -> Callable[[Sequence[str], Any], WeightedNgrams] | None:
        """Writes queries' n-grams with the index that they search; None: ``encode_queries``."""
        return None

    # What sparse vectors mean.

    @hook
    def terms(self) -> Callable[[Sequence[int]], list[str]] | None:
        """Names the columns of sparse vectors; None: columns have numbers only."""
        return None

    # What it knows of its own vectors.

    @hook
    def uncertainty(self) -> Callable[[Any], NDArray[np.float64]] | None:
        """Returns how unsure the vectors of queries are, ``[n]``; None: they do not say."""
        return None

    # What else it can do, each None where it cannot.

    @hook
    def learner(self) -> DocumentLearner | None:
        """Learns from the documents of an index; None: vectors depend on no other."""
        return None

    @hook
    def identifiers(self) -> Identifiers | None:
        """Learns identifiers of documents, and writes them for queries."""
        return None

    @hook
    def token_names(self) -> NamedTokens | None:
        """Names its token vectors; None: they have numbers only."""
        return None

    @hook
    def q_nets(self) -> QNets | None:
        """Makes a network of each query."""
        return None

    @hook
    def fitted_terms(self) -> FittedTerms | None:
        """Has term weights that a collection is counted for."""
        return None

    @hook
    def term_bias(self) -> TermBias | None:
        """Can be given more terms, where training starts with too few."""
        return None

    # What training asks.

    @hook
    def pooled(self) -> Callable[..., Any] | None:
        """Returns the vectors of states that ``hidden`` makes, see ``SpladeEncoder.pooled``."""
        return None

    @hook
    def of_source(self) -> Callable[[str], Any] | None:
        """Returns the encoder of a dataset's texts, by its name; None: one for all.

        What that one tokenises, this one embeds, whatever else is in the batch.
        """
        return None

    @hook
    def with_prompts(self) -> Callable[[Mapping[str, str]], Any] | None:
        """Returns this encoder with other prompts, by side, over the same weights."""
        return None

    @hook
    def head_parameters(self) -> tuple[str, ...]:
        """How the names of parameters begin that ``head_learning_rate`` is for."""
        return ()

    @hook
    def learning_rates(self) -> Mapping[str, float]:
        """The learning rates of parameters that have their own, by name."""
        return {}

    @hook
    def layer_count(self) -> int | None:
        """How many layers ``embed_layers`` knows; None: not known."""
        return None

    @hook
    def embed_layers(self) -> Callable[..., Any] | None:
        """Returns the vectors of several layers, see ``DenseEncoder.embed_layers``.

        The layer 0 is a CSR encoder's: its codes, and after them the dense vectors they are of.
        """
        return None


HOOKS = tuple(name for name, value in vars(EncoderBase).items() if isinstance(value, hook))
# What was a hook of its own before its capability was, and what that capability returns.
UNREAD: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("fits_documents", "fit_documents"), ("learner", "DocumentLearner")),
    **dict.fromkeys(("ids_by", "open_to_all", "known_ids", "assign_ids"),
                    ("identifiers", "Identifiers")),
    **dict.fromkeys(("token_texts", "token_places"), ("token_names", "NamedTokens")),
    **dict.fromkeys(("q_net_shape", "unit_documents"), ("q_nets", "QNets")),
    **dict.fromkeys(("prune_quantile", "needs_term_floors", "needs_idf"),
                    ("fitted_terms", "FittedTerms")),
    **dict.fromkeys(("raises", "raise_bias"), ("term_bias", "TermBias")),
}  # fmt: skip
# Hooks that are a function or None. What has the name of a hook and is none (a number ``terms``, a
# method ``similarity``) is not read.
FUNCTIONS = tuple(
    name
    for name in HOOKS
    if str(vars(EncoderBase)[name].default.__annotations__["return"]).startswith("Callable")
)
_ABSENT = object()


class _Adapted(EncoderBase):
    """Reads the hooks of a user's own encoder, not an ``EncoderBase``, by name."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder

    def __getattribute__(self, name: str) -> Any:
        """Return the encoder's own hook if it has it."""
        if name in HOOKS:
            own = getattr(self._encoder, name, _ABSENT)
            fits = callable(own) if name in FUNCTIONS else not inspect.isroutine(own)
            if fits and own is not _ABSENT:
                return own
        return super().__getattribute__(name)


def hooks_of(encoder: Any) -> EncoderBase:
    """Return an object with every hook of ``encoder``: itself, or a reader of a user's own.

    The hooks are read anew each time, so that the reader may be kept. It is not an encoder: it has
    none of the four methods.
    """
    return encoder if isinstance(encoder, EncoderBase) else _Adapted(encoder)


def check_hooks(encoder: Any, where: str = "encoder") -> None:
    """Raise ``ConfigError`` for a class of one's own with a hook that nothing reads any more."""
    own = set(getattr(encoder, "__dict__", ()))
    for each in type(encoder).__mro__:
        own |= set() if each.__module__.partition(".")[0] == "sluice" else set(vars(each))
    hooks, called = hooks_of(encoder), type(encoder).__name__
    for name, (capability, kind) in UNREAD.items():
        if name in own and getattr(encoder, name, None) and getattr(hooks, capability) is None:
            raise ConfigError(
                f"{where}: {called} has {name} and no {capability}, so nothing would read it; let "
                f"a property {capability} return what has it, see sluice.encoders.encoder.{kind}"
            )
    learner = hooks.learner
    for name in ("fit_in_parts", "add_documents", "remove_documents"):
        if learner is not None and not callable(getattr(learner, name, None)):
            raise ConfigError(
                f"{where}: the learner of {called} has no {name}, see "
                "sluice.encoders.encoder.DocumentLearner"
            )


def encoder_of(encoder: Any, source: str) -> Any:
    """Return the encoder of a dataset's texts: the same, or the part that is for that dataset."""
    of_source = hooks_of(encoder).of_source
    return encoder if of_source is None else of_source(source)


def prompted(encoder: Any, prompts: Mapping[str, str]) -> Any:
    """Return an encoder with these prompts, by side; ``ConfigError`` for one that has its own."""
    if not prompts:
        return encoder
    with_prompts = hooks_of(encoder).with_prompts
    if with_prompts is None:
        raise ConfigError(
            f"prompts: {type(encoder).__name__} has none that a dataset could change; dense and "
            "splade encoders have"
        )
    return with_prompts(prompts)


def encodes(thing: Any) -> bool:
    """Return whether an object turns queries and documents into vectors."""
    sides = ("encode_queries", "encode_documents")
    return all(callable(getattr(thing, side, None)) for side in sides)
