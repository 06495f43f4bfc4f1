"""A trained ranker with the names of its features: fitted, saved, opened again, and explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import build, check, resolve
from sluice.encoders.foundation.disk.files import file_hash
from sluice.encoders.foundation.disk.generations import replaced_folder, settle
from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    MissingPackageError,
    ModelError,
    suggest,
)
from sluice.retrieval.evaluation.fitted_file import read_fitted, write_fitted
from sluice.retrieval.evaluation.table import Table

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.stage import Stage
    from sluice.retrieval.stages.ltr.collection_terms import CollectionTerms
    from sluice.training.rankers.linear_ranker import JudgedLists

HEAD, TERMS = "ranker.json", "terms"
KIND = "ranker"
MOST_GRADE = 1_000  # floats hold 2^1023

# What ``ranker.model`` may be: settings with a ``fit``, and what reads their result again.
RANKERS: Final[Mapping[str, str]] = {
    "lightgbm": "sluice.training.rankers.tree_ranker:LambdaTrees",
    "linear": "sluice.training.rankers.linear_ranker:LambdaLinear",
}
READERS: Final[Mapping[str, str]] = {
    "lightgbm": "sluice.training.rankers.tree_ranker:TreeRanker",
    "linear": "sluice.training.rankers.linear_ranker:LinearRanker",
}


class Fitted(Protocol):
    """The model that the ``fit`` of ``RANKERS`` returns."""

    kind: str
    files: tuple[str, ...]

    @property
    def width(self) -> int:
        """The number of features."""
        ...

    def score(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return one score per row of ``features``."""
        ...

    def importances(self) -> NDArray[np.float64]:
        """Return what each feature is worth to it, in its own unit."""
        ...

    def write(self, folder: Path) -> None:
        """Write its files."""
        ...


