"""An encoder behind HTTP: the requests of OpenAI, Cohere and others, and what they cost."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from sluice.encoders.dense.objects.function import Embed, FunctionEncoder
from sluice.encoders.dense.remote.http_json import HttpJson, in_threads
from sluice.encoders.encoder import Dense, Side
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest
from sluice.encoders.foundation.numbers import is_number, whole_number
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.foundation.trust import key_of, refuse_server
from sluice.encoders.model_files.layout import SIDECAR, read_sidecar, write_sidecar
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.model_files.registry import ASKING

Api = Literal["openai", "cohere", "tei"]
APIS: tuple[Api, ...] = ("openai", "cohere", "tei")
RERANKING: tuple[Api, ...] = ("cohere", "tei")
PATHS = {"openai": "/embeddings", "cohere": "/embed", "tei": "/embed"}
RERANK = "/rerank"
SENDING = (
    "api_key_env", "api_key_file", "requests_per_minute", "timeout_s", "retries", "backoff_s",
)  # fmt: skip
LARGEST = 3.4e38  # what float32 holds


class Answer(NamedTuple):
    """What a server returned: numbers in the order of the texts, and what it counts.

    ``rows`` are vectors, or scores. ``tokens`` and ``searches`` are 0 where it does not say.
    """

    rows: list[Any]
    tokens: int
    searches: int


def address(url: str, path: str) -> str:
    """Return where requests go: ``path`` below the server's base, which may name it already."""
    base = url.rstrip("/")
    return base if base.endswith(path) else base + path


def embed_body(
    api: Api, model: str, texts: Sequence[str], side: Side, dim: int | None
) -> dict[str, Any]:
    """Return the request for the vectors of texts."""
    if api == "openai":
        sized = {} if dim is None else {"dimensions": dim}
        return {"model": model, "input": list(texts), "encoding_format": "float", **sized}
    if api == "cohere":
        sized = {} if dim is None else {"output_dimension": dim}
        kind = "search_query" if side == "query" else "search_document"
        return {
            "model": model, "texts": list(texts), "input_type": kind,
            "embedding_types": ["float"], "truncate": "END", **sized,
        }  # fmt: skip
    return {"inputs": list(texts), "normalize": False, "truncate": True}


