"""Tokenises texts in bulk and ahead of the model, and batches them by length."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError, ModelError

Ids = NDArray[np.int32]
Item = TypeVar("Item")

FIRST_CHUNK = 2_048  # texts tokenised before the model starts
CHUNK = 20_000  # texts tokenised and sorted together: bounds memory, and lengths are alike
PORTION = 4_000_000  # characters tokenised at a time
_TOKENIZING = threading.Lock()  # not an encoder's own: encoders may share a tokenizer


class Tokens(NamedTuple):
    """The token ids of texts, and their segments if requested."""

    ids: list[Ids]
    types: list[Ids] | None


class TokenBatch(NamedTuple):
    """Texts for one pass through a model, the longest first; each has tokens.

    ``rows`` int64 ``[texts]`` are their places in the input.
    """

    rows: NDArray[np.int64]
    ids: list[Ids]
    types: list[Ids] | None

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [len(text) for text in self.ids]

    def parts(self, most: int) -> Iterator[TokenBatch]:
        """Yield the batch in parts of at most ``most`` texts."""
        for start in range(0, len(self.ids), most):
            part = slice(start, start + most)
            types = None if self.types is None else self.types[part]
            yield TokenBatch(self.rows[part], self.ids[part], types)


def check_texts(texts: Sequence[str]) -> None:
    """Raise ``DataError`` for a single text, ``ModelError`` if one of several is not a text."""
    if isinstance(texts, str):
        raise DataError("texts: a single str; expected several texts: put it into a list")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ModelError(f"text {number} is a {type(text).__name__}, expected a string")


def tokenized(
    tokenizer: Any, *texts: Sequence[str], length: int | None, types: bool = False
) -> Tokens:
    """Tokenise texts, or pairs of them, with special tokens, cut at ``length``.

    Safe in threads: a fast tokenizer keeps the length between setting it and using it. Offsets,
    which are not needed here, are not computed (``encode_batch_fast``).
    """
    if not len(texts[0]):  # which may be an array
        return Tokens([], [] if types else None)
    with _TOKENIZING:
        if not _is_plain(tokenizer):
            encoded = tokenizer(
                *(list(part) for part in texts),
                truncation=length is not None,
                max_length=length,
                return_attention_mask=False,
                return_token_type_ids=types,
            )
            ids = [np.asarray(text, np.int32) for text in encoded["input_ids"]]
            segments = encoded.get("token_type_ids") if types else None
            return Tokens(ids, segments and [np.asarray(text, np.int32) for text in segments])
        backend = tokenizer.backend_tokenizer
        backend.no_padding()
        if length is None:
            backend.no_truncation()
        else:
            backend.enable_truncation(length, direction=tokenizer.truncation_side)
        if backend.encode_special_tokens != tokenizer.split_special_tokens:
            backend.encode_special_tokens = tokenizer.split_special_tokens
        ids, segments = list[Ids](), list[Ids]()
        for part in _portions(list(zip(*texts, strict=True))):
            for encoding in _encoded(backend, part):
                ids.append(np.asarray(encoding.ids, np.int32))
                if types:
                    segments.append(np.asarray(encoding.type_ids, np.int32))
    return Tokens(ids, segments if types else None)


def _portions(texts: Sequence[tuple[str, ...]]) -> Iterator[Sequence[tuple[str, ...]]]:
    """Yield neighbouring texts of ``PORTION`` characters together.

    A token takes 64 bytes until texts are cut, so that long texts would fill the memory.
    """
    start = size = 0
    for stop, parts in enumerate(texts):
        size += sum(map(len, parts))
        if size >= PORTION:
            yield texts[start : stop + 1]
            start, size = stop + 1, 0
    yield texts[start:]


def _encoded(backend: Any, texts: Sequence[tuple[str, ...]]) -> Any:
    """Return a fast tokenizer's encodings of texts, or pairs of them."""
    inputs = [parts[0] if len(parts) == 1 else parts for parts in texts]
    try:
        return backend.encode_batch_fast(inputs)
    except TypeError:  # a lone surrogate, as JSON's escapes may make
        clean = [tuple(map(_without_surrogates, parts)) for parts in texts]
        return backend.encode_batch_fast([p[0] if len(p) == 1 else p for p in clean])


def _without_surrogates(text: str) -> str:
    """Return a text with the replacement character for lone surrogates."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_plain(tokenizer: Any) -> bool:
    """Return whether calling the tokenizer does no more than its fast backend does."""
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    kind = type(tokenizer)
    return (
        isinstance(tokenizer, TokenizersBackend)
        and kind._encode_plus is TokenizersBackend._encode_plus
        and kind.__call__ is TokenizersBackend.__call__
    )


def tokenizer_state(tokenizer: Any) -> Any:
    """Return what decides a tokenizer's ids, as JSON-able data."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return sorted(tokenizer.get_vocab().items())
    state = json.loads(backend.to_str())
    # Truncation and padding are left over from calls, and not part of the tokenizer.
    own = {key: value for key, value in state.items() if key not in ("truncation", "padding")}
    usual = {"truncation_side": "right", "split_special_tokens": False}
    options = {name: getattr(tokenizer, name, value) for name, value in usual.items()}
    return own if options == usual else {**own, **options}


def token_batches(tokens: Tokens, budget: int, *, padded: bool) -> Iterator[TokenBatch]:
    """Yield batches of texts of similar length, of at most ``budget`` tokens or one text.

    ``padded`` also counts the padding to the longest. The batch of the longest texts comes first,
    so that too little memory shows at once; the others are shuffled, so that the time left can be
    estimated. Texts without tokens are left out.
    """
    lengths = np.fromiter((len(text) for text in tokens.ids), np.int64, len(tokens.ids))
    order = np.argsort(-lengths, kind="stable")
    order = order[: np.count_nonzero(lengths)]
    sizes = lengths[order]
    starts = [0]
    ends = np.cumsum(sizes)
    while starts[-1] < len(order):
        first = starts[-1]
        if padded:
            fitting = budget // int(sizes[first])
        else:
            fitting = int(np.searchsorted(ends, ends[first] - sizes[first] + budget, "right"))
            fitting -= first
        starts.append(min(first + max(1, fitting), len(order)))
    pairs = list(itertools.pairwise(starts))
    random.Random(len(pairs)).shuffle(rest := pairs[1:])
    for start, stop in pairs[:1] + rest:
        rows = order[start:stop]
        types = None if tokens.types is None else [tokens.types[row] for row in rows]
        yield TokenBatch(rows, [tokens.ids[row] for row in rows], types)


def chunks(count: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of chunks of ``count`` texts, a small one first to start soon."""
    start, size = 0, FIRST_CHUNK
    while start < count:
        yield start, min(count, start + size)
        start, size = start + size, min(2 * size, CHUNK)


def ahead(make: Callable[[Any], Item], arguments: Iterable[Any]) -> Iterator[Item]:
    """Yield ``make(argument)`` for each argument, while a thread computes the next."""
    waiting = iter(arguments)
    first = next(waiting, None)
    if first is None:
        return
    ready = make(first)
    with ThreadPoolExecutor(1, thread_name_prefix="sluice-tokens") as pool:
        for argument in waiting:
            coming = pool.submit(make, argument)
            yield ready
            ready = coming.result()
        yield ready
