"""Arithmetic types by device: bfloat16 only where a CPU computes in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sluice.encoders import DenseEncoder
from sluice.encoders.backends import backend
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.measured import Measured
from sluice.encoders.transformer import arithmetic
from sluice.training.loop.arguments import training_arguments

CPU = torch.device("cpu")


TABLE = {  # what is written, and milliseconds of float32 and bfloat16: what is used
    ("auto", 2.0, 1.0): torch.bfloat16,
    ("auto", 1.0, 1.8): torch.float32,  # it has the instructions, and is slow in them
    ("auto", 1.0, 0.98): torch.float32,
    ("bfloat16", 2.0, 1.0): torch.bfloat16,
    ("bfloat16", 1.0, 1.8): torch.float32,
    ("float32", 2.0, 1.0): torch.float32,
}


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """Take made-up milliseconds for the processor's."""
    seconds: dict[str, float] = {}
    monkeypatch.delenv("SLUICE_ARITHMETIC")
    monkeypatch.setattr(arithmetic, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(arithmetic, "product_times", lambda shapes, **kinds: Measured(seconds))
    backend.say_used.cache_clear()
    yield seconds
    backend.say_used.cache_clear()


@pytest.mark.parametrize(("asked", "used"), TABLE.items())
def test_what_is_faster_is_used(
    asked: tuple[Any, float, float], used: torch.dtype, times: dict[str, float],
    caplog: pytest.LogCaptureFixture, tmp_path: Path,
) -> None:  # fmt: skip
    dtype, times["float32"], times["bfloat16"] = asked
    with caplog.at_level(logging.WARNING, "sluice"):
        for _ in range(2):
            assert arithmetic.pick_dtype(dtype, CPU) is used
    surprising = dtype == "bfloat16" and used is torch.float32
    assert len(caplog.records) == surprising, "said once; auto is no surprise"
    trained = training_arguments(
        {"bf16": True, "use_cpu": True}, output=tmp_path, seed=1, evaluate_every=None,
        evaluated=False, metric=None,
    )  # fmt: skip
    assert trained.bf16 is (times["bfloat16"] < 0.97 * times["float32"])


def test_a_processor_without_the_instructions_is_not_timed(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arithmetic, "has_bfloat16", lambda device: False)
    assert arithmetic.pick_dtype("bfloat16", CPU) is torch.float32
    assert arithmetic.pick_dtype("bfloat16", torch.device("meta")) is torch.bfloat16


def test_the_environment_overrides_what_is_measured(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    times.update(float32=1.0, bfloat16=5.0)
    monkeypatch.setenv("SLUICE_ARITHMETIC", "bfloat16")
    assert arithmetic.pick_dtype("auto", CPU) is torch.bfloat16
    monkeypatch.setenv("SLUICE_ARITHMETIC", "float32")
    assert arithmetic.pick_dtype("bfloat16", CPU) is torch.float32
    monkeypatch.setenv("SLUICE_ARITHMETIC", "half")
    with pytest.raises(ConfigError, match="SLUICE_ARITHMETIC: 'half'; expected float32"):
        arithmetic.pick_dtype("auto", CPU)


def test_the_products_of_the_model_are_timed(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = DenseEncoder.from_pretrained(bert, device="cpu")
    shapes = arithmetic.shapes_of(model.module)
    assert len(shapes) > 1
    monkeypatch.setattr("sluice.encoders.foundation.measured._HERE", {})
    times = arithmetic.product_times(shapes)
    assert set(times.seconds) == {"float32", "bfloat16"}
    assert all(0 < each < 1 for each in times.seconds.values())


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected 'float32', 'bfloat16', 'int8' or 'auto'"):
        arithmetic.pick_dtype("float16", CPU)  # type: ignore[arg-type]


def test_x86_without_the_instructions_only_imitates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "AMD64")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert backend.has_bfloat16.__wrapped__("cpu") is False
    assert backend.has_bfloat16.__wrapped__("mps") is False
