"""Numbers given by callers: what counts as one, and how a wrong one is named."""

import math
from typing import Any

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import duration, finite_number, is_number, whole_number


@pytest.mark.parametrize("value", [0, -3, 2.5, np.float32(1.5), np.int64(7)])
def test_numbers(value: Any) -> None:
    assert is_number(value)
    assert finite_number(value, "x") == float(value)


@pytest.mark.parametrize(
    "value", [True, np.True_, "3", None, math.nan, math.inf, -math.inf, 1j, 10**400, [1]]
)
def test_what_is_no_number(value: Any) -> None:
    assert not is_number(value)
    with pytest.raises(ConfigError, match=r"x is .*, expected a finite number"):
        finite_number(value, "x")


def test_ranges_are_named() -> None:
    assert finite_number(1, "share", 0, 1) == 1.0
    with pytest.raises(ConfigError, match=r"share is 1\.5, expected a number from 0 to 1"):
        finite_number(1.5, "share", 0, 1)
    with pytest.raises(ConfigError, match=r"weight is -1, expected a number, 0 or more"):
        finite_number(-1, "weight", 0)
    with pytest.raises(ConfigError, match="k is True, expected a whole number, 1 or more"):
        whole_number(True, "k", 1)
    with pytest.raises(ConfigError, match=r"k is 2\.0, expected a whole number, 1 to 3"):
        whole_number(2.0, "k", 1, 3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min"), (134, "2 min 14 s"),
        (3599, "59 min 59 s"), (3601, "1 h"), (3900, "1 h 5 min"), (7185, "2 h"),
        (183_000, "2 d 3 h"), (86_390, "1 d"),
    ],
)  # fmt: skip
def test_times_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
