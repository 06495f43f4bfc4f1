"""Learning to rank by gradient-boosted trees: LambdaMART, from LightGBM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.disk.files import write_text
from sluice.encoders.foundation.errors import ConfigError, ModelError, needed_package
from sluice.training.rankers.linear_ranker import Floats, JudgedLists, ndcg_of

TREES = "trees.txt"


@dataclass(frozen=True, eq=False)
class TreeRanker:
    """Trees in LightGBM's text format; ``threads`` is how many score at once."""

    text: str
    threads: int = 1

    kind = "lightgbm"
    files = (TREES,)

    @cached_property
    def _booster(self) -> Any:
        lightgbm = _lightgbm()
        try:
            return lightgbm.Booster(model_str=self.text)
        except lightgbm.basic.LightGBMError as error:
            raise ModelError(f"{TREES}: LightGBM cannot read it ({error}); train again") from None

    @property
    def width(self) -> int:
        """The number of features."""
        return int(self._booster.num_feature())

    def score(self, features: NDArray[np.float32]) -> Floats:
        """Return one score per row of ``features``."""
        if not len(features):
            return np.zeros(0)
        return np.asarray(self._booster.predict(features, num_threads=self.threads), np.float64)

    def importances(self) -> Floats:
        """Return each feature's gain: what its splits took off the loss, over all trees."""
        return np.asarray(self._booster.feature_importance(importance_type="gain"), np.float64)

    def write(self, folder: Path) -> None:
        """Write the trees into a folder, as text."""
        write_text(folder / TREES, self.text)

    @classmethod
    def read(cls, folder: Path) -> TreeRanker:
        """Read what ``write`` wrote; LightGBM parses it when the first candidate is scored."""
        try:
            return cls((folder / TREES).read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ModelError(f"{folder / TREES}: not UTF-8 ({error.reason}); train again") from None


@dataclass(frozen=True)
@checked("lightgbm.")
class LambdaTrees:
    """LambdaMART (Burges, 2010): trees fitted to lambda gradients, with Newton's step at leaves.

    Up to ``trees`` of ``leaves`` leaves, each added with ``learning_rate``; after ``patience``
    trees without a better nDCG@10 on dev the best number of them is kept. A leaf holds
    ``rows_per_leaf`` candidates or more. Only pairs with a candidate in the first ``truncation``
    count. ``normalise`` divides each query's gradients by their size, LightGBM's own habit.
    ``feature_share`` of the features, drawn for each tree, are considered. The same lists and
    seed give the same trees, whatever ``threads``.
    """

    leaves: int = 31
    learning_rate: Annotated[
        float, "The learning rate of the loss's own parameters; null: the trainer's."
    ] = 0.05
    trees: int = 500
    rows_per_leaf: int = 20
    sigma: Annotated[float, "The steepness of the pairs' logistic loss."] = 1.0
    truncation: int = 30
    patience: int = 50
    l2: Annotated[float, "The penalty of squared weights."] = 0.0
    feature_share: Annotated[float, Interval(gt=0, le=1)] = 1.0
    normalise: bool = True
    threads: int = 1
    seed: int = 13

    def __post_init__(self) -> None:
        least = {"leaves": 2, "trees": 1, "rows_per_leaf": 1, "truncation": 1, "patience": 1}
        for name, bound in {**least, "threads": 1}.items():
            if getattr(self, name) < bound:
                raise ConfigError(
                    f"lightgbm.{name}: {getattr(self, name)}; expected {bound} or more"
                )
        if self.learning_rate <= 0 or self.sigma <= 0 or self.l2 < 0:
            raise ConfigError("lightgbm: expected learning_rate and sigma above 0, l2 0 or more")

    def fit(self, train: JudgedLists, dev: JudgedLists | None = None) -> TreeRanker:
        """Return the trees that the lists teach; without ``dev`` all of them are kept."""
        lightgbm = _lightgbm()
        teaching = train.teaching()
        settings = {
            "objective": "lambdarank", "metric": "None", "verbosity": -1,
            "num_leaves": self.leaves, "learning_rate": self.learning_rate,
            "min_data_in_leaf": self.rows_per_leaf, "sigmoid": self.sigma, "lambda_l2": self.l2,
            "lambdarank_truncation_level": self.truncation, "lambdarank_norm": self.normalise,
            "feature_fraction": self.feature_share, "num_threads": self.threads,
            "label_gain": [2**grade - 1 for grade in range(max(int(teaching.grades.max()), 1) + 1)],
            "seed": self.seed, "deterministic": True, "force_row_wise": True,
            "feature_pre_filter": False,
        }  # fmt: skip

        of_data = {key: settings[key] for key in ("verbosity", "feature_pre_filter", "num_threads")}

        def dataset(lists: JudgedLists, like: Any = None) -> Any:
            return lightgbm.Dataset(
                lists.features, np.maximum(lists.grades, 0), group=np.diff(lists.starts),
                reference=like, params=of_data,
            )  # fmt: skip

        data = dataset(teaching)
        if dev is None or not len(dev.grades):
            booster = lightgbm.train(settings, data, num_boost_round=self.trees)
        else:
            booster = lightgbm.train(
                settings, data, num_boost_round=self.trees, valid_sets=[dataset(dev, data)],
                feval=_measure(dev),
                callbacks=[lightgbm.early_stopping(self.patience, verbose=False)],
            )  # fmt: skip
        return TreeRanker(booster.model_to_string(num_iteration=booster.best_iteration or None))


def _measure(dev: JudgedLists) -> Callable[[Floats, Any], tuple[str, float, bool]]:
    return lambda scores, _: ("ndcg@10", float(ndcg_of(scores, dev).mean()), True)


def has_lightgbm() -> bool:
    """Say whether LightGBM is installed."""
    from importlib.util import find_spec

    return find_spec("lightgbm") is not None


def _lightgbm() -> Any:
    with needed_package("lightgbm", "lightgbm", "a ranker of trees"):
        import lightgbm
    return lightgbm
