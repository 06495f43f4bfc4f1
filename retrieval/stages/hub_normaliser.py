"""Per-document normalisers against hubs, fitted once to a bank of queries.

Hubs are documents that come up for many queries they do not answer. The inverted softmax divides
a document's exp(beta x score) by what it gets from a bank of queries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.hits import Rows
from sluice.indexing.index import Index
from sluice.indexing.storage.exact_scores import checked_metric
from sluice.retrieval.evaluation.fitted_file import read_fitted, write_fitted
from sluice.retrieval.retrievers.corpus.vectors.index_tasks import holds_tokens

if TYPE_CHECKING:
    from sluice.indexing import AugmentedIndex
    from sluice.retrieval.retrievers.retriever import Retriever


ENTRIES = 1 << 22  # similarities in a block: 16 MiB


def log_normalisers(
    index: Index, bank: Any, beta: float, *, own_rows: Rows | None = None, entries: int = ENTRIES
) -> NDArray[np.float64]:
    """Return log(mean over the bank of exp(beta x s(bank vector, document))) ``[index.rows]``.

    Its exponential divides exp(beta x s) in the inverted softmax. ``bank`` has vectors ``[n,
    width]`` of the index's own kind, dense or sparse; s is the index's metric. With ``own_rows``
    ``[n]`` the bank's vectors are documents, and each is left out of its own normaliser. Rows of
    deleted documents are computed like others. The index is read in blocks of ``entries``
    similarities; cost n x rows products. ``ConfigError`` for an index of passages, one that cannot
    give its vectors back, and a bank that is empty (below two of one's own).
    """
    if index.by_passages:
        raise ConfigError(
            "index: a document with several passages has no single vector to normalise; use a "
            "retriever without passages"
        )
    size = int(bank.shape[0])
    least = 1 if own_rows is None else 2
    if size < least:
        raise ConfigError(
            f"bank: {size} {'vector' if size == 1 else 'vectors'}, expected at least {least}"
        )
    similar = _Similarity(bank, index.metric)
    normalisers = np.empty(index.rows)
    step = max(1, entries // size)
    for start in range(0, index.rows, step):
        rows = np.arange(start, min(start + step, index.rows))
        scaled = similar.to(index.documents(rows)) * np.float32(beta)  # [bank, block]
        counts: Any = size
        if own_rows is not None:
            mine = np.flatnonzero((own_rows >= start) & (own_rows <= rows[-1]))
            scaled[mine, own_rows[mine] - start] = -np.inf
            counts = size - np.bincount(own_rows[mine] - start, minlength=len(rows))
        highest = scaled.max(axis=0)
        np.exp(scaled - highest, out=scaled)
        normalisers[rows] = highest + np.log(scaled.sum(axis=0, dtype=np.float64) / counts)
    return normalisers


class _Similarity:
    """The similarities of a bank with blocks of documents, by metric; sparse is inner product."""

    def __init__(self, bank: Any, metric: str | None) -> None:
        self.metric = "ip" if metric is None else checked_metric(metric)
        self.sparse = bool(sparse.issparse(bank))
        self.bank: Any = self._scaled(bank)

    def to(self, documents: Any) -> NDArray[np.float32]:
        """Return similarities ``[bank, documents]``, float32."""
        if self.sparse:
            wide: Any = sparse.csr_array(documents)
            width = max(self.bank.shape[1], wide.shape[1])
            wide.resize((wide.shape[0], width))
            self.bank.resize((self.bank.shape[0], width))
            product: NDArray[np.float32] = (self.bank @ wide.T).toarray().astype(np.float32)
            return product
        scores: NDArray[np.float32] = self.bank @ self._scaled(documents).T
        if self.metric == "l2":
            scores = 2 * scores - (documents**2).sum(axis=1)
            scores -= (self.bank**2).sum(axis=1)[:, None]
        return scores

    def _scaled(self, vectors: Any) -> Any:
        if self.sparse:
            return vectors.astype(np.float32).tocsr()
        dense = np.asarray(vectors, np.float32)
        if self.metric != "cosine":
            return dense
        lengths = np.linalg.norm(dense, axis=1, keepdims=True)
        return dense / np.where(lengths > 0, lengths, 1)


HEAD = "normaliser.json"
KIND, EARLIER = "normaliser", 1  # the latter: the format of heads without a version
SAMPLED = 1000  # ids of the corpus that tell it from another


class Bank(NamedTuple):
    """The result of one bank: log-normalisers and which documents are hubs, both by row."""

    beta: float
    log_normalisers: NDArray[np.float32]
    hubs: NDArray[np.bool_]


class Normaliser:
    """Log-normalisers of a retriever's documents, from one bank of queries or two banks.

    With the bank of queries alone, the score s of a document g becomes ``s - log Z(g) / beta``, Z
    being the mean of exp(beta s(b, g)) over the bank: in each list the order of the inverted
    softmax (QB-Norm: Bogolin et al., 2022). A second bank, of documents, makes it ``s - (log Z1(g)
    + log Z2(g)) / (beta1 + beta2)``, the order of the product of two (DBNorm: Wang et al., 2023).
    Logarithms are centred over the corpus, so that normalised scores stay on the scale of the
    others.
    """

    def __init__(self, banks: Sequence[Bank], facts: Mapping[str, Any]) -> None:
        self.banks = tuple(banks)
        self.facts = dict(facts)
        self._shifts: dict[tuple[bool, ...], NDArray[np.float32]] = {}

    @classmethod
    def fit(
        cls,
        retriever: Retriever,
        queries: Sequence[str],
        *,
        beta: float = 20.0,
        documents: int = 0,
        document_beta: float | None = None,
        hub_depth: int = 1,
        seed: int = 0,
    ) -> Self:
        """Compute the normalisers of every document from the texts of a bank's queries.

        The queries should be like those to come: a train split's, never the test's own. ``beta``
        is for cosine similarities; scores of another scale need another. ``documents`` is the size
        of the second bank, drawn from the corpus by ``seed`` (0: none); a document is left out of
        its own. Hubs are documents among the first ``hub_depth`` of any of a bank. The cost is a
        product of all documents with the banks, in blocks.
        """
        texts = [text for text in queries if text.strip()]
        if not texts:
            raise ConfigError("bank: no queries in it; expected the texts of a train split")
        for name, value in (("beta", beta), ("document_beta", document_beta)):
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}: {value!r}; expected a number above 0")
        depth = whole_number(hub_depth, "hub_depth", 1)
        bank_size = whole_number(documents, "documents", 0)
        index = retriever.index
        if holds_tokens(index):
            raise ConfigError(
                f"{retriever.name}: holds a vector for each token, and the normaliser is for "
                "single dense or sparse ones"
            )
        if hooks_of(retriever.encoder).similarity == "q_net":
            raise ConfigError(
                f"{retriever.name}: its queries are networks, and the normaliser is for vectors"
            )
        if hooks_of(retriever.encoder).similarity == "attention":
            raise ConfigError(
                f"{retriever.name}: has several vectors a document, and the normaliser is for "
                "single ones"
            )
        if bank_size and hooks_of(retriever.encoder).one_way:
            raise ConfigError(
                f"{retriever.name}: its documents' vectors are of another kind than its queries' "
                "and cannot be a bank; documents: 0"
            )
        if not len(index):
            raise DataError(f"{retriever.name}: has no documents to normalise")
        vectors = retriever.encoder.encode_queries(texts)
        logs = log_normalisers(index, vectors, beta)
        banks = [_bank(index, beta, logs, index.search(vectors, depth).rows)]
        if bank_size:
            live = np.setdiff1d(np.arange(index.rows), retriever.store.deleted)
            chosen = np.random.default_rng(seed).permutation(live)[:bank_size]
            chosen.sort()
            second = beta if document_beta is None else document_beta
            vectors = index.documents(chosen)
            logs = log_normalisers(index, vectors, second, own_rows=chosen)
            rows = index.search(vectors, depth + 1).rows
            rows[rows == chosen[:, None]] = -1  # a document finds itself
            banks.append(_bank(index, second, logs, rows))
        facts = {"queries": len(texts), "documents": bank_size, "seed": seed, "hub_depth": depth}
        return cls(banks, {**facts, "corpus": corpus_of(retriever)})

    def shifts(self, active: Sequence[bool]) -> NDArray[np.float32]:
        """Return what is added to each row's score where these banks are active ``[rows]``."""
        key = tuple(map(bool, active))
        if key not in self._shifts:
            used = [bank for bank, on in zip(self.banks, key, strict=True) if on]
            total = np.zeros(len(self.banks[0].log_normalisers))
            for bank in used:
                total -= bank.log_normalisers
            total /= sum(bank.beta for bank in used) or 1.0
            self._shifts[key] = total.astype(np.float32)
        return self._shifts[key]

    def check(self, retriever: Retriever) -> None:
        """Raise ``ConfigError`` unless it was fitted to this retriever as it is now."""
        if self.facts.get("corpus") != corpus_of(retriever):
            raise ConfigError(
                f"{retriever.name}: the normaliser was fitted to another encoder or to other "
                "documents; fit it again"
            )

    def augmented(self, retriever: Retriever, inner: Index | dict[str, Any]) -> AugmentedIndex:
        """Return ``inner``, an empty index or its spec, filled with the vectors and the normaliser.

        One more dimension has the shift of all banks, so that any index of inner products finds
        what is best after it, in the rows of the retriever; search it with the retriever's query
        vectors. ``ConfigError`` for vectors of another metric, and for deleted documents:
        ``compact`` first.
        """
        from sluice.indexing import AugmentedIndex, DocumentBias

        self.check(retriever)
        source = retriever.index
        if source.metric != "ip" or len(source) != source.rows:
            raise ConfigError(
                f"{retriever.name}: a dense index of metric 'ip' without deleted documents is "
                "needed to put the normalisers into one; rebuild or compact it"
            )
        augmented = AugmentedIndex(inner, DocumentBias(self.shifts([True] * len(self.banks))))
        sample = augmented.training_rows(source.rows)
        if sample:
            rows = np.random.default_rng(0).permutation(source.rows)[:sample]
            augmented.train(source.documents(np.sort(rows)))
        for start in range(0, source.rows, 8192):
            rows = np.arange(start, min(start + 8192, source.rows))
            augmented.add(source.documents(rows))
        augmented.encoder_fingerprint = source.encoder_fingerprint
        return augmented

    def save(self, path: str | Path) -> None:
        """Write the folder ``path``: two ``.npy`` a bank and ``normaliser.json``; in one step."""
        from sluice.indexing.storage.rows import write_array

        with replaced_folder(Path(path), markers=(HEAD,)) as folder:
            for place, bank in enumerate(self.banks):
                logs, hubs = bank.log_normalisers, bank.hubs
                write_array(folder / f"normalisers-{place}.npy", [logs], logs.shape, np.float32)
                write_array(folder / f"hubs-{place}.npy", [hubs], hubs.shape, np.bool_)
            betas = [bank.beta for bank in self.banks]
            write_fitted(folder / HEAD, KIND, {"betas": betas, "facts": self.facts})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Open what ``save`` wrote, memory-mapped; ``IndexFormatError`` for anything else."""
        from sluice.encoders.foundation.disk.arrays import open_array

        folder = Path(path)
        head = read_fitted(
            folder / HEAD, KIND, maker="Normaliser.save", error=IndexFormatError, earlier=EARLIER
        )
        betas = head.get("betas")
        if not betas or not isinstance(betas, list) or not isinstance(head.get("facts"), dict):
            raise IndexFormatError(
                f"{folder / HEAD}: the betas or facts of the normaliser are missing; fit it again"
            )
        banks = []
        for place, beta in enumerate(betas):
            logs = open_array(folder / f"normalisers-{place}.npy", np.float32, (None,))
            hubs = open_array(folder / f"hubs-{place}.npy", np.bool_, logs.shape)
            banks.append(Bank(float(beta), logs, hubs))
        return cls(banks, head["facts"])


def _bank(index: Index, beta: float, logs: NDArray[np.float64], rows: NDArray[Any]) -> Bank:
    hubs = np.zeros(index.rows, np.bool_)
    hubs[rows[rows >= 0]] = True
    return Bank(float(beta), (logs - logs.mean()).astype(np.float32), hubs)


def corpus_of(retriever: Retriever) -> str:
    """Return a fingerprint of a retriever's encoder and rows, and of a sample of their ids.

    Deleting documents leaves it as it is: their rows stay.
    """
    store = retriever.store
    rows = np.unique(np.linspace(0, max(store.rows_total - 1, 0), SAMPLED).astype(np.int64))
    ids: Collection[str] = store.ids(rows) if store.rows_total else []
    return fingerprint_of(str(retriever.encoder.fingerprint), store.rows_total, list(ids))
