"""Teachers: models, runs and files that score (query, document) pairs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import encodes, hooks_of
from sluice.encoders.foundation.build import check
from sluice.encoders.foundation.disk.files import file_hash, fingerprint_of
from sluice.encoders.foundation.disk.folder_swap import settle
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.input.bounded import expanded
from sluice.encoders.foundation.token_vectors import TokenVectors, max_sim
from sluice.encoders.model_files.locate import is_path
from sluice.encoders.table import KNOWN
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.retrievers.candidate_lists import SELF, listed
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.teachers.ensemble import (
    ENSEMBLE,
    Ensemble,
    Teacher as Teacher,
    check_mixture,
    mixture_of,
)
from sluice.retrieval.training_data.teachers.language import (
    check_language_model,
    is_language_model,
    local_model_of,
    make_language_teacher,
    parsed_component,
)
from sluice.training.negatives.judge import JudgedPair

if TYPE_CHECKING:
    from sluice.retrieval.config.components import Allow

Scores = NDArray[np.float64]  # [pairs], NaN where there is none

BM25 = "bm25"
STORED = "examples"  # the name of the scores that the training examples bring

Texts = Callable[[], Iterable[str]]  # the texts of a corpus, streamed anew


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
        similarity = hooks_of(model).similarity
        if similarity in ("q_net", "attention"):
            raise ConfigError(
                f"teacher {name}: a {type(model).__name__} has a score of its own ({similarity}), "
                "and a teacher compares two vectors; search with it, and name the file of that run"
            )

    @property
    def fingerprint(self) -> str:
        """The model's fingerprint."""
        return str(self._model.fingerprint)

    @property
    def model(self) -> Any:
        """The model, of either kind."""
        return self._model

    @property
    def encoder(self) -> Any:
        """The model where it encodes queries and documents apart; None: it scores pairs only."""
        return None if ScorerHooks(self._model).scores_pairs else self._model

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
        if isinstance(left, TokenVectors):
            return _max_sims(left, right, [(row[pair[1]], column[pair[3]]) for pair in pairs])
        one = left[np.array([row[pair[1]] for pair in pairs])]
        other = right[np.array([column[pair[3]] for pair in pairs])]
        products = np.asarray((one * other).sum(axis=1), np.float64).ravel()
        if hooks_of(self._model).similarity == "cosine":
            products /= (_lengths(one) * _lengths(other)).clip(1e-30)
        return products


def _max_sims(
    queries: TokenVectors, documents: TokenVectors, cells: Sequence[tuple[int, int]]
) -> Scores:
    """Return the MaxSim of some pairs; -1 a query token for a document without tokens."""
    places: dict[int, list[int]] = {}
    for place, (query, _) in enumerate(cells):
        places.setdefault(query, []).append(place)
    scores = np.empty(len(cells))
    for query, own in places.items():
        texts = documents.rows([cells[place][1] for place in own])
        least = -float(queries.lengths[query])
        scores[own] = np.maximum(max_sim(queries.rows([query]), texts)[0], least)
    return scores


def _lengths(vectors: Any) -> Scores:
    return np.sqrt(np.asarray((vectors * vectors).sum(axis=1), np.float64).ravel())


class RunTeacher:
    """A run's own scores; pairs that the run lacks have none."""

    needs_texts = False

    def __init__(self, run: Run, name: str, fingerprint: str) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.run = run

    def scores(self, pairs: Sequence[JudgedPair]) -> Scores:
        """Return the scores of pairs in the run, NaN for the others."""
        lists: dict[str, dict[str, float]] = {}
        for query, _, _, _ in pairs:
            if query not in lists:
                lists[query] = dict(self.run[query]) if query in self.run else {}
        return np.array([lists[pair[0]].get(pair[2], np.nan) for pair in pairs], np.float64)


def open_teacher(
    name: str | Path,
    model: Callable[[str], str] = str,
    *,
    corpus: Texts | None = None,
    stored: Callable[[], Run] | None = None,
    where: str = "teacher",
) -> Teacher:
    """Open a teacher by name: a file of scores, a run, a model's folder or id, or one trained here.

    ``bm25`` is fitted on ``corpus``, the texts of all documents; ``examples`` is the run that
    ``stored`` makes of the scores that training examples bring; a component may be given as YAML.
    ``model`` maps the names of models
    trained in an experiment to their folders. Raises ``ConfigError`` where one of these is missing.
    """
    name = str(name)
    if name == BM25:
        return _bm25({}, corpus, where)
    if name == STORED:
        if stored is None:
            raise ConfigError(
                f"{where}: {STORED} are the scores of a training file's rows, and here are none; "
                "name a model, a run or a file of scores"
            )
        run = stored()
        return RunTeacher(run, STORED, _fingerprint_of_run(run))
    if name.lstrip().startswith("{"):
        spec = parsed_component(name, where)
        check_teacher(spec, where)
        made: Teacher = make_teacher(spec, where=where, model=model, corpus=corpus, stored=stored)
        return made
    path = expanded(name)
    if is_score_file(name) and path.is_file():
        return RunTeacher(score_file(path), path.name, file_hash(path))
    if path.is_file():
        return RunTeacher(Run.load(path), path.name, file_hash(path))
    from sluice.encoders.model_files.registry import open_encoder

    return ModelTeacher(open_encoder(model(name)), name)


