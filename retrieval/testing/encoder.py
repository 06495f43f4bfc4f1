"""Checks that an encoder, or a scorer of pairs, gives each text its own vector, always the same."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.encoder import Side, hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.testing.rules import TEXTS, expect, verify

Table = NDArray[np.float32]

SIDES: Final = ("encode_queries", "encode_documents")
TOKENS = 256  # of a text whose vectors are compared


def check_encoder(
    encoder: Any,
    texts: Sequence[str] = TEXTS,
    *,
    load: Callable[[Path], Any] | None = None,
    same: Iterable[Any] = (),
    others: Iterable[Any] = (),
    queries_only: bool = False,
    tolerance: float = 1e-5,
    skip: Collection[str] = (),
) -> None:
    """Raise ``BrokenRule`` unless ``encoder`` keeps every rule of an encoder.

    An object with ``score(pairs)`` is checked as a cross-encoder is, by the same rules. ``load``
    opens what ``save_pretrained`` wrote; by default it is the class's ``from_pretrained``. ``same``
    are encoders built in the same way, ``others`` such as differ in one thing that matters
    (weights, prompt, length): their fingerprints must be the same, and different. With
    ``queries_only`` documents are not encoded. Values may differ by ``tolerance``, relative to the
    largest. ``skip`` names rules that do not apply.
    """
    if len(set(texts)) < 3:
        raise ConfigError("texts: expected three or more different ones")
    name = f"encoder {type(encoder).__name__}"
    verify(name, [has_methods], encoder, [])
    world = World(
        encoder, list(texts), load or getattr(type(encoder), "from_pretrained", None),
        list(same), list(others), queries_only, tolerance,
    )  # fmt: skip
    verify(name, RULES, world, skip)


@dataclass(frozen=True)
class World:
    """An encoder, texts, and other encoders."""

    encoder: Any
    texts: list[str]
    load: Callable[[Path], Any] | None
    same: list[Any]
    others: list[Any]
    queries_only: bool
    tolerance: float

    @property
    def sides(self) -> tuple[str, ...]:
        """The methods that turn texts into numbers."""
        if ScorerHooks(self.encoder).scores_pairs:
            return ("score",)
        return SIDES[:1] if self.queries_only else SIDES

    def encoded(self, side: str, texts: Sequence[str], encoder: Any = None) -> Table:
        """Return what a method makes of texts, as a dense table with a line for each."""
        method = getattr(self.encoder if encoder is None else encoder, side)
        if side == "score":
            return np.asarray(method([(self.texts[0], text) for text in texts]))[:, None]
        found = method(texts)
        if isinstance(found, TokenVectors):
            return _lines(found)
        table: Table = found.toarray() if isinstance(found, sp.csr_array) else found
        return table

    def close(self, one: Table, other: Table, what: str) -> None:
        """Expect two tables to be equal within the tolerance."""
        far = self.tolerance * max(1.0, float(np.abs(one).max(initial=0)))
        expect(one.shape == other.shape, f"{what}: shapes {one.shape} and {other.shape}")
        off = np.abs(one - other).max(axis=1, initial=0)
        for place in np.flatnonzero(off > far)[:1].tolist():
            expect(False, f"{what}: vector {place} differs by {off[place]:.3g}")


def _lines(vectors: TokenVectors) -> Table:
    """Return token vectors as a line for each text: the number of tokens, then the first ones."""
    table = np.zeros((len(vectors), 1 + TOKENS * vectors.dim), np.float32)
    for line, text in zip(table, vectors, strict=True):
        line[0] = len(text) / TOKENS
        line[1 : 1 + text[:TOKENS].size] = text[:TOKENS].reshape(-1)
    return table


def has_methods(encoder: Any) -> None:
    """An encoder has encode_queries and encode_documents (a scorer score), and can be saved."""
    scores = ScorerHooks(encoder).scores_pairs
    own = ("score",) if scores else ("encode_queries", "encode_documents")
    for name in (*own, "save_pretrained"):
        expect(callable(getattr(encoder, name, None)), f"it has no method {name}")
    expect(hasattr(encoder, "fingerprint"), "it has no fingerprint")


def form_of_vectors(world: World) -> None:
    """Vectors are float32 [n, width], finite: numpy, csr_array, or TokenVectors of n texts."""
    widths = set()
    for side in world.sides:
        if side == "score":
            found: Any = np.asarray(world.encoder.score([(text, text) for text in world.texts]))
            expect(found.shape == (len(world.texts),), f"{side}: shape {found.shape}")
        else:
            found = getattr(world.encoder, side)(world.texts)
            expect(
                isinstance(found, np.ndarray | sp.csr_array | TokenVectors),
                f"{side}: it returned a {type(found).__name__}",
            )
            expect(
                len(found.shape) == 2 and found.shape[0] == len(world.texts),
                f"{side}: {len(world.texts)} texts gave shape {found.shape}",
            )
            widths.add((type(found).__name__, found.shape[1]))
        values = found.data if isinstance(found, sp.csr_array) else found
        values = found.values if isinstance(found, TokenVectors) else values
        expect(values.dtype == np.float32, f"{side}: dtype {values.dtype}")
        expect(np.isfinite(values).all(), f"{side}: a value is not finite")
    hooks = hooks_of(world.encoder)
    apart = hooks.q_nets is not None or hooks.similarity == "attention"
    expect(apart or len(widths) < 2, f"queries and documents differ: {sorted(widths)}")


# Capabilities, and a method that nothing calls where they are None.
CAPABILITIES: Final = {
    "learner": "fit_in_parts", "identifiers": "assign_ids", "token_names": "token_texts",
    "term_bias": "raise_bias",
}  # fmt: skip


def optional_hooks(world: World) -> None:
    """What else it says of itself is true: similarity, dim, normalize, terms."""
    hooks = hooks_of(world.encoder)
    for name, method in CAPABILITIES.items():
        idle = getattr(hooks, name) is None and callable(getattr(world.encoder, method, None))
        expect(not idle, f"it has {method}, and {name} is None: return self there")
    for side in world.sides if "score" not in world.sides else ():
        found = getattr(world.encoder, side)(world.texts)
        tokens = isinstance(found, TokenVectors)
        nets = hooks.q_nets
        known = ("max_sim",) if tokens else ("q_net",) if nets is not None else ("cosine", "dot")
        if tokens == (side != SIDES[0]):  # one vector a query, several a document
            known = (*known, "attention")
        expect(
            hooks.similarity in known,
            f"similarity is {hooks.similarity!r}, expected {' or '.join(known)}",
        )
        vectors = found.values if tokens else world.encoded(side, world.texts)
        width = vectors.shape[1]
        said = hooks.dim if nets is None or side != SIDES[0] else nets.shape.width
        expect(said in (None, width), f"{side}: dim is {said!r}, its vectors have {width}")
        lengths = np.linalg.norm(vectors, axis=1)
        unit = (np.abs(lengths - 1) < 0.01) | (lengths == 0)
        expect(not hooks.normalize or unit.all(), f"{side}: normalize, and a length is not 1")
        if hooks.terms is not None:
            named = hooks.terms(range(min(width, 3)))
            expect(len(named) == min(width, 3), f"terms: {len(named)} names of 3 columns")
        if hooks.uncertainty is not None and side == SIDES[0]:
            values = np.asarray(hooks.uncertainty(found))
            right = values.shape == (len(world.texts),) and np.isfinite(values).all()
            expect(right, f"uncertainty: {values!r}, expected a number for each query")
        if not tokens:
            continue
        which: Side = "query" if side == SIDES[0] else "document"
        names = hooks.token_names
        told = {} if names is None else {
            "token_texts": names.token_texts(world.texts, which),
            "token_places": names.token_places(world.texts, which),
        }  # fmt: skip
        for name, parts in told.items():
            counts = None if parts is None else [len(each) for each in parts]
            expect(
                counts in (None, found.lengths.tolist()),
                f"{name}: {counts} of {found.lengths.tolist()} tokens",
            )


def no_texts(world: World) -> None:
    """No texts give no vectors, of the same width and dtype."""
    for side in world.sides:
        none, some = world.encoded(side, []), world.encoded(side, world.texts[:1])
        expect(
            none.shape == (0, some.shape[1]) and none.dtype == some.dtype,
            f"{side}: shape {none.shape}, dtype {none.dtype}",
        )


def order_of_texts(world: World) -> None:
    """Vectors stand in the order of the texts, and the list of texts stays as it was."""
    for side in world.sides:
        texts = list(world.texts)
        forward = world.encoded(side, texts)
        expect(texts == world.texts, f"{side}: the caller's list was changed")
        world.close(forward, world.encoded(side, texts[::-1])[::-1], f"{side}, backwards")
        expect(
            any((forward[0] != row).any() for row in forward[1:]),
            f"{side}: all texts have the same vector, so nothing can be checked; pass texts=",
        )


def batches_of_texts(world: World) -> None:
    """A text's vector does not depend on the texts beside it, long ones among them."""
    for side in world.sides:
        together = world.encoded(side, world.texts)
        alone = [world.encoded(side, [text]) for text in world.texts]
        world.close(together, np.concatenate(alone), f"{side}, one by one")
        longest = max(world.texts, key=len)
        padded = [world.encoded(side, [longest, text])[1:] for text in world.texts]
        world.close(together, np.concatenate(padded), f"{side}, beside a long text")


