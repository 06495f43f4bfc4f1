"""How sure a ranking looks by its scores, or a Gaussian encoder is of a query; thresholds of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import finite_number
from sluice.retrieval.evaluation.fitted_file import damage_named, number, read_fitted
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.retriever import Retriever, retriever_of
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking, Run

Kind = Literal["margin", "softmax", "top", "energy", "deviation"]
SignalKind = Annotated[
    Literal[Kind, "variance"],
    "KIND",
    "Measure confidence by margin, softmax, top, energy or deviation of the scores, or by the "
    "variance that a Gaussian encoder gives the query.",
]
Dividing = Annotated[float, "T", "Divide the scores of softmax and energy by T."]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SHARES: Final = ("margin", "softmax")  # that lie in 0 to 1
TEMPERED: Final = ("softmax", "energy")
WIDTH = 25  # scores that are looked at
VARIANCE: Final = "variance"
LEAST = -sys.float_info.max  # of a ranking without documents, by a measure that has no lower bound


@dataclass(frozen=True, slots=True)
@checked()
class Confidence:
    """A number for each ranking, of its first ``width`` scores s; more is surer.

    - ``margin``: how far the first is above the second, as a share of its distance from the lowest:
      the scores' unit and zero do not matter. 0 to 1.
    - ``softmax``: the first one's part of the softmax of s / T, T the ``temperature``. 0 to 1.
    - ``top``: the first score.
    - ``energy``: T log sum exp(s / T), the negative free energy; T to 0 it is the highest score.
      (Liu et al. 2020, Energy-based Out-of-distribution Detection, eq. 4.)
    - ``deviation``: the standard deviation of the scores. (Shtok et al. 2012, Predicting Query
      Performance by Query-Drift Estimation: NQC without the score of the corpus.)

    A ranking of at most one document has margin and softmax 1; the top and the energy of an empty
    one are the least numbers.
    """

    kind: Kind = "margin"
    width: Annotated[int, Ge(2)] = WIDTH
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if finite_number(self.temperature, "temperature") <= 0:
            raise ConfigError(f"temperature: {self.temperature!r}, expected a number above 0")
        if self.kind not in TEMPERED and self.temperature != 1:
            raise ConfigError(
                f"temperature: {self.temperature!r}: {self.kind} reads none, which are for "
                f"{' and '.join(TEMPERED)}; leave it out"
            )

    @property
    def bounded(self) -> bool:
        """Whether the numbers lie in 0 to 1."""
        return self.kind in SHARES

    def measure(self, ranking: Ranking) -> float:
        """Return the number of one ranking."""
        scores = ranking.scores[: self.width].astype(np.float64)
        if not len(scores):
            return 1.0 if self.bounded else 0.0 if self.kind == "deviation" else LEAST
        return float(_VALUES[self.kind](scores, self.temperature))


def auroc(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> float:
    """Return the chance that a positive's number is above a negative's, equal ones counted half."""
    both = np.sort(negatives)
    below, to = (np.searchsorted(both, positives, side) for side in ("left", "right"))
    return float((below + to).mean() / (2 * len(negatives)))


def _margin(scores: NDArray[np.float64], temperature: float) -> Any:
    if len(scores) < 2:
        return 1.0
    spread = scores.max() - scores.min()
    return max(0.0, (scores[0] - scores[1]) / spread) if spread > 0 else 0.0


def _softmax(scores: NDArray[np.float64], temperature: float) -> Any:
    tempered = (scores - scores.max()) / temperature
    return np.exp(tempered[0]) / np.exp(tempered).sum()


def _energy(scores: NDArray[np.float64], temperature: float) -> Any:
    from scipy.special import logsumexp

    highest = scores.max()  # s / T may be too large for a float where T is small
    return highest + temperature * logsumexp((scores - highest) / temperature)


_VALUES: Final[Mapping[Kind, Callable[[NDArray[np.float64], float], Any]]] = {
    "margin": _margin,
    "softmax": _softmax,
    "top": lambda scores, temperature: scores[0],
    "energy": _energy,
    "deviation": lambda scores, temperature: scores.std(),
}

OTHERS: Final = {"exit": "margin", "abstain": "energy"}  # the usual kind of confidence
EMPTY = Ranking([], [])


@dataclass(frozen=True, slots=True)
class Certainty:
    """The confidence of ``certainty``: of the query, whatever the scores of its ranking."""

    bounded: ClassVar[bool] = False
    width: ClassVar[int] = 0  # scores that are looked at

    kind: Literal["variance"] = VARIANCE


def signal(
    kind: SignalKind, width: int = WIDTH, temperature: float = 1.0
) -> Confidence | Certainty:
    """Return what a kind means; ``ConfigError`` for settings that it does not read."""
    known = (*KINDS, VARIANCE)
    if kind not in known:
        raise ConfigError(f"kind: {kind!r}; expected {', '.join(known)}{suggest(str(kind), known)}")
    if kind != "variance":
        return Confidence(kind, width, temperature)
    if (width, temperature) != (WIDTH, 1.0):
        raise ConfigError(
            f"width {width}, temperature {temperature}: a variance is the query's and reads no "
            "scores; leave both out"
        )
    return Certainty()


def confidences(
    rule: Confidence | Certainty,
    queries: Iterable[str],
    run: Run,
    certain: Mapping[str, float] | None = None,
) -> NDArray[np.float64]:
    """Return the number of each query: by its ranking in a run, or what ``certain`` has.

    ``ConfigError`` for ``certain`` with a rule of rankings, or none with one of queries.
    """
    if (certain is not None) != isinstance(rule, Certainty):
        raise ConfigError(
            f"kind: {rule.kind}: expected certain=, the number of each query, with kind='variance' "
            "and with no other"
        )
    if isinstance(rule, Confidence):
        return np.array([rule.measure(run.get(query, EMPTY)) for query in queries])
    return np.array([(certain or {}).get(query, LEAST) for query in queries])


def read_threshold(path: str, kind: str, title: str) -> tuple[float, Confidence | Certainty]:
    """Return the threshold and the confidence in a fitted file of a kind."""
    values = read_fitted(path, kind)
    with damage_named(path, title):
        threshold = number(values["threshold"])
        if values["kind"] == VARIANCE:
            return threshold, Certainty()
        temperature = values.get("temperature", 1.0)  # files before it have none
        return threshold, Confidence(values["kind"], values["width"], number(temperature))


def certainty(queries: Queries, first: Stage, where: str = "exit") -> dict[str, float]:
    """Return minus the mean log variance of each query; of blank ones the least number.

    ``ConfigError`` as for ``unsure_retriever``.
    """
    encoder = unsure_retriever(first, where).state.encoder
    uncertainty = hooks_of(encoder).uncertainty
    numbers = dict.fromkeys(queries, LEAST)
    with_text = [query for query, text in queries.items() if text.strip()]
    if with_text and uncertainty is not None:
        values = uncertainty(encoder.encode_queries([queries[query] for query in with_text]))
        numbers.update(zip(with_text, (-values).tolist(), strict=True))
    return numbers


def check_unsure(first: Stage, where: str) -> None:
    """Raise ``ConfigError`` where ``unsure_retriever`` would.

    Stages of other classes that find documents are checked in each search.
    """
    if all(isinstance(part, Retriever) for part in _sources(first)):
        unsure_retriever(first, where)


def unsure_retriever(first: Stage, where: str = "exit") -> Retriever:
    """Return the retriever in a stage whose encoder says how unsure it is of a query.

    ``ConfigError`` where none does, or where several of different encoders do; ``where`` is what
    asks, ``exit`` or ``abstain``.
    """
    retrievers = {
        each.state.head.encoder_fingerprint: each
        for each in _sources(first)
        if isinstance(each, Retriever) and hooks_of(each.state.encoder).uncertainty is not None
    }
    if not retrievers:
        raise ConfigError(
            f"{where}: {VARIANCE}: no encoder of {first.name} has a variance of the query; search "
            f"by a retriever of {{type: gaussian}}, or take another kind, such as {OTHERS[where]}"
        )
    if len(retrievers) > 1:
        names = ", ".join(each.name for each in retrievers.values())
        raise ConfigError(
            f"{where}: {VARIANCE}: {names} have a variance of the query each; expected one such "
            f"encoder in {first.name}"
        )
    return next(iter(retrievers.values()))


def _sources(stage: Stage) -> Iterator[Stage]:
    """Yield the retrievers in a stage, and its other parts that have none."""
    base = retriever_of(stage)
    if base is not None:
        yield base
    elif not stage.inner and not stage.needs_candidates:
        yield stage
    for part in stage.inner if base is None else ():
        yield from _sources(part)
