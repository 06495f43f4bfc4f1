"""The base class of losses: what a loss may ask of training, and how ``training.json`` tells it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, get_args

from sluice.encoders.foundation.build import replaced, resolve
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.learning import SCORED, WRITTEN, types_that_make
from sluice.training.losses import LOSSES, loss_traits
from sluice.training.protocol import ScoreMatrix, Similarity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from sluice.training.batches.vector_batch import Negatives, VectorBatch
    from sluice.training.protocol import Example

# ``teacher_matrix``: a teacher scores every query of the batch with every document of it;
# ``teacher_vectors``: it learns from a teacher's vectors of the texts; ``answered``: queries that
# the negatives answer are encoded too, ``negative_queries``: queries that the positives do not
# answer; ``texts``: a cross-encoder also reads each text alone, for its vector. ``across_queries``:
# documents of different queries are ordered by their labels; ``texts_alone``: it learns from
# documents without queries, and so not beside other losses; ``network``: it runs the encoder's
# network itself, beside the vectors of the batch; ``all_examples``: it looks at all of them before
# the first step, so that they cannot be streamed.
Want: TypeAlias = Literal[
    "teacher_matrix", "teacher_vectors", "answered", "negative_queries", "texts", "across_queries",
    "texts_alone", "network", "all_examples",
]  # fmt: skip


# Flags that ``wants`` has taken the place of.
UNREAD = frozenset({
    "teacher_matrix", "teacher_vectors", "across_queries", "wants_answered",
    "wants_negative_queries", "texts_alone", "runs_network",
})  # fmt: skip


class LossBase:
    """The base of all losses: a subclass writes ``_value`` or ``over``, and any hook.

    A property may be overridden by a class attribute, a dataclass field or a property. Whatever
    this class has in public is a hook (``HOOKS``): the Trainer and the checks read it, and losses
    made of other losses pass it on (``sluice.training.losses.composed.members``).
    """

    __slots__ = ()

    summary: ClassVar[str] = ""  # one line, as docs/reference/losses.md shows it
    paper: ClassVar[str] = ""

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the scalar loss of a score matrix, as ``training.protocol.Loss`` describes it."""
        wide = scores.float() if scores.element_size() < 4 else scores
        counted = labels.new_ones(labels.shape) if mask is None else mask
        return self._value(ScoreMatrix(wide, labels, counted.bool(), weights, teacher))

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        """Return the scalar loss of a score matrix: what a loss of scores has to write."""
        raise _needs_vectors(self)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch of vectors; by default that of its score matrix."""
        return self(*batch.score_matrix())

    @property
    def forms(self) -> tuple[str, ...]:
        """What it trains: what ``encoders.tuning.learning`` calls what training makes of texts."""
        return SCORED

    @property
    def negatives(self) -> Negatives:
        """The documents that a query is compared with, see ``batches.targets``."""
        return "all"

    @property
    def same_side(self) -> bool:
        """Whether query-query and positive-positive scores are further negatives."""
        return False

    @property
    def logq(self) -> bool:
        """Whether scores are corrected by how often each document is drawn."""
        return False

    @property
    def similarity(self) -> Literal["auto", "cosine", "dot"]:
        """What turns two vectors into a score; ``auto``: the encoder's own."""
        return "auto"

    def bound_to(self, similarity: Similarity) -> Self:
        """Return this loss with ``similarity: auto`` decided; bind state to the one returned."""
        loss: Any = self
        fields = dataclasses.fields(loss) if dataclasses.is_dataclass(loss) else ()
        if self.similarity != "auto" or all(field.name != "similarity" for field in fields):
            return self
        bound: Self = replaced(loss, similarity=similarity)  # maybe one that YAML cannot name
        return bound

    @property
    def needs_teacher(self) -> bool:
        """Whether the examples must bring a teacher's scores."""
        return False

    @property
    def wants(self) -> frozenset[Want]:
        """What else training has to give it, or has to know of it, see ``Want``."""
        return frozenset()

    @property
    def layers(self) -> Callable[[int], tuple[int, ...]] | None:
        """The layers whose vectors are wanted, as a method of the step.

        They are numbered from 1 and named the last first. None: the encoder's own vectors alone.
        0 asks a CSR encoder for its codes and, after them, the dense vectors that they are of.
        """
        return None

    @property
    def ranks(self) -> Literal["columns", "scores"] | None:
        """``columns``: a batch's columns must be the retrieved list, as live candidates are."""
        return None

    @property
    def noted(self) -> str:
        """The loss's name in the journal, beside penalties."""
        return "loss_ranking"

    def own_pass(self, encoder: Any, *, seed: int, sparse: bool) -> tuple[Any, Any] | None:
        """Return a module and a collator that replace those of queries and documents."""
        return None

    def batch(self, made: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> VectorBatch | None:
        """Return the batch of what the module of ``own_pass`` made; None: the usual layout."""
        return None

    def bind(self, encoder: Any, seed: int) -> None:
        """Prepare to train this encoder: called once before the first step."""

    def bind_examples(self, examples: Sequence[Example]) -> None:
        """Receive the examples that training begins with: called once, after ``bind``."""

    def bind_counts(self, counts: Mapping[str, float]) -> None:
        """Receive how often each document occurs in the examples in use."""

    def bind_teacher(self, vectors: Callable[[], NDArray[np.float32]]) -> None:
        """Receive what returns the teacher's vectors ``[n, dim]`` of the first training texts.

        Called after ``bind``, of a loss that wants ``teacher_vectors``.
        """

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return what is trained beside the encoder."""
        return ()

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of ``parameters``; None: the trainer's."""
        return None

    def advance(self, step: int) -> None:
        """Advance after an optimiser step; ``step`` steps are done."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors, by name, that every checkpoint keeps."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` returned when the checkpoint was written."""

    def notes(self) -> dict[str, float]:
        """Return numbers for the journal."""
        return {}

    def save(self, folder: str | Path) -> None:
        """Write what belongs beside the trained model."""


def writes(loss: LossBase) -> bool:
    """Return whether a loss trains what an encoder writes, and no vectors."""
    return set(loss.forms) <= set(WRITTEN)


def types_trained(loss: LossBase) -> str:
    """Return the types of encoder that a loss trains, as a message lists them."""
    return ", ".join(types_that_make(loss.forms))


def taught_by_batch(loss: LossBase) -> bool:
    """Return whether a loss asks its teacher about whole batches."""
    return not loss.wants.isdisjoint({"teacher_matrix", "teacher_vectors"})


def compares_own(loss: LossBase) -> bool:
    """Return whether a loss tells apart each query's own documents and no others."""
    return loss.negatives == "own" and "teacher_vectors" not in loss.wants


def taught_by(setting: str) -> Any:
    """Return the ``needs_teacher`` of a loss one of whose settings names what it learns from."""
    return property(lambda loss: getattr(loss, setting) not in ("labels", "columns"))


HOOKS = tuple(n for n in vars(LossBase) if n[0] != "_" and n not in ("summary", "paper"))


class Adapted(LossBase):
    """Gives a user's own loss, not a ``LossBase``, the hooks that it lacks by default."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __getattribute__(self, name: str) -> Any:
        """Return the loss's own hook if it has one that is not None."""
        if name in HOOKS and name != "bound_to":
            own = getattr(self.loss, name, None)
            if own is not None:
                return own
        return super().__getattribute__(name)

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a score matrix; raises ``ConfigError`` where it needs vectors."""
        if not callable(self.loss):
            raise _needs_vectors(self.loss)
        value: Tensor = self.loss(scores, labels, mask, weights, teacher)
        return value

    def bound_to(self, similarity: Similarity) -> Self:
        """Return the loss with ``similarity: auto`` decided, where it decides that itself."""
        own = getattr(self.loss, "bound_to", None)
        return self if own is None else type(self)(own(similarity))


def as_loss(loss: Any, where: str = "loss") -> LossBase:
    """Return a loss with every hook: itself, or an adapter around a user's own.

    That is a callable with the signature of ``sluice.training.protocol.Loss``, or an object with
    ``over``. Raises ``ConfigError`` for anything else, and for one that names types of encoders:
    a loss says which ``forms`` of vectors it trains.
    """
    if hasattr(loss, "encoders"):
        raise ConfigError(
            f"{where}: {type_name(loss)} says encoders, which nothing reads; say forms, such as "
            f"('dense',): what it trains, of {', '.join(SCORED)}"
        )
    unread = UNREAD.intersection(dir(loss))
    if getattr(loss, "texts", None) is True:  # a flag too, but a word that may mean other things
        unread |= {"texts"}
    for name in sorted(unread):
        raise ConfigError(
            f"{where}: {type_name(loss)} says {name}, which nothing reads; say wants, a set of "
            f"some of {', '.join(get_args(Want))}"
        )
    if isinstance(loss, LossBase):
        return loss
    if callable(loss) or callable(getattr(loss, "over", None)):
        return Adapted(loss)
    raise ConfigError(
        f"{where}: {loss!r}, expected a function of (scores, labels, mask, weights, teacher) or an "
        "object with over(batch)"
    )


def _needs_vectors(loss: Any) -> ConfigError:
    return ConfigError(
        f"{type(loss).__name__}: needs the vectors of the batch, not only its scores"
    )


_UNSAID = object()
# How losses were named before types were: by the modules that they lay in then.
_OLD_MODULES = "training.losses."
# What a sum wrote down beside its members, from which it follows.
_FOLLOWS = ("negatives", "same_side", "similarity", "encoders")


def type_name(loss: Any) -> str:
    """Return a loss's name in YAML: ``info_nce``, or ``my_package.module:Class`` for a user's own.

    A part of this package that has no name there has its class's.
    """
    if isinstance(loss, Adapted):
        loss = loss.loss
    named = loss if hasattr(loss, "__qualname__") else type(loss)  # a function, or a class's object
    name = str(getattr(named, "__qualname__", ""))
    target = f"{named.__module__}:{name}"
    known = {place: kind for kind, place in LOSSES.items()}
    return known.get(target, name if _is_ours(named) else target)


def describe(loss: Any) -> dict[str, Any]:
    """Return a loss's name and settings with those of inner losses, to compare training runs."""
    if isinstance(loss, Adapted):
        loss = loss.loss
    settings = (
        {field.name: getattr(loss, field.name) for field in dataclasses.fields(loss) if field.init}
        if dataclasses.is_dataclass(loss)
        else getattr(loss, "__dict__", {})
    )
    plain = {name: _plain(value) for name, value in settings.items()}
    return {"type": type_name(loss), **{k: v for k, v in plain.items() if v is not _UNSAID}}


def renamed(description: Any, *, complete: bool = True) -> Any:
    """Return a description from a ``training.json`` as ``describe`` would write it today.

    ``complete`` ones have all settings; what a wrapper has under ``loss`` is as the YAML says.
    """
    if isinstance(description, list):
        return [renamed(item, complete=complete) for item in description]
    if not isinstance(description, Mapping):
        return description
    new = {
        key: renamed(value, complete=complete and key != "loss")
        for key, value in description.items()
    }
    module, colon, name = str(new.get("type")).partition(":")
    if not colon or not module.startswith(_OLD_MODULES):
        return _with_defaults(new) if complete else new
    classes = {place.partition(":")[2]: kind for kind, place in LOSSES.items()}
    new["type"] = classes.get(name, name)
    if loss_traits(new).adds:
        new = {key: value for key, value in new.items() if key not in _FOLLOWS}
    return _with_defaults(new) if complete else new


def _with_defaults(description: dict[str, Any]) -> dict[str, Any]:
    """Return a description with the settings that came after it was written, at their defaults."""
    place = LOSSES.get(str(description.get("type")))
    kind: Any = None if place is None else resolve(place)
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    missing = {
        field.name: _plain(field.default)
        for field in fields
        if field.init and field.name not in description and field.default is not dataclasses.MISSING
    }
    return {**description, **missing}


def _is_ours(named: Any) -> bool:
    package = __name__.rpartition(".")[0]
    return str(named.__module__).startswith(f"{package}.")


def _plain(value: Any) -> Any:
    """Return a setting as JSON; tensors, modules and a user's own loss are left out."""
    if isinstance(value, (int, float, str, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [kept for item in value if (kept := _plain(item)) is not _UNSAID]
    if isinstance(value, dict):
        return {str(k): kept for k, v in value.items() if (kept := _plain(v)) is not _UNSAID}
    if isinstance(value, Adapted):
        return _UNSAID
    return describe(value) if _is_ours(type(value)) else _UNSAID
