"""Which stored negatives are far enough below their positives, by the scores of their row."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.training_data.files.rows import Labelled, Row
from sluice.training.negatives.settings import Among, Mining


def check_limits(ratio: float | None, margin: float | None, positive_score: Among) -> None:
    """Raise ``ConfigError`` for a limit that is not a number, or a choice without limits."""
    if ratio is not None and not 0 < ratio < math.inf:
        raise ConfigError(f"max_positive_ratio: {ratio}, expected above 0 (0.95 is usual)")
    if margin is not None and not math.isfinite(margin):
        raise ConfigError(f"margin: {margin}, expected a finite number")
    if ratio is None and margin is None and positive_score != "lowest":
        raise ConfigError(
            f"positive_score: {positive_score!r} is for max_positive_ratio and margin, of which "
            "there is none; set one, or leave it out"
        )


def limits_of(ratio: float | None, margin: float | None, positive_score: Among) -> Mining:
    """Return the limits as mining has them."""
    return Mining(max_positive_ratio=ratio, margin=margin, positives=positive_score)


def below_limits(row: Row, negatives: Sequence[Labelled], limits: Mining) -> list[Labelled] | None:
    """Return the negatives below the limits; None where the row lacks a score."""
    scores = [one.score for one in row.documents if one.label > 0]
    if any(map(math.isnan, [*scores, *(one.score for one in negatives)])):
        return None
    positive = limits.reference(scores)
    highest = min(positive - (a + b * abs(positive)) for _, a, b in limits.margins)
    return [one for one in negatives if one.score < highest]
