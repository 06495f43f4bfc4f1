"""What a student's scores are multiplied by, or divided by, before a loss reads them."""

from __future__ import annotations

import math

from sluice.encoders.foundation.errors import ConfigError

COSINE = 20.0  # cosines lie in [-1, 1]: too narrow for a softmax or a logistic to saturate


def scale_for(scale: float | None, similarity: str) -> float:
    """Return the factor of the scores; left out 20 for cosine and 1 for what is not bounded."""
    if scale is not None:
        return scale
    return COSINE if similarity == "cosine" else 1.0


def temperature_for(temperature: float | None, similarity: str) -> float:
    """Return the divisor of the scores; left out 0.05 for cosine and 1 for what is not bounded."""
    return 1.0 / scale_for(None, similarity) if temperature is None else temperature


def check_positive(loss: str, **settings: float | None) -> None:
    """Raise ``ConfigError`` for a setting that is given and not a number above 0."""
    for name, value in settings.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{loss}.{name}: {value!r}, expected above 0")
