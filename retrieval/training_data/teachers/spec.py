"""The section ``teacher``, read once: what each form of teacher names, needs, and is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.build import build, check
from sluice.encoders.foundation.disk.files import file_hash, fingerprint_of
from sluice.encoders.foundation.disk.generations import settle
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.model_files.locate import is_path
from sluice.encoders.table import KNOWN, EncoderTraits
from sluice.retrieval.config.component_types import ENSEMBLE
from sluice.retrieval.pipelines.table import LANGUAGE_MODELS, REMOTE
from sluice.retrieval.retrievers.candidate_lists import SELF, listed
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.teachers.scoring_tasks import open_scores, run_of_scores
from sluice.retrieval.training_data.teachers.teachers import (
    CACHE,
    SETTINGS,
    STYLES,
    TYPES,
    Ensemble,
    LanguageTeacher,
    Mixture,
    ModelTeacher,
    RunTeacher,
    Teacher,
    Texts,
    parsed_component,
)

if TYPE_CHECKING:
    from sluice.retrieval.config.components import Allow

BM25: Final = "bm25"
STORED: Final = "examples"  # the name of the scores that the training examples bring
SCORES: Final = ".parquet"  # how the name of a file of scores ends


@dataclass(frozen=True, slots=True)
class Context:
    """What a teacher is made with.

    ``model`` maps the names of models trained in an experiment to their folders, ``corpus`` streams
    the texts of all documents, and ``stored`` makes the run of the scores that training examples
    bring.
    """

    model: Callable[[str], str] = str
    corpus: Texts | None = None
    stored: Callable[[], Run] | None = None


class TeacherSpec:
    """What a section says, at its place ``where``: a run's file or a model's folder or hub id.

    A name shows which of them only where it is opened. The contents of its ``sources``, models,
    runs and files, decide the scores.
    """

    needs = ""  # what it is called, of one that a corpus or training examples are needed for
    pairs_only = ""  # what it is called, of one that cannot score whole batches
    one_vector = True  # whether it may have one dense vector of a text

    def __init__(self, value: Any, where: str) -> None:
        self.value = value
        self.where = where

    @property
    def sources(self) -> Sequence[str]:
        """The names of the models, runs and files that it reads."""
        return [self.value]

    @property
    def members(self) -> list[TeacherSpec]:
        """The teachers whose scores are mixed: itself, or those of an ensemble."""
        return [self]

    @property
    def mixture(self) -> Mixture:
        """How the scores of its members become one."""
        return Mixture(1)

    def parts(self) -> Iterator[TeacherSpec]:
        """Yield itself, or of an ensemble the parts of its members."""
        yield self

    def check(self, allow: Allow = None) -> None:
        """Raise ``ConfigError`` for a fault that shows before any work; none in a plain name."""

    def check_exists(self, trained: Collection[str] = ()) -> None:
        """Raise ``ConfigError`` if one of its models does not exist or is the one in training.

        Nor may one of the models ``trained`` in the experiment have the name of a built-in teacher
        that is named here.
        """
        for name in [part.value for part in self.parts() if part.value == part.needs]:
            if name in trained:
                means = "BM25 over the corpus" if name == BM25 else "the scores of the examples"
                raise ConfigError(
                    f"{self.where}: {name} means {means}, and train.{name} has that name too; give "
                    "that training another name"
                )
        for name in self.sources:
            if name == SELF:
                raise ConfigError(
                    f"{self.where}: self: a model in training cannot judge itself; name another"
                )
            path = expanded(name)
            if is_path(name) and not path.exists():
                settle(path)  # a killed replacement may have moved it
                if not path.exists():
                    raise ConfigError(f"{self.where}: no model folder or run file {name}")

    def make(self, context: Context) -> Teacher:
        """Make the teacher; ``ConfigError`` where the context lacks what it needs."""
        if self.value.lstrip().startswith("{"):
            spec = teacher_spec(parsed_component(self.value, self.where), self.where)
            spec.check()
            return spec.make(context)
        path = expanded(self.value)
        if path.is_file():
            return RunTeacher(self.run(path), path.name, file_hash(path))
        from sluice.encoders.model_files.registry import open_encoder

        return ModelTeacher(open_encoder(context.model(self.value)), self.value)

    def run(self, path: Path) -> Run:
        """Return the scores in a file."""
        return Run.load(path)


class ScoreFileSpec(TeacherSpec):
    """A file of scores, as ``sluice teach distil`` writes it."""

    @property
    def pairs_only(self) -> str:  # type: ignore[override]
        """Its name."""
        return str(self.value)

    def check(self, allow: Allow = None) -> None:
        """Check that the file is there, and is one of scores."""
        path = expanded(self.value)
        if not path.is_file():
            names = [p.name for p in path.parent.glob(f"*{SCORES}")]
            raise ConfigError(
                f"{self.where}: no file {self.value}{suggest(path.name, names)}; `sluice teach "
                "distil` makes one"
            )
        open_scores(path)

    def run(self, path: Path) -> Run:
        """Return the scores in a file."""
        return run_of_scores(path)


class ExamplesSpec(TeacherSpec):
    """``examples``: the scores that a training file's rows bring."""

    needs = pairs_only = STORED
    sources = ()

    def check(self, allow: Allow = None) -> None:
        """Refuse it, which goes as one of an ensemble alone."""
        raise ConfigError(
            f"{self.where}: the scores of the examples are learnt without it: leave it out, or "
            "name it beside others in an ensemble"
        )

    def make(self, context: Context) -> Teacher:
        """Look the scores up."""
        if context.stored is None:
            raise ConfigError(
                f"{self.where}: {STORED} are the scores of a training file's rows, and here are "
                "none; name a model, a run or a file of scores"
            )
        run = context.stored()
        lists = [(query, list(run[query])) for query in run]
        return RunTeacher(run, STORED, fingerprint_of(STORED, lists))


