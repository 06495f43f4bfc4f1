"""Tokenises texts in bulk and ahead of the model, by length; ends them with the end token."""

from __future__ import annotations

import contextvars
import itertools
import json
import logging
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.foundation.tokens import TokenCounts, is_counting
from sluice.encoders.model_files.layout import read_object, transformer_folder

log = logging.getLogger("sluice")


def ends_specially(tokenizer: Any) -> bool:
    """Return whether a tokenizer puts a special token at the end of a text."""
    ids = tokenizer("a", verbose=False)["input_ids"]
    # "a" itself may be the unknown token, which is special too
    own = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    begins_only = bool(own) and ids[-len(own) :] == own
    return bool(ids) and not begins_only and ids[-1] in tokenizer.all_special_ids


def end_texts(tokenizer: Any, wanted: bool | None, folder: Path) -> None:
    """Make a tokenizer end texts with the end-of-text token where ``wanted``.

    One that does so already is left as it is, with a warning where False was asked for. None is
    what ``tokenizer_config.json`` says (``add_eos_token``, which transformers 5 does not read),
    else no, with a warning. Raises ``ConfigError`` for a tokenizer that has no such token or cannot
    append it.
    """
    if wanted is not None and type(wanted) is not bool:
        raise ConfigError(f"append_eos: {wanted!r}, expected true or false")
    if ends_specially(tokenizer):
        if wanted is False:
            log.warning(
                "%s: append_eos: false, but its tokenizer ends every text with a special token by "
                "itself, which stays; leave append_eos out", folder,
            )  # fmt: skip
        return
    if wanted is None:
        noted = read_object(transformer_folder(folder) / "tokenizer_config.json")
        wanted = noted.get("add_eos_token") is True or None
    if wanted is None:
        log.warning(
            "%s: pooling: last takes the state of a text's last token, which its tokenizer does "
            "not make the end-of-text token; append_eos: true adds it as most such models were "
            "trained with it, false leaves texts as they are", folder,
        )  # fmt: skip
    if not wanted:
        return
    if tokenizer.eos_token is None:
        raise ConfigError(f"append_eos: true, and the tokenizer of {folder} has no eos_token")
    _append(tokenizer)
    if not ends_specially(tokenizer):
        raise ConfigError(
            f"append_eos: true, but a {type(tokenizer).__name__} cannot append a token; leave it "
            "out"
        )


def _append(tokenizer: Any) -> None:
    from tokenizers.processors import Sequence, TemplateProcessing

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return
    end = TemplateProcessing(
        single=f"$A {tokenizer.eos_token}",
        pair=f"$A {tokenizer.eos_token} $B:1 {tokenizer.eos_token}:1",
        special_tokens=[(tokenizer.eos_token, tokenizer.eos_token_id)],
    )
    before = backend.post_processor
    backend.post_processor = end if before is None else Sequence([before, end])


Ids = NDArray[np.int32]
Item = TypeVar("Item")

FIRST_CHUNK = 2_048  # texts tokenised before the model starts
CHUNK = 20_000  # texts tokenised and sorted together: bounds memory, and lengths are alike
EXACT_CUTS = 256  # texts of one call whose tokens beyond the length are counted
CUTS_COUNTED = 16  # of the texts after those, one is counted
PORTION = 4_000_000  # characters tokenised at a time
_TOKENIZING = threading.Lock()  # not an encoder's own: encoders may share a tokenizer


class Tokens(NamedTuple):
    """The token ids of texts, their segments if requested, and how many tokens are cut off.

    ``counts`` are None where nobody counts (``counting_tokens``), and of a tokenizer that does not
    tell.
    """

    ids: list[Ids]
    types: list[Ids] | None
    counts: TokenCounts | None = None


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
        if not is_plain(tokenizer):
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
        backend = _set_up(tokenizer, length)
        ids, segments = list[Ids](), list[Ids]()
        cuts = _Cuts(length, backend, pairs=len(texts) > 1) if is_counting() else None
        for part in _portions(list(zip(*texts, strict=True))):
            for encoding in _encoded(backend, part):
                ids.append(np.asarray(encoding.ids, np.int32))
                if types:
                    segments.append(np.asarray(encoding.type_ids, np.int32))
                if cuts is not None:
                    cuts.see(encoding, len(ids[-1]))
    counts = None if cuts is None else cuts.counts(ids, texts[-1])
    return Tokens(ids, segments if types else None, counts)


