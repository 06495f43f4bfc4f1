"""An encoder of a function that turns texts into vectors: an API, a model of any library."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sluice.encoders.dense.objects.function_identity import identity_of, name_of
from sluice.encoders.encoder import Dense, EncoderBase
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError, SluiceError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.model_files.layout import read_sidecar, write_sidecar

log = logging.getLogger("sluice")

Embed = Callable[[list[str]], Any]  # texts -> vectors [n, dim]: array, tensor, lists of numbers

PROBE = "text"  # encoded once where the width is asked for before any text
# A second call cannot help against these; whatever else a function raises may be the network's.
NOT_RETRIED = (
    TypeError, ValueError, LookupError, AttributeError, NameError, ArithmeticError, AssertionError,
    ImportError, NotImplementedError, MemoryError,
)  # fmt: skip


class FunctionEncoder(EncoderBase):
    """Dense vectors from ``embed(texts)``, a function of a list of texts.

    It is called with 1 to ``batch_size`` texts, none of them blank (blank texts get zeros), and
    returns their vectors ``[n, dim]``: an array, a tensor or lists of numbers; or one vector for
    each token, as ``TokenVectors``, and then texts are compared by MaxSim. ``queries`` is another
    function for the queries. With ``normalize`` vectors get length 1, and the similarity is the
    cosine; without, the vectors are as the function gave them, and it is the dot product.

    What the function raises is tried ``retries`` times again, after ``wait`` seconds, then twice as
    many and so on, unless it is a mistake of the program (``TypeError``, ``ValueError``, ...); then
    it is a ``ModelError``.

    The fingerprint, by which an index knows its encoder, is that of ``name`` (say the model and its
    version, as in ``"openai/text-embedding-3-small"``). Without a name it is that of the function's
    own qualified name and source text, and of the values it holds: a partial's arguments, a
    closure, the attributes of a method's object. Where one of these is a client, a model or the
    like, reading the fingerprint is a ``ConfigError`` that asks for a name; what the function reads
    elsewhere is not seen. The function is not saved: give it again to
    ``Retriever.open(path, encoder=...)``.
    """

    kind = "function"

    def __init__(
        self,
        embed: Embed,
        *,
        queries: Embed | None = None,
        name: str = "",
        dim: int | None = None,
        batch_size: int = 64,
        normalize: bool = True,
        retries: int = 2,
        wait: float = 1.0,
    ) -> None:
        for function in (embed, queries):
            if function is not None and not callable(function):
                raise ConfigError(
                    f"FunctionEncoder: {function!r:.60} is a {type(function).__name__}; expected a "
                    "function of a list of texts that returns their vectors"
                )
        self.embed, self.queries = embed, queries
        self.name = name
        self.dim: int | None = None if dim is None else whole_number(dim, "dim", 1)
        self.tokens: bool | None = None  # whether it gives a vector for each token; None: not known
        self.batch_size = whole_number(batch_size, "batch_size", 1)
        self.normalize: bool = normalize
        self.retries = whole_number(retries, "retries", 0)
        self.wait = wait
        self._fingerprint = ""

    @property
    def similarity(self) -> Literal["cosine", "dot", "max_sim"]:
        """MaxSim once token vectors were seen; the cosine of normalised vectors, else the dot."""
        if self.tokens:
            return "max_sim"
        return "cosine" if self.normalize else "dot"

    @property
    def fingerprint(self) -> str:
        """A hash of the name, or without one of the functions' sources and values."""
        if not self._fingerprint:
            functions = [each for each in (self.embed, self.queries) if each is not None]
            identity = [self.name] if self.name else [identity_of(each) for each in functions]
            self._fingerprint = fingerprint_of("sluice.function", identity, self.normalize)
        return self._fingerprint

    def encode_queries(self, texts: Sequence[str]) -> Dense | TokenVectors:
        """Return the queries' vectors, float32 ``[n, dim]``, in input order."""
        return self._encoded(self.queries or self.embed, texts)

    def encode_documents(self, texts: Sequence[str]) -> Dense | TokenVectors:
        """Return the documents' vectors, float32 ``[n, dim]``, in input order."""
        return self._encoded(self.embed, texts)

    def _encoded(self, function: Embed, texts: Sequence[str]) -> Dense | TokenVectors:
        if isinstance(texts, str):
            raise DataError("texts: a single str; expected several texts: put it into a list")
        full = [place for place, text in enumerate(texts) if text.strip()]
        parts: list[Dense | TokenVectors] = []
        show = len(full) > 8 * self.batch_size
        with progress(f"encode by {name_of(function)}", len(full), "texts", show=show) as advance:
            batches = [
                [texts[place] for place in full[start : start + self.batch_size]]
                for start in range(0, len(full), self.batch_size)
            ]
            for part in self._each(function, batches):
                parts.append(part)
                advance(len(part))
        if self.dim is None:
            self._called(function, [PROBE])
        width = int(self.dim or 0)
        if self.tokens:
            several: Any = parts  # all of one kind: see _checked
            return _spread(TokenVectors.joined(several, width), full, len(texts))
        vectors = np.zeros((len(texts), width), np.float32)
        if parts:
            single: Any = parts
            vectors[full] = np.concatenate(single)
        return vectors

    def _each(
        self, function: Embed, batches: Sequence[list[str]]
    ) -> Iterator[Dense | TokenVectors]:
        """Yield the vectors of each batch, in order."""
        for batch in batches:
            yield self._called(function, batch)

    def _called(self, function: Embed, batch: list[str]) -> Dense | TokenVectors:
        """Return the vectors of 1 to ``batch_size`` texts, and learn their width."""
        for attempt in range(self.retries + 1):
            try:
                returned = function(list(batch))
                break
            except SluiceError:
                raise
            except Exception as error:
                said = f"{name_of(function)}: {type(error).__name__} ({error})"
                if attempt == self.retries or isinstance(error, NOT_RETRIED):
                    raise ModelError(
                        f"{said} for {len(batch)} texts, the first {batch[0]!r:.60}"
                    ) from error
                seconds = self.wait * 2**attempt
                log.warning("%s; called again in %g s", said, seconds)
                time.sleep(seconds)
        name, ragged = name_of(function), isinstance(returned, TokenVectors)
        if self.tokens not in (None, ragged):
            raise DataError(
                f"{name}: returned {type(returned).__name__}, and vectors of another kind before; "
                "expected TokenVectors of all texts, or of none"
            )
        self.tokens = ragged
        if isinstance(returned, TokenVectors):
            return self._token_vectors(returned, len(batch), name)
        vectors = self._checked(returned, len(batch), name)
        self.dim = vectors.shape[1]
        return _unit(vectors) if self.normalize else vectors

    def _token_vectors(self, returned: TokenVectors, count: int, name: str) -> TokenVectors:
        width = self.dim or returned.dim
        if len(returned) != count or returned.dim != width:
            raise DataError(
                f"{name}: returned the token vectors of {len(returned):,} texts, {returned.dim} "
                f"wide, for {count:,} texts; expected {count:,}, {width} wide"
            )
        self.dim = width
        values: Any = _finite(returned.values, name)
        return TokenVectors(_unit(values) if self.normalize else values, returned.bounds)

    def _checked(self, returned: Any, count: int, name: str) -> Dense:
        if inspect.iscoroutine(returned):
            returned.close()
            raise ConfigError(
                f"{name}: is an async function; expected one that returns vectors, such as "
                "lambda texts: asyncio.run(embed(texts))"
            )
        if hasattr(returned, "detach"):
            returned = returned.detach().cpu().float().numpy()
        try:
            with np.errstate(over="ignore"):
                vectors: Dense = np.asarray(returned, np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{name}: returned {type(returned).__name__}, which is not an array of numbers "
                f"({error}); expected a vector for each text"
            ) from None
        width = "dim" if self.dim is None else self.dim
        if vectors.ndim != 2 or len(vectors) != count or vectors.shape[1] != (self.dim or -1):
            if vectors.ndim == 2 and len(vectors) == count and self.dim is None and vectors.size:
                return _finite(vectors, name)
            raise DataError(
                f"{name}: returned shape {vectors.shape} for {count} texts, expected "
                f"[{count}, {width}]"
            )
        return _finite(vectors, name)

    def save_pretrained(self, path: str | Path) -> None:
        """Write the name, width and fingerprint as a model folder; the function is not saved."""
        with replaced_folder(Path(path)) as folder:
            facts = {
                "type": self.kind, "name": self.name, "dim": self.dim, "normalize": self.normalize,
                "function": name_of(self.embed), "fingerprint": self.fingerprint,
                **({"tokens": True} if self.tokens else {}),
            }  # fmt: skip
            write_sidecar(folder, facts)

    @classmethod
    def from_pretrained(cls, model: str | Path) -> FunctionEncoder:
        """Load a folder that ``save_pretrained`` wrote; encoding is a ``ModelError`` until then."""
        facts = read_sidecar(Path(model))
        function, name = str(facts.get("function")), str(facts.get("name") or "")

        def missing(texts: list[str]) -> Any:
            raise ModelError(
                f"{function}: this function made the vectors, and functions are not saved; open "
                "the retriever with it: Retriever.open(path, encoder=FUNCTION)"
            )

        missing.__qualname__ = function
        encoder = cls(missing, name=name, normalize=bool(facts.get("normalize")), retries=0)
        encoder.dim, encoder.tokens = facts.get("dim"), facts.get("tokens") or None
        encoder._fingerprint = str(facts.get("fingerprint"))
        return encoder

    def of(self, embed: Embed) -> FunctionEncoder:
        """Return the encoder with its function, under the name that was saved."""
        return FunctionEncoder(embed, name=self.name, dim=self.dim, normalize=self.normalize)

    def __repr__(self) -> str:
        width = "" if self.dim is None else f", dim={self.dim}"
        return f"FunctionEncoder({self.name or name_of(self.embed)!r}{width})"


def _unit(vectors: Dense) -> Dense:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Dense = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return unit


def _spread(vectors: TokenVectors, places: list[int], count: int) -> TokenVectors:
    """Return the vectors of ``count`` texts, those at ``places`` given; the others have none."""
    lengths = np.zeros(count, np.int64)
    lengths[places] = vectors.lengths
    return TokenVectors(vectors.values, np.concatenate(([0], np.cumsum(lengths))))


def _finite(vectors: Dense, name: str) -> Dense:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise DataError(f"{name}: vector {bad[0]} is not finite in float32")
    return vectors