class ModelSpec(TeacherSpec):
    """A component: a cross-encoder, or an encoder by the similarity of its two vectors."""

    def __init__(self, value: Any, where: str) -> None:
        super().__init__(value, where)
        kind = str(value.get("type"))
        traits = KNOWN.get(kind, EncoderTraits(""))
        self.pairs_only = kind if traits.form == "scores" or kind in LANGUAGE_MODELS else ""
        self.one_vector = traits.form == "dense" and not traits.one_way

    @property
    def sources(self) -> Sequence[str]:
        """Its model, unless that is behind an endpoint."""
        return [] if self.value.get("type") in REMOTE else [str(self.value.get("model"))]

    def check(self, allow: Allow = None) -> None:
        """Check the component."""
        table = {name: each.make for name, each in KNOWN.items() if each.teaches}
        check(self.value, table, where=self.where, allow=allow)
        if self.value.get("fields") is not None:
            raise ConfigError(f"{self.where}.fields: training texts have no fields; leave it out")

    def make(self, context: Context) -> Teacher:
        """Open the model."""
        from sluice.retrieval.config.components import make_encoder

        model = make_encoder(self.value, where=self.where, model=context.model)
        return ModelTeacher(model, str(self.value.get("model")))


class Bm25Spec(ModelSpec):
    """A component with settings, or ``bm25`` alone: words are counted in the corpus."""

    needs = BM25
    sources = ()

    def __init__(self, value: Any, where: str) -> None:
        super().__init__({"type": BM25} if value == BM25 else value, where)
        self.value = value

    def check(self, allow: Allow = None) -> None:
        """Check the settings."""
        if self.value != BM25:
            super().check(allow)

    def make(self, context: Context) -> Teacher:
        """Count the words of the corpus."""
        from sluice.encoders.lexical.bm25 import BM25Encoder

        if context.corpus is None:
            raise ConfigError(
                f"{self.where}: bm25 counts words in a corpus; name the dataset that has it"
            )
        settings = {} if self.value == BM25 else {**self.value}
        settings.pop("type", None)
        return ModelTeacher(BM25Encoder(**settings).fit(context.corpus()), BM25)


