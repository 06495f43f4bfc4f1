"""Hubness of a run: the skewness of how often documents come up, by definition."""

import json

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Ranking, Run
from sluice.retrieval.evaluation.measures import hubness


def test_hubness_by_definition() -> None:
    run = Run({f"q{i}": {"hub": 9.0, f"d{i}": 2.0, "e": 1.0} for i in range(4)})
    found = hubness(run, k=2)
    counts = np.array([4.0, 1, 1, 1, 1, 0])
    expected = np.mean((counts - counts.mean()) ** 3) / counts.std() ** 3
    assert found.skewness == pytest.approx(expected)
    assert found.largest == 4
    assert found.never == pytest.approx(1 / 6)
    assert found.hubs[0] == ("hub", 4)
    assert hubness(run, k=1, documents=100).skewness > 9
    assert hubness(Run({"q": Ranking([], [])})) == (0.0, 0, 0.0, ())
    assert hubness(Run({"q": {"a": 1.0}})).skewness == 0
    assert hubness(Run({}), documents=5) == (0.0, 0, 1.0, ())
    with pytest.raises(ConfigError, match="documents: 2, but the run's first hits are 5"):
        hubness(run, k=2, documents=2)
    with pytest.raises(ConfigError, match="k"):
        hubness(run, k=0)
    assert json.dumps(found)
