"""Arithmetic types by device: bfloat16 only where a CPU computes in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sluice.encoders.backends import backend
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.loop.arguments import training_arguments

CPU = torch.device("cpu")


@pytest.fixture
def supported(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Pretend that CPUs have bfloat16 arithmetic, or that they have not."""
    monkeypatch.setattr(backend, "has_bfloat16", lambda device: request.param)
    monkeypatch.setattr("sluice.training.loop.arguments.has_bfloat16", lambda _: request.param)
    backend.warn_of_float32.cache_clear()
    yield request.param
    backend.warn_of_float32.cache_clear()


@pytest.mark.parametrize("supported", [True], indirect=True)
def test_bfloat16_is_used_where_the_cpu_has_it(
    supported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert backend.pick_dtype("bfloat16", CPU) is torch.bfloat16
    assert backend.pick_dtype("auto", CPU) is torch.bfloat16
    assert backend.pick_dtype("float32", CPU) is torch.float32
    assert not caplog.records


@pytest.mark.parametrize("supported", [False], indirect=True)
def test_float32_is_used_and_said_once_where_it_has_not(
    supported: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        assert backend.pick_dtype("auto", CPU) is torch.float32
        assert not caplog.records, "auto is no surprise"
        for _ in range(2):
            assert backend.pick_dtype("bfloat16", CPU) is torch.float32
        assert [each.getMessage().partition(":")[0] for each in caplog.records] == ["dtype"]
        assert backend.pick_dtype("bfloat16", torch.device("meta")) is torch.bfloat16
        made = training_arguments(
            {"bf16": True, "use_cpu": True}, output=tmp_path, seed=1, evaluate_every=None,
            evaluated=False, metric=None,
        )  # fmt: skip
    assert made.bf16 is False
    assert "trainer.bf16" in caplog.records[-1].getMessage()


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected 'float32', 'bfloat16' or 'auto'"):
        backend.pick_dtype("float16", CPU)  # type: ignore[arg-type]


def test_x86_without_the_instructions_only_imitates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "AMD64")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert backend.has_bfloat16.__wrapped__("cpu") is False
    assert backend.has_bfloat16.__wrapped__("mps") is False