def token_offsets(
    tokenizer: Any, texts: Sequence[str], *, length: int | None
) -> list[list[tuple[int, int]]]:
    """Return where the tokens of ``tokenized`` stand in texts: characters [start, end).

    Special tokens, which stand nowhere, have (0, 0), and so have all of a tokenizer that does not
    tell.
    """
    if not is_plain(tokenizer):
        return [[(0, 0)] * len(ids) for ids in tokenized(tokenizer, texts, length=length).ids]
    clean = [_without_surrogates(text) for text in texts]
    with _TOKENIZING:
        encodings = _set_up(tokenizer, length).encode_batch(clean)
    return [list(encoding.offsets) for encoding in encodings]


def _set_up(tokenizer: Any, length: int | None) -> Any:
    """Return a fast tokenizer's backend, which cuts at ``length`` until it is set up again."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    if length is None:
        backend.no_truncation()
    else:
        backend.enable_truncation(length, direction=tokenizer.truncation_side)
    if backend.encode_special_tokens != tokenizer.split_special_tokens:
        backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


class _Cuts:
    """Counts the tokens that are cut off from texts, or pairs of them, at ``length``.

    The tokenizer has them, but copies them, which costs a third of tokenising. So they are counted
    for the first ``EXACT_CUTS`` texts that fill the length, then for every ``CUTS_COUNTED``-th; for
    the others they are estimated from characters.
    """

    def __init__(self, length: int | None, backend: Any, *, pairs: bool) -> None:
        self._length, self._pairs = length, pairs
        self._special = backend.num_special_tokens_to_add(is_pair=False)
        self._full = list[int]()
        self._filled = list[int]()  # places of the texts that fill the length
        self._counted = list[int]()

    def see(self, encoding: Any, read: int) -> None:
        """Count the next text, of which ``read`` tokens are left."""
        place, left = len(self._full), 0
        if self._length is not None and read >= self._length:
            if len(self._filled) < EXACT_CUTS or len(self._filled) % CUTS_COUNTED == 0:
                rests = encoding.overflowing
                left = sum(max(0, len(rest) - self._special) for rest in rests)
                left = min(left, 1) if self._pairs else left  # rests of pairs are combinations
                self._counted.append(place)
            self._filled.append(place)
        self._full.append(read + left)

    def counts(self, ids: Sequence[Ids], texts: Sequence[str]) -> TokenCounts:
        """Return the counts of all texts; ``texts`` are those that are cut first."""
        read = np.fromiter(map(len, ids), np.int32, len(ids))
        full = np.array(self._full, np.int32)
        others = np.setdiff1d(self._filled, self._counted).astype(np.int64)
        if self._pairs:
            full[others] = read[others] + 1
        elif len(others):
            characters = sum(len(texts[place]) for place in self._counted)
            each = float(full[self._counted].sum()) / max(1, characters)
            guess = [round(each * len(texts[place])) for place in others.tolist()]
            full[others] = np.maximum(guess, read[others] + 1)
        return TokenCounts(full, read)


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


def is_plain(tokenizer: Any) -> bool:
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
            coming = pool.submit(contextvars.copy_context().run, make, argument)
            yield ready
            ready = coming.result()
        yield ready


def side_by_side(
    work: Callable[[Item], object], items: Iterable[Item], threads: int
) -> Iterator[Item]:
    """Yield each item, in order, once ``work`` on it is done: by so many threads, an item by one.

    Nothing in a thread's pass waits for another's, as in a product that threads share. ``threads``
    are all that torch uses; a process's callers share them. One is the caller, with torch's own.
    """
    if threads < 2:
        for item in items:
            work(item)
            yield item
        return
    pool = _workers(threads)
    waiting: deque[tuple[Item, Future[object]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(contextvars.copy_context().run, work, item)))
            while len(waiting) > threads or (waiting and waiting[0][1].done()):
                waiting[0][1].result()
                yield waiting.popleft()[0]
        while waiting:
            waiting[0][1].result()
            yield waiting.popleft()[0]
    finally:
        wait([future for _, future in waiting if not future.cancel()])


_POOLS: dict[int, ThreadPoolExecutor] = {}
_STARTING = threading.Lock()
if hasattr(os, "register_at_fork"):  # a child has none of the threads
    os.register_at_fork(after_in_child=_POOLS.clear)


def _workers(threads: int) -> ThreadPoolExecutor:
    """Return the process's threads that compute alone, each in one thread of torch's."""
    with _STARTING:
        if threads not in _POOLS:
            own, ready = torch.get_num_threads(), threading.Barrier(threads + 1)
            pool = ThreadPoolExecutor(threads, "sluice-batches")

            def start() -> None:
                torch.set_num_threads(1)  # its own, and those of threads that begin from now on
                ready.wait()

            for _ in range(threads):
                pool.submit(start)
            ready.wait()
            torch.set_num_threads(own)
            _POOLS[threads] = pool
        return _POOLS[threads]
