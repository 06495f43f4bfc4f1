"""The requests that servers of vectors and of scores take, and how their answers are read.

Three shapes, which most servers speak: OpenAI's (also vLLM, Ollama, llama.cpp, LiteLLM), Cohere's
(its ``/rerank`` also Jina, vLLM, Infinity), and that of Hugging Face's text-embeddings-inference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from sluice.encoders.encoder import Side
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import is_number, whole_number

Api = Literal["openai", "cohere", "tei"]
APIS: tuple[Api, ...] = ("openai", "cohere", "tei")
RERANKING: tuple[Api, ...] = ("cohere", "tei")
PATHS = {"openai": "/embeddings", "cohere": "/embed", "tei": "/embed"}
RERANK = "/rerank"
LARGEST = 3.4e38  # what float32 holds


class Answer(NamedTuple):
    """What a server returned: numbers in the order of the texts, and what it counts.

    ``rows`` are vectors, or scores. ``tokens`` and ``searches`` are 0 where it does not say.
    """

    rows: list[Any]
    tokens: int
    searches: int


def check_service(
    api: str,
    known: Sequence[Api],
    url: str,
    model: str,
    *,
    max_characters: int | None,
    price: float,
    priced: str,
) -> None:
    """Raise ``ConfigError`` for an unknown api, a model's name that it needs or has no use for.

    And for a length that is not a whole number, or a ``price`` below 0; ``priced`` is what for.
    """
    if api not in known:
        other = "; it has no reranker" if api in APIS else suggest(api, known)
        raise ConfigError(f"api: {api!r}; known: {', '.join(known)}{other}")
    if api != "tei" and not model.strip():
        raise ConfigError(f"model: empty; expected the name that {url} knows it by")
    if api == "tei" and model:
        raise ConfigError("model: api tei serves one model, which it is not asked for by name")
    if max_characters is not None:
        whole_number(max_characters, "max_characters", 1)
    if not is_number(price) or price < 0:
        raise ConfigError(f"price: {price!r}; expected 0 or more, for {priced}")


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
