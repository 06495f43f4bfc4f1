"""Teachers and judges: models, runs and files that score (query, document) pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import encodes, hooks_of
from sluice.encoders.foundation.build import check
from sluice.encoders.foundation.disk.files import file_hash, fingerprint_of
from sluice.encoders.foundation.disk.folder_swap import settle
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.input.bounded import expanded
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.model_files.locate import is_path
from sluice.encoders.table import ENCODERS, RERANKERS
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.retrievers.candidate_lists import SELF, listed
from sluice.retrieval.runs.run import Run
from sluice.training.negatives.judge import Judge, JudgedPair, judged

if TYPE_CHECKING:
    from sluice.retrieval.config.components import Allow
    from sluice.retrieval.runs.run import Run
    from sluice.training.negatives.judge import Judge

Scores = NDArray[np.float64]  # [pairs], NaN where there is none

KINDS = ("cross_encoder", "dense", "splade")
ENSEMBLE = "ensemble"
ENSEMBLE_KEYS = ("type", "teachers", "weights", "normalise")


class Teacher(Judge, Protocol):
    """A judge whose scores depend on the pairs alone; its fingerprint identifies it."""

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever a score would."""
        ...


class ModelTeacher:
    """A cross-encoder, or a bi-encoder by the similarity of its two vectors."""

    needs_texts = True

    def __init__(self, model: Any, name: str) -> None:
        self.name = name
        self._model = model
        if not ScorerHooks(model).scores_pairs and not encodes(model):
            raise ConfigError(
                f"teacher {name}: {type(model).__name__} can neither score pairs nor encode texts; "
                "expected a cross-encoder or an encoder"
            )

    @property
    def fingerprint(self) -> str:
        """The model's fingerprint."""
        return str(self._model.fingerprint)

    def scores(self, pairs: Sequence[JudgedPair]) -> Scores:
        """Return the model's scores; ``DataError`` for one that is not finite."""
        if ScorerHooks(self._model).scores_pairs:
            raw = self._model.score([(query, document) for _, query, _, document in pairs])
        else:
            raw = self._similarities(pairs)
        scores = np.asarray(raw, np.float64)
        bad = np.count_nonzero(~np.isfinite(scores))
        if bad:
            raise DataError(
                f"teacher {self.name}: not finite: {bad:,} of {len(pairs):,} scores; the model is "
                "damaged, or its dtype too small"
            )
        return scores

    def _similarities(self, pairs: Sequence[JudgedPair]) -> NDArray[Any]:
        queries = list(dict.fromkeys(pair[1] for pair in pairs))
        documents = list(dict.fromkeys(pair[3] for pair in pairs))
        left = self._model.encode_queries(queries)
        right = self._model.encode_documents(documents)
        row = {text: place for place, text in enumerate(queries)}
        column = {text: place for place, text in enumerate(documents)}
        one = left[np.array([row[pair[1]] for pair in pairs])]
        other = right[np.array([column[pair[3]] for pair in pairs])]
        products = np.asarray((one * other).sum(axis=1), np.float64).ravel()
        if hooks_of(self._model).similarity == "cosine":
            products /= (_lengths(one) * _lengths(other)).clip(1e-30)
        return products


def _lengths(vectors: Any) -> Scores:
    return np.sqrt(np.asarray((vectors * vectors).sum(axis=1), np.float64).ravel())


class RunTeacher:
    """A run's own scores; pairs that the run lacks have none."""

    needs_texts = False

    def __init__(self, run: Run, name: str, fingerprint: str) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self._run = run

    def scores(self, pairs: Sequence[JudgedPair]) -> Scores:
        """Return the scores of pairs in the run, NaN for the others."""
        lists: dict[str, dict[str, float]] = {}
        for query, _, _, _ in pairs:
            if query not in lists:
                lists[query] = dict(self._run[query]) if query in self._run else {}
        return np.array([lists[pair[0]].get(pair[2], np.nan) for pair in pairs], np.float64)