def _fingerprint_of_run(run: Run) -> str:
    return fingerprint_of(STORED, [(query, list(run[query])) for query in run])


def _bm25(settings: Mapping[str, Any], corpus: Texts | None, where: str) -> ModelTeacher:
    from sluice.encoders.lexical.bm25 import BM25Encoder

    if corpus is None:
        raise ConfigError(f"{where}: bm25 counts words in a corpus; name the dataset that has it")
    return ModelTeacher(BM25Encoder(**settings).fit(corpus()), BM25)


def make_teacher(
    spec: str | Mapping[str, Any],
    *,
    where: str,
    model: Callable[[str], str],
    corpus: Texts | None = None,
    stored: Callable[[], Run] | None = None,
) -> Any:
    """Make what a ``teacher:`` section describes.

    A name is as for ``open_teacher``; a component is a cross-encoder, a dense, splade, tokens or
    bm25 encoder, a language model (generative, http), or an ensemble of these: ``{type: ensemble,
    teachers: [...], weights: [...], normalise: min-max, scale: 30}``.
    """
    if isinstance(spec, str):
        return open_teacher(spec, model, corpus=corpus, stored=stored, where=where)
    if spec.get("type") == ENSEMBLE:
        members = [
            make_teacher(
                member, where=f"{where}.teachers.{number}", model=model, corpus=corpus,
                stored=stored,
            )
            for number, member in enumerate(spec["teachers"])
        ]  # fmt: skip
        mixture = mixture_of(spec, where)
        weights, normalise, scale = mixture.facts
        return Ensemble(members, weights, normalise=normalise, scale=scale)
    if is_language_model(spec):
        return make_language_teacher(spec, where, model)
    if spec.get("type") == BM25:
        settings = {key: value for key, value in spec.items() if key != "type"}
        return _bm25(settings, corpus, where)
    from sluice.retrieval.config.components import make_encoder

    return ModelTeacher(make_encoder(spec, where=where, model=model), str(spec.get("model")))


def check_teacher(
    spec: str | Mapping[str, Any], where: str, allow: Allow = None, *, member: bool = False
) -> None:
    """Check ``teacher:`` before any work: its components, and that its file exists."""
    if isinstance(spec, str):
        if spec == STORED and not member:
            raise ConfigError(
                f"{where}: the scores of the examples are learnt without it: leave it out, or name "
                "it beside others in an ensemble"
            )
        if is_score_file(spec):
            _check_scores(spec, where)
        return
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where}: {spec!r:.60}; expected a name or a component")
    if is_language_model(spec):
        check_language_model(spec, where, allow)
        return
    if spec.get("type") != ENSEMBLE:
        table = {name: each.make for name, each in KNOWN.items() if each.teaches}
        check(spec, table, where=where, allow=allow)
        if spec.get("fields") is not None:
            raise ConfigError(f"{where}.fields: training texts have no fields; leave it out")
        return
    check_mixture(spec, where)
    for number, each in enumerate(spec["teachers"]):
        check_teacher(each, f"{where}.teachers.{number}", allow, member=True)


def _check_scores(name: str, where: str) -> None:
    from sluice.retrieval.training_data.teachers.distillation import open_scores

    path = expanded(name)
    if not path.is_file():
        names = [p.name for p in path.parent.glob("*.parquet")]
        raise ConfigError(
            f"{where}: no file {name}{suggest(path.name, names)}; `sluice teach distil` makes one"
        )
    open_scores(path)


def check_there(named: Any, where: str, trained: Collection[str] = ()) -> None:
    """Raise ``ConfigError`` if a teacher's model does not exist or is the model in training.

    Nor may one of the models ``trained`` in the experiment have the name of a built-in teacher that
    is named here.
    """
    for each in listed(named):
        for name in _built_in(each):
            if name in trained:
                means = "BM25 over the corpus" if name == BM25 else "the scores of the examples"
                raise ConfigError(
                    f"{where}: {name} means {means}, and train.{name} has that name too; give "
                    "that training another name"
                )
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


def _built_in(spec: Any) -> list[str]:
    """Return the names in a teacher's section that stand for no model: bm25 and examples."""
    if isinstance(spec, Mapping) and spec.get("type") == ENSEMBLE:
        return [name for member in spec["teachers"] for name in _built_in(member)]
    return [spec] if isinstance(spec, str) and spec in (BM25, STORED) else []


def is_score_file(name: str) -> bool:
    """Return whether a teacher's name is a file of scores."""
    return name.endswith(".parquet")


def teacher_models(spec: str | Mapping[str, Any] | None) -> list[str]:
    """Return the names of the models and files that ``teacher:`` refers to."""
    if spec is None:
        return []
    if isinstance(spec, str):
        return [] if spec in (BM25, STORED) else [spec]
    if spec.get("type") == ENSEMBLE:
        return [name for member in spec["teachers"] for name in teacher_models(member)]
    return [] if spec.get("type") == BM25 else local_model_of(spec)


def score_file(path: Path) -> Run:
    """Return the scores of a file of `sluice teach distil` as a run."""
    from sluice.retrieval.training_data.teachers.distillation import read_scores

    lists: dict[str, dict[str, float]] = {}
    for queries, documents, scores in read_scores(path):
        for query, document, score in zip(queries, documents, scores.tolist(), strict=True):
            lists.setdefault(query, {})[document] = score
    return Run(lists, name=path.name)
