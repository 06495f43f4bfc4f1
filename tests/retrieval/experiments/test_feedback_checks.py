"""Feedback by vectors that an encoder does not give is refused when the config is checked."""

from typing import Any

import pytest

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.checks import check_experiment


@pytest.mark.parametrize(
    ("encoder", "pipeline", "says"),
    [
        ({"type": "seal", "model": "m"}, "prf(r)", "dense .* a seal encoder has none of; search"),
        ({"type": "gaussian", "model": "m"}, "prf(r)", "a gaussian encoder has none of; search"),
        ({"type": "bm25"}, "prf(r) % 5", r"a bm25 encoder has none of; use rm3\(r\)"),
        ({"type": "dense", "model": "m"}, "rm3(r)", r"a dense encoder has none of; use prf\(r\)"),
        ({"type": "tokens", "model": "m"}, "b | (b >> prf(r))", "a tokens encoder has none of"),
        ({"type": "dense", "model": "m"}, "b >> prf(r)", None),
        ({"type": "splade", "model": "m"}, "rm3(r)", None),
    ],
)
def test_feedback_without_vectors_is_refused_before_any_work(
    encoder: dict[str, Any], pipeline: str, says: str | None
) -> None:
    config = {"dataset": "pydocs", "retrievers": {"r": {"encoder": encoder}, "b": "bm25"}}
    parsed = checked({**config, "pipelines": {"p": pipeline}}, ExperimentConfig)
    if says is None:
        check_experiment(parsed)
        return
    with pytest.raises(ConfigError, match=rf"pipelines.p: \w+\(r, .*: feedback takes .*{says}"):
        check_experiment(parsed)