class Ensemble:
    """The weighted mean of several teachers; ``normalise`` takes z-scores over a query's pairs.

    A pair that one of them has no score for gets none: a mean over the others would be on another
    scale. With ``normalise`` all pairs of a query must be scored together.
    """

    def __init__(
        self,
        teachers: Sequence[Teacher],
        weights: Sequence[float] | None = None,
        *,
        normalise: bool = False,
    ) -> None:
        self.weights = [1.0] * len(teachers) if weights is None else list(map(float, weights))
        if not teachers or len(self.weights) != len(teachers):
            raise ConfigError(
                f"teacher.weights: {len(self.weights)} for {len(teachers)} teachers; expected one "
                "each"
            )
        if not all(0 < weight < np.inf for weight in self.weights):
            raise ConfigError(f"teacher.weights: {self.weights}; expected finite numbers above 0")
        self.teachers = list(teachers)
        self.normalise = normalise
        self.name = " + ".join(teacher.name for teacher in teachers)
        self.needs_texts = any(teacher.needs_texts for teacher in teachers)

    @property
    def fingerprint(self) -> str:
        """A hash of the members' fingerprints, the weights and ``normalise``."""
        members = [teacher.fingerprint for teacher in self.teachers]
        return fingerprint_of("ensemble", members, self.weights, self.normalise)

    def scores(self, pairs: Sequence[JudgedPair]) -> Scores:
        """Return the weighted means."""
        total = np.zeros(len(pairs))
        for teacher, weight in zip(self.teachers, self.weights, strict=True):
            scores = judged(teacher, pairs)
            total += weight * (_z_scores(scores, pairs) if self.normalise else scores)
        return total / sum(self.weights)


def _z_scores(scores: Scores, pairs: Sequence[JudgedPair]) -> Scores:
    """Return z-scores over each query's scored pairs; zeros where all are the same."""
    places: dict[str, list[int]] = {}
    for place, pair in enumerate(pairs):
        if np.isfinite(scores[place]):
            places.setdefault(pair[0], []).append(place)
    normal = np.full(len(pairs), np.nan)
    for own in places.values():
        values = scores[own]
        spread = values.std() if values.min() != values.max() else 0.0
        normal[own] = (values - values.mean()) / spread if spread else 0.0
    return normal


def open_teacher(name: str, model: Callable[[str], str] = str) -> Teacher:
    """Open a teacher by name: a run file, a model's folder, a hub id, or a model trained here.

    ``model`` maps the names of models trained in an experiment to their folders.
    """
    path = expanded(name)
    if path.is_file():
        from sluice.retrieval.runs.run import Run

        return RunTeacher(Run.load(path), path.name, file_hash(path))
    from sluice.encoders.model_files.registry import open_encoder

    return ModelTeacher(open_encoder(model(name)), name)


def make_teacher(spec: str | Mapping[str, Any], *, where: str, model: Callable[[str], str]) -> Any:
    """Make what a ``teacher:`` section describes, except a file of scores.

    A name is as for ``open_teacher``; a component is a cross-encoder, dense or splade encoder, or
    ``{type: ensemble, teachers: [...], weights: [...], normalise: true}`` of these.
    """
    if isinstance(spec, str):
        return open_teacher(spec, model)
    if spec.get("type") == ENSEMBLE:
        members = [
            make_teacher(member, where=f"{where}.teachers.{number}", model=model)
            for number, member in enumerate(spec["teachers"])
        ]
        return Ensemble(members, spec.get("weights"), normalise=spec.get("normalise", False))
    from sluice.retrieval.config.components import make_encoder

    return ModelTeacher(make_encoder(spec, where=where, model=model), str(spec.get("model")))


def check_teacher(spec: str | Mapping[str, Any], where: str, allow: Allow = None) -> None:
    """Check ``teacher:`` before any work: its components, and that its file exists."""
    if isinstance(spec, str):
        if is_score_file(spec):
            _check_scores(spec, where)
        return
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where}: {spec!r:.60}; expected a name or a component")
    if spec.get("type") != ENSEMBLE:
        table = {k: v for k, v in {**ENCODERS, **RERANKERS}.items() if k in KINDS}
        check(spec, table, where=where, allow=allow)
        return
    for key in spec:
        if key not in ENSEMBLE_KEYS:
            raise ConfigError(
                f"{where}.{key}: ensemble takes {', '.join(ENSEMBLE_KEYS[1:])}"
                f"{suggest(str(key), ENSEMBLE_KEYS)}"
            )
    members = spec.get("teachers")
    if not isinstance(members, list) or not members:
        raise ConfigError(f"{where}.teachers: {members!r:.60}; expected a list of teachers")
    for number, member in enumerate(members):
        if isinstance(member, str) and is_score_file(member):
            raise ConfigError(
                f"{where}.teachers.{number}: {member}: a file of scores cannot be a member; name "
                "the models"
            )
        check_teacher(member, f"{where}.teachers.{number}", allow)
    weights = spec.get("weights", [1.0] * len(members))
    numbers = isinstance(weights, list) and all(is_number(w) and w > 0 for w in weights)
    if not numbers or len(weights) != len(members):
        raise ConfigError(f"{where}.weights: {weights!r:.60}; expected a number above 0 for each")
    if not isinstance(spec.get("normalise", False), bool):
        raise ConfigError(f"{where}.normalise: {spec['normalise']!r}; expected true or false")