def encoded_twice(world: World) -> None:
    """The same texts give the same vectors again."""
    for side in world.sides:
        first, second = (world.encoded(side, world.texts) for _ in range(2))
        expect((first == second).all(), f"{side}: the second time differs")


def blank_text(world: World) -> None:
    """An empty text has a vector, of finite values."""
    for side in world.sides:
        found = world.encoded(side, ["", *world.texts[:2]])
        expect(len(found) == 3 and np.isfinite(found).all(), f"{side}: {found.shape}")


def fingerprint(world: World) -> None:
    """The fingerprint is text, stays, and differs where anything that decides vectors differs."""
    before = world.encoder.fingerprint
    expect(isinstance(before, str) and before, f"the fingerprint is {before!r}")
    for side in world.sides:
        world.encoded(side, world.texts)
    after = world.encoder.fingerprint
    expect(after == before, f"it was {before}, and {after} after encoding")
    for place, encoder in enumerate(world.same):
        expect(encoder.fingerprint == before, f"same[{place}] has another: {encoder.fingerprint}")
    for place, encoder in enumerate(world.others):
        expect(encoder.fingerprint != before, f"others[{place}] has the same")


def saved_and_loaded(world: World) -> None:
    """What save_pretrained wrote loads as the same encoder: its fingerprint and its vectors."""
    if world.load is None:
        expect(False, f"{type(world.encoder).__name__} has no from_pretrained; pass load=")
        return
    with tempfile.TemporaryDirectory() as folder:
        world.encoder.save_pretrained(Path(folder) / "encoder")
        loaded = world.load(Path(folder) / "encoder")
        expect(
            loaded.fingerprint == world.encoder.fingerprint,
            f"its fingerprint is {loaded.fingerprint}, was {world.encoder.fingerprint}",
        )
        for side in world.sides:
            found = world.encoded(side, world.texts, loaded)
            world.close(world.encoded(side, world.texts), found, f"{side}, loaded")


RULES: Final = (
    form_of_vectors, optional_hooks, no_texts, order_of_texts, batches_of_texts, encoded_twice,
    blank_text, fingerprint, saved_and_loaded,
)  # fmt: skip