@dataclass(frozen=True)
class LearnedRanker:
    """A model that scores candidates by features, which it knows by name.

    ``parts`` are the names of the retrievers whose scores are among the features, with the
    fingerprints of encoders that must be the same for the scores to mean what they meant.
    ``facts`` are noted in the folder.
    """

    model: Fitted
    features: tuple[str, ...]
    parts: Mapping[str, str | None] = field(default_factory=dict)
    language: str = "en"
    facts: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @classmethod
    def fit(
        cls,
        train: JudgedLists,
        features: Sequence[str],
        *,
        dev: JudgedLists | None = None,
        model: str | Mapping[str, Any] = "auto",
        parts: Mapping[str, str | None] | None = None,
        language: str = "en",
        facts: Mapping[str, Any] | None = None,
    ) -> LearnedRanker:
        """Train on lists whose columns are ``features``, stopping early by nDCG@10 on ``dev``.

        ``model`` is ``lightgbm``, ``linear``, or either as a component with settings, as in
        ``{"type": "lightgbm", "leaves": 15}``; ``auto`` is trees where LightGBM is installed.
        ``DataError`` if no list holds two different grades, which leaves nothing to learn.
        """
        taught = train.teaching()
        if train.features.shape[1] != len(features):
            raise DataError(
                f"ltr: {train.features.shape[1]} columns for {len(features)} named features"
            )
        if not len(taught):
            raise DataError(
                f"ltr: none of the {len(train):,} queries has a relevant document among its "
                "candidates and one that is not; take more candidates or other queries"
            )
        if train.grades.max() > MOST_GRADE:
            raise DataError(
                f"ltr: a grade of {train.grades.max():,}, and gains of 2^grade are taken; expected "
                f"grades up to {MOST_GRADE:,}"
            )
        if not np.isfinite(train.features).all():
            column = int(np.flatnonzero(~np.isfinite(train.features).all(axis=0))[0])
            raise DataError(f"ltr: feature {features[column]} is not finite for some candidate")
        fitted = trainer_of(model).fit(taught, dev)
        return cls(fitted, tuple(features), dict(parts or {}), language, dict(facts or {}))

    def score(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return one score per row; the columns are ``self.features``."""
        return self.model.score(features).astype(np.float32)

    def check_parts(self, parts: Sequence[Stage]) -> None:
        """Raise ``ModelError`` unless these retrievers give the features it was trained on."""
        given, wanted = [part.name for part in parts], list(self.parts)
        if sorted(given) != sorted(wanted):
            stranger = next((name for name in given if name not in wanted), "")
            raise ModelError(
                f"{self.path or 'ltr'}: trained with the scores of {', '.join(wanted) or 'none'}, "
                f"got {', '.join(given) or 'none'}{suggest(stranger, wanted)}; name the same "
                "retrievers, or train it again"
            )
        for part in parts:
            noted, found = self.parts[part.name], part_fingerprint(part)
            if noted is not None and found is not None and noted != found:
                raise ModelError(
                    f"{self.path or 'ltr'}: trained with {part.name} of encoder {noted[:12]}, "
                    f"which is {found[:12]} now; its scores mean something else: train it again"
                )

    def columns(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return where this ranker's features stand among ``names``; ``ModelError`` for one absent.

        A feature that is not computed is most often another version's.
        """
        place = {name: column for column, name in enumerate(names)}
        for name in self.features:
            if name not in place:
                raise ModelError(
                    f"{self.path or 'ltr'}: uses the feature {name!r}, which is not computed here"
                    f"{suggest(name, names)}; train it again"
                )
        return np.array([place[name] for name in self.features], np.int64)

    def importances(self) -> Table:
        """Return the features by what they are worth, largest first.

        ``gain`` of trees, the weight's size of a linear model, and the share of all.
        """
        values = self.model.importances()
        unit = "gain" if self.model.kind == "lightgbm" else "weight"
        table = Table(columns={unit: ",.4g", "share": ".1%"})
        total = float(values.sum()) or 1.0
        for column in np.argsort(-values, kind="stable").tolist():
            value = float(values[column])
            table.rows[self.features[column]] = {unit: value, "share": value / total}
        return table

    def save(self, path: str | Path, terms: CollectionTerms | None = None) -> None:
        """Write the folder ``path`` in one step; ``terms`` spare the stage a pass over the corpus.

        It holds the model as text, and ``ranker.json``: the features' names, fingerprints, facts.
        """
        with replaced_folder(Path(path), markers=(HEAD,)) as folder:
            self.model.write(folder)
            if terms is not None:
                terms.save(folder / TERMS)
            head = {
                "type": self.model.kind,
                "features": list(self.features), "parts": dict(self.parts),
                "language": self.language,
                "files": {name: file_hash(folder / name) for name in self.model.files},
                "facts": dict(self.facts),
                "importances": self.importances().to_dict()["systems"],
            }  # fmt: skip
            write_fitted(folder / HEAD, KIND, head)

    @classmethod
    def open(cls, path: str | Path) -> LearnedRanker:
        """Open a folder. ``ModelError`` for one that is missing, damaged, or newer."""
        folder = Path(path)
        settle(folder)
        if not (folder / HEAD).is_file():
            raise ModelError(
                f"{folder}: no {HEAD} here; expected the folder of a ranker (sluice fit ranker)"
            )
        head = read_fitted(folder / HEAD, KIND, maker="sluice fit ranker", error=ModelError)
        try:
            reader = resolve(READERS[head["type"]])
            features = tuple(str(name) for name in head["features"])
            for name in reader.files:
                if file_hash(folder / name) != head["files"][name]:
                    raise ModelError(f"{folder / name}: was changed or damaged; train it again")
            parts, language = dict(head["parts"]), str(head["language"])
            facts = dict(head["facts"])
        except (KeyError, TypeError, ValueError, AttributeError, FileNotFoundError) as error:
            raise ModelError(
                f"{folder / HEAD}: not as Sluice writes it ({error}); train it again"
            ) from None
        model = reader.read(folder)
        if model.width != len(features):
            raise ModelError(
                f"{folder}: the model has {model.width} features, the file names {len(features)}; "
                "train it again"
            )
        return cls(model, features, parts, language, facts, folder)


def part_fingerprint(part: Stage) -> str | None:
    """Return what must stay the same of a part: a retriever's encoder, unless it counts a corpus.

    None for BM25, whose counts change with every document, and for other stages than retrievers.
    """
    from sluice.retrieval.retrievers.retriever import Retriever

    if not isinstance(part, Retriever) or hooks_of(part.encoder).learner is not None:
        return None
    return str(part.head.encoder_fingerprint)


def check_model(model: str | Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the component that ``ranker.model`` stands for; ``ConfigError`` for any other value.

    ``auto`` is decided: ``lightgbm`` where it is installed, else ``linear``.
    """
    from sluice.training.rankers import tree_ranker

    spec = {"type": model} if isinstance(model, str) else dict(model)
    if spec.get("type") == "auto":
        spec["type"] = "lightgbm" if tree_ranker.has_lightgbm() else "linear"
    if spec.get("type") not in RANKERS:
        raise ConfigError(
            f"{where}: {spec.get('type')!r}; expected auto, {', '.join(RANKERS)}"
            f"{suggest(str(spec.get('type')), RANKERS)}"
        )
    if spec["type"] == "lightgbm" and not tree_ranker.has_lightgbm():
        raise MissingPackageError("lightgbm", "lightgbm", where)
    check(spec, RANKERS, where=where, allow=())
    return spec


def trainer_of(model: str | Mapping[str, Any]) -> Any:
    """Return the settings that train what ``model`` describes."""
    return build(check_model(model, "ranker.model"), RANKERS, where="ranker.model")