def rerank_body(api: Api, model: str, query: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the request for the scores of texts for a query."""
    if api == "tei":
        return {"query": query, "texts": list(texts), "raw_scores": False, "truncate": True}
    return {"model": model, "query": query, "documents": list(texts), "top_n": len(texts)}


def vectors_in(api: Api, answer: Any, count: int) -> Answer:
    """Return the vectors of an answer in the order of the texts; ``ValueError`` if it has none."""
    rows = answer
    if api == "openai":
        rows = _by_index(_of(answer, "data"), "embedding", count)
    elif api == "cohere":
        rows = _of(_of(answer, "embeddings"), "float")
    if not isinstance(rows, list) or len(rows) != count:
        raise ValueError(f"{_size(rows)} vectors for {count} texts")
    widths = {len(row) if isinstance(row, list) else 0 for row in rows}
    if len(widths) != 1 or 0 in widths or not all(_is_number(x) for row in rows for x in row):
        raise ValueError("vectors that are not lists of as many finite numbers each")
    return Answer(rows, *_counted(answer))


def scores_in(api: Api, answer: Any, count: int) -> Answer:
    """Return the scores of an answer in the order of the texts; ``ValueError`` if any is missing.

    Others than finite numbers are a ``ValueError`` too.
    """
    rows = answer if api == "tei" else _of(answer, "results")
    scores = _by_index(rows, "score" if api == "tei" else "relevance_score", count)
    if not all(map(_is_number, scores)):
        raise ValueError("a score that is not a finite number")
    return Answer(scores, *_counted(answer))


def _by_index(entries: Any, key: str, count: int) -> list[Any]:
    """Return the values of entries that name the text they are of."""
    found: dict[int, Any] = {}
    for entry in entries if isinstance(entries, list) else []:
        place = entry.get("index") if isinstance(entry, dict) else None
        if isinstance(place, int) and not isinstance(place, bool) and key in entry:
            found[place] = entry[key]
    if sorted(found) != list(range(count)) or len(entries) != count:
        raise ValueError(f"{_size(entries)} entries for {count} texts, each with index and {key}")
    return [found[place] for place in range(count)]


def _of(answer: Any, key: str) -> Any:
    if not isinstance(answer, dict) or key not in answer:
        raise ValueError(f"an answer without {key!r}; is it another api?")
    return answer[key]


def _counted(answer: Any) -> tuple[int, int]:
    """Return the tokens and searches that a server says it counted."""
    facts = answer if isinstance(answer, dict) else {}
    usage, meta = facts.get("usage"), facts.get("meta")
    billed = meta.get("billed_units") if isinstance(meta, dict) else None
    places = [each for each in (usage, billed) if isinstance(each, dict)]
    tokens = [each.get(key) for each in places for key in ("total_tokens", "input_tokens")]
    searches = [each.get("search_units") for each in places]
    return _first_count(tokens), _first_count(searches)


def _first_count(values: Sequence[Any]) -> int:
    good = (int(x) for x in values if _is_number(x) and 0 <= x < 1 << 53)
    return next(good, 0)


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value) and abs(value) <= LARGEST
    except OverflowError:  # a whole number that no float holds
        return False


def _size(value: Any) -> str:
    return str(len(value)) if isinstance(value, list) else "no"


@dataclass
class Usage:
    """What was asked since the object was made; ``cost`` is in the currency of the prices.

    Tokens and searches are as the server counts them: 0 where it does not say. Safe in threads.
    """

    per_million_tokens: float = 0.0
    per_thousand_searches: float = 0.0
    requests: int = 0
    texts: int = 0
    tokens: int = 0
    searches: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, texts: int, tokens: int, searches: int = 0) -> None:
        """Count one request that was answered."""
        with self._lock:
            self.requests += 1
            self.texts += texts
            self.tokens += tokens
            self.searches += searches

    @property
    def cost(self) -> float:
        """What it cost so far."""
        tokens = self.tokens * self.per_million_tokens / 1e6
        return tokens + self.searches * self.per_thousand_searches / 1e3

    def __str__(self) -> str:
        parts = [f"{self.requests:,} requests", f"{self.texts:,} texts"]
        parts += [f"{self.tokens:,} tokens"] if self.tokens else []
        parts += [f"{self.searches:,} searches"] if self.searches else []
        priced = self.per_million_tokens or self.per_thousand_searches
        return ", ".join([*parts, f"cost {self.cost:.6g}"] if priced else parts)


class HttpService:
    """What asks a model behind HTTP: the settings that an encoder and a reranker there share."""

    url: str
    model: str
    api: Api
    usage: Usage

    def connect(self, given: Mapping[str, Any], known: Sequence[Api], path: str, per: str) -> None:
        """Take the arguments ``given``; ``ConfigError`` for those that cannot be.

        ``known`` are the apis, requests go to ``path``, the price is that of ``per``.
        """
        self._options = {k: v for k, v in given.items() if k not in ("self", "__class__")}
        api, url, model, price = (given[name] for name in ("api", "url", "model", "price"))
        if api not in known:
            other = "; it has no reranker" if api in APIS else suggest(api, known)
            raise ConfigError(f"api: {api!r}; known: {', '.join(known)}{other}")
        if api != "tei" and not model.strip():
            raise ConfigError(f"model: empty; expected the name that {url} knows it by")
        if api == "tei" and model:
            raise ConfigError("model: api tei serves one model, which it is not asked for by name")
        self.max_characters: int | None = given["max_characters"]
        if self.max_characters is not None:
            whole_number(self.max_characters, "max_characters", 1)
        if not is_number(price) or price < 0:
            raise ConfigError(f"price: {price!r}; expected 0 or more, for {per}")
        self.url, self.model, self.api = url.rstrip("/"), model, api
        self.concurrency = whole_number(given["concurrency"], "concurrency", 1, 64)
        sending = {name: given[name] for name in SENDING}
        self.endpoint = HttpJson(address(self.url, path), **sending)

    def rows(
        self, body: Any, read: Callable[..., Answer], texts: int, stop: threading.Event | None
    ) -> list[Any]:
        """Return what a request of so many texts is answered, as ``read`` finds it."""
        answer = self.endpoint.post(body, lambda said: read(self.api, said, texts), stop)
        self.usage.add(texts, answer.tokens, answer.searches)
        return list(answer.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes one of the same settings, whose usage begins at nothing."""
        return partial(type(self), **self._options), ()


log = logging.getLogger("sluice")

# What decides the vectors, and is saved: never a key, nor where it is.
NOTED = (
    "url", "model", "api", "dim", "normalize", "query_prompt", "document_prompt", "max_characters",
)  # fmt: skip


class HttpEncoder(HttpService, FunctionEncoder):
    """Dense vectors from a server, asked with up to ``batch_size`` texts a request.

    ``url`` is the server's base, as ``https://api.openai.com/v1``; ``api`` its shape: ``openai``,
    ``cohere`` (version 2) or ``tei`` (text-embeddings-inference, which knows no ``model``). ``dim``
    asks for so many dimensions. Prompts are put before texts (Cohere takes the side too).
    Texts beyond ``max_characters`` are cut; what the model itself cannot read of them, Cohere and
    TEI cut, others may refuse.

    ``concurrency`` requests are under way at a time; failed ones are sent again, see ``HttpJson``.
    An answer of other than one finite vector a text counts as failed. ``usage`` counts requests,
    texts and tokens; ``price`` is that of a million tokens.

    The fingerprint holds address, model and settings: the server's weights cannot be hashed. A
    saved encoder has probe texts, by which `sluice verify` sees that the server answers otherwise.
    """

    kind = "http"

    def __init__(
        self,
        url: Annotated[str, "The base of an OpenAI-compatible endpoint, such as https://host/v1."],
        model: Annotated[
            str, "The name that the server knows the model by; api tei takes none."
        ] = "",
        *,
        api: Annotated[
            Api,
            "The shape of the server's requests: openai, cohere or tei "
            "(text-embeddings-inference).",
        ] = "openai",
        dim: Annotated[
            int | None, "Asks the server for vectors of so many dimensions; left out, its own."
        ] = None,
        normalize: bool = True,
        query_prompt: str = "",
        document_prompt: str = "",
        max_characters: Annotated[
            int | None, "Texts beyond so many characters are cut before they are sent."
        ] = None,
        batch_size: Annotated[int, "Texts of a request, at most."] = 64,
        concurrency: int = 4,
        requests_per_minute: Annotated[
            float | None, "Requests begin so far apart; left out, at once."
        ] = None,
        api_key_env: str | None = None,
        api_key_file: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 4,
        backoff_s: float = 1.0,
        price: Annotated[float, "What a million tokens cost, by which the cost is counted."] = 0.0,
    ) -> None:
        self.connect(locals(), APIS, PATHS[api] if api in APIS else "", "a million tokens")
        if api == "tei" and dim is not None:
            raise ConfigError("dim: api tei gives vectors of the model's own width; leave it out")
        if not isinstance(query_prompt, str) or not isinstance(document_prompt, str):
            raise ConfigError("query_prompt, document_prompt: expected texts")
        if not isinstance(normalize, bool):
            raise ConfigError(f"normalize: {normalize!r}; expected true or false")
        self.prompts: dict[str, str] = {"query": query_prompt, "document": document_prompt}
        self.usage = Usage(per_million_tokens=price)
        self._asked_dim = dim
        super().__init__(
            partial(self._ask, "document"),
            queries=partial(self._ask, "query"),
            name=f"{self.url} {model}".strip(),
            dim=dim,
            batch_size=batch_size,
            normalize=normalize,
            retries=0,  # its requests are repeated one by one
        )

    @property
    def fingerprint(self) -> str:
        """A hash of address, model and settings."""
        return fingerprint_of("sluice.http", self._noted())

    def encode_documents(self, texts: Sequence[str]) -> Dense | TokenVectors:
        """Return the documents' vectors, float32 ``[n, dim]``, in input order."""
        vectors = super().encode_documents(texts)
        log.info("%s: so far %s", self.endpoint.url, self.usage)
        return vectors

    def _noted(self) -> dict[str, Any]:
        facts = {
            "url": self.url, "model": self.model, "api": self.api, "dim": self._asked_dim,
            "normalize": self.normalize, "max_characters": self.max_characters,
            **{f"{side}_prompt": prompt for side, prompt in self.prompts.items()},
        }  # fmt: skip
        return {name: facts[name] for name in NOTED}

    def _ask(self, side: Side, texts: list[str], stop: threading.Event | None = None) -> list[Any]:
        """Return the vectors of the texts of one request."""
        sent = [(self.prompts[side] + text)[: self.max_characters] for text in texts]
        body = embed_body(self.api, self.model, sent, side, self._asked_dim)
        return self.rows(body, vectors_in, len(texts), stop)

    def _each(
        self, function: Embed, batches: Sequence[list[str]]
    ) -> Iterator[Dense | TokenVectors]:
        """Yield the vectors of each batch, in order; an error ends the other requests."""
        if len(batches) < 2:
            yield from super()._each(function, batches)
            return
        asked: Any = function  # one of its own

        def called(batch: list[str], stop: threading.Event) -> Dense | TokenVectors:
            return self._called(partial(asked, stop=stop), batch)

        yield from in_threads(called, [(batch,) for batch in batches], self.concurrency)

    def save_pretrained(self, path: str | Path) -> None:
        """Write address, model and settings as a model folder, without the key."""
        with replaced_folder(Path(path)) as folder:
            asking = {name: self._options[name] for name in ASKING}
            write_sidecar(folder, {"type": self.kind, **self._noted(), **asking})
            write_probes(folder, self, exact=False)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        allow: Collection[str] = (),
        asking: Mapping[str, Any] | None = None,
    ) -> HttpEncoder:
        """Open a folder that ``save_pretrained`` wrote, if ``allow`` names its server.

        ``allow=["https://host/v1=VARIABLE"]`` also says which key it is sent. ``ConfigError``
        without it: a folder that names a server reaches none. ``asking`` are the
        settings of requests (``timeout_s``, ``batch_size``, ...), in place of those saved.
        """
        folder = Path(model)
        facts = read_sidecar(folder)
        where = str(folder / SIDECAR)
        if facts.get("type") != cls.kind or not isinstance(facts.get("url"), str):
            raise ModelError(f"{where}: not of an encoder behind HTTP; expected type http and url")
        key = refuse_server(str(facts["url"]), f"{where}: url", allow)
        try:
            noted = {name: facts[name] for name in NOTED if name in facts}
            saved = {name: facts[name] for name in ASKING if name in facts}
            return cls(**noted, **(saved if asking is None else asking), **key_of(key))
        except (TypeError, AttributeError) as error:
            raise ModelError(f"{where}: not as Sluice writes it: {error}") from None

    def __repr__(self) -> str:
        return f"HttpEncoder({self.endpoint.url!r}, {self.model!r})"