class LanguageModelSpec(ModelSpec):
    """``{type: generative, ...}`` or ``{type: http, ...}``, with ``cache``."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Its settings but for the cache."""
        return {key: value for key, value in self.value.items() if key != CACHE}

    def check(self, allow: Allow = None) -> None:
        """Check the component, its style and its cache."""
        check(self.arguments, TYPES, where=self.where, allow=allow)
        style, cache = self.value.get("style", "yes_no"), self.value.get(CACHE, "none")
        if style not in STYLES:
            raise ConfigError(
                f"{self.where}.style: {style} orders lists, and here each pair needs a score of "
                f"its own; expected one of {', '.join(STYLES)}"
            )
        if not isinstance(cache, str) or not cache:
            raise ConfigError(
                f"{self.where}.cache: {cache!r:.60}; expected a file, as 'runs/answers.sqlite'"
            )

    def make(self, context: Context) -> Teacher:
        """Open the language model."""
        self.check()
        arguments = self.arguments
        for name in self.sources:
            arguments["model"] = context.model(name)
        scorer = build(arguments, TYPES, where=self.where)
        return LanguageTeacher(scorer, str(self.value["model"]), self.value.get(CACHE))


class EnsembleSpec(TeacherSpec):
    """``{type: ensemble, teachers: [...], weights: [...], normalise: min-max, scale: 30}``."""

    @property
    def sources(self) -> Sequence[str]:
        """Those of its members."""
        return [name for part in self.parts() for name in part.sources]

    @property
    def members(self) -> list[TeacherSpec]:
        """The teachers whose scores are mixed, each with its place."""
        teachers = enumerate(self.value["teachers"])
        return [teacher_spec(each, f"{self.where}.teachers.{place}") for place, each in teachers]

    @property
    def mixture(self) -> Mixture:
        """How the scores of its members become one."""
        settings = {key: self.value[key] for key in SETTINGS[1:] if key in self.value}
        return Mixture(len(self.value["teachers"]), **settings, where=self.where)

    def parts(self) -> Iterator[TeacherSpec]:
        """Yield the parts of its members."""
        for member in self.members:
            yield from member.parts()

    def check(self, allow: Allow = None) -> None:
        """Check the settings, then the members."""
        spec, where = self.value, self.where
        for key in spec:
            if key not in ("type", *SETTINGS):
                raise ConfigError(
                    f"{where}.{key}: ensemble takes {', '.join(SETTINGS)}"
                    f"{suggest(str(key), SETTINGS)}"
                )
        teachers = spec.get("teachers")
        if not isinstance(teachers, list) or not teachers:
            raise ConfigError(f"{where}.teachers: {teachers!r:.60}; expected a list of teachers")
        weights, scale = spec.get("weights", [1.0] * len(teachers)), spec.get("scale", 1.0)
        numbers = isinstance(weights, list) and all(is_number(w) and w > 0 for w in weights)
        if not numbers or len(weights) != len(teachers):
            raise ConfigError(
                f"{where}.weights: {weights!r:.60}; expected a number above 0 for each"
            )
        if not is_number(scale):
            raise ConfigError(f"{where}.scale: {scale!r:.60}; expected a finite number above 0")
        _ = self.mixture
        for member in self.members:
            if not isinstance(member, ExamplesSpec):
                member.check(allow)

    def make(self, context: Context) -> Teacher:
        """Make the members."""
        members = [member.make(context) for member in self.members]
        weights, normalise, scale = self.mixture.facts
        return Ensemble(members, weights, normalise=normalise, scale=scale)


NAMES: Final[Mapping[str, type[TeacherSpec]]] = {BM25: Bm25Spec, STORED: ExamplesSpec}
COMPONENTS: Final[Mapping[str, type[TeacherSpec]]] = {
    BM25: Bm25Spec,
    ENSEMBLE: EnsembleSpec,
    **dict.fromkeys(LANGUAGE_MODELS, LanguageModelSpec),
}


def teacher_spec(value: Any, where: str = "teacher") -> TeacherSpec:
    """Return what a section ``teacher``, or a member of an ensemble, says."""
    if isinstance(value, Mapping):
        return COMPONENTS.get(str(value.get("type")), ModelSpec)(value, where)
    if not isinstance(value, str | Path):
        raise ConfigError(f"{where}: {value!r:.60}; expected a name or a component")
    name = str(value)
    file = ScoreFileSpec if name.endswith(SCORES) else TeacherSpec
    return NAMES.get(name, file)(name, where)


def check_teachers_exist(named: Any, where: str, trained: Collection[str] = ()) -> None:
    """Check that the models of a teacher, or of one judge or several, exist; no object is one."""
    for each in listed(named):
        if isinstance(each, str | Mapping):
            teacher_spec(each, where).check_exists(trained)