def _check_scores(name: str, where: str) -> None:
    from sluice.retrieval.training_data.teachers.distillation import open_scores

    path = expanded(name)
    if not path.is_file():
        names = [p.name for p in path.parent.glob("*.parquet")]
        raise ConfigError(
            f"{where}: no file {name}{suggest(path.name, names)}; `sluice teach distil` makes one"
        )
    open_scores(path)


def check_there(named: Any, where: str) -> None:
    """Raise ``ConfigError`` if a teacher's model does not exist or is the model in training."""
    for each in listed(named):
        for name in teacher_models(each) if isinstance(each, (str, Mapping)) else []:
            if name == SELF:
                raise ConfigError(
                    f"{where}: self: a model in training cannot judge itself; name another"
                )
            path = expanded(name)
            if is_path(name) and not path.exists():
                settle(path)  # a killed replacement may have moved it
                if not path.exists():
                    raise ConfigError(f"{where}: no model folder or run file {name}")


def is_score_file(name: str) -> bool:
    """Return whether a teacher's name is a file of scores."""
    return name.endswith(".parquet")


def teacher_models(spec: str | Mapping[str, Any] | None) -> list[str]:
    """Return the names of the models and files that ``teacher:`` refers to."""
    if spec is None:
        return []
    if isinstance(spec, str):
        return [spec]
    if spec.get("type") == ENSEMBLE:
        return [name for member in spec["teachers"] for name in teacher_models(member)]
    return [str(spec.get("model"))]


JUDGE = (
    "a reranker's name, an inline {type: cross_encoder, model: ...}, a model's folder, a run file, "
    "a file of `sluice teach distil`, or a list of these"
)


def open_judge(
    named: Any,
    where: str,
    *,
    scorer: Callable[[str], Any] | None = None,
    known: Sequence[str] = (),
    model: Callable[[str], str] = str,
) -> Judge:
    """Return the judge that ``judge`` in a config, or from Python, names.

    An inline ``{type: cross_encoder, ...}`` or ``{type: ensemble, ...}``, one of the rerankers
    ``known`` (which ``scorer`` makes by name), a run file, a file of scores as
    ``sluice teach distil`` writes it, a model's folder or id, or a list of these, whose scores are
    averaged; or an object: a run, a scorer, a reranking stage, a judge. ``model`` maps the names of
    models trained in an experiment to their folders.
    """
    check_judge(named, where, known=known)
    if isinstance(named, (list, tuple)):
        inner = [
            open_judge(each, f"{where}[{place}]", scorer=scorer, known=known, model=model)
            for place, each in enumerate(named)
        ]
        return Ensemble(inner) if len(inner) > 1 else inner[0]  # type: ignore[arg-type]
    if isinstance(named, Run):  # before mappings: it is one
        return RunTeacher(named, named.name, "")
    if isinstance(named, str) and named in known and scorer is not None:
        return ModelTeacher(scorer(named), named)
    if isinstance(named, str) and is_score_file(named):
        return RunTeacher(_score_file(Path(named)), Path(named).name, "")
    if isinstance(named, (str, Mapping)):
        judge: Judge = make_teacher(named, where=where, model=model)
        return judge
    if isinstance(named, Rerank):
        return ModelTeacher(named.scorer, named.name)
    if _judges(named):
        judge = named
        return judge
    return ModelTeacher(named, type(named).__name__)


def _judges(named: Any) -> bool:
    return callable(getattr(named, "scores", None))


def _score_file(path: Path) -> Run:
    from sluice.retrieval.training_data.teachers.distillation import read_scores

    lists: dict[str, dict[str, float]] = {}
    for queries, documents, scores in read_scores(path):
        for query, document, score in zip(queries, documents, scores.tolist(), strict=True):
            lists.setdefault(query, {})[document] = score
    return Run(lists, name=path.name)


def check_judge(named: Any, where: str, *, known: Sequence[str] = (), allow: Allow = None) -> None:
    """Raise ``ConfigError`` unless ``named`` can be a judge; nothing is loaded."""
    if isinstance(named, (list, tuple)):
        if not named:
            raise ConfigError(f"{where}: an empty list; name at least one judge")
        for place, each in enumerate(named):
            check_judge(each, f"{where}[{place}]", known=known, allow=allow)
    elif isinstance(named, Mapping) and not isinstance(named, Run):
        check_teacher(named, where, allow)
    elif isinstance(named, str):
        file = is_score_file(named) or named.endswith((".trec", ".gz"))
        plain = known and named not in known and "/" not in named  # no hub id
        if not named or ((file or plain) and not Path(named).exists()):
            near = suggest(named, known)
            raise ConfigError(f"{where}: {named!r} not found; expected {JUDGE}{near}")
    elif not isinstance(named, (Run, Rerank)) and not (
        _judges(named) or ScorerHooks(named).scores_pairs or encodes(named)
    ):
        raise ConfigError(f"{where}: {named!r}; expected {JUDGE}")
