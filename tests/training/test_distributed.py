"""Two processes give what one process with the whole batch gives, and resume."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

SCRIPT = Path(__file__).parent / "distributed.py"


def trained(output: Path, kind: str, cache: int, processes: int) -> list[dict[str, torch.Tensor]]:
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    arguments = [str(SCRIPT), str(output), kind, str(cache), str(processes)]
    done = subprocess.run([*launcher, *arguments], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return [
        safetensors.torch.load_file(output / f"weights-{rank}.safetensors")
        for rank in range(processes)
    ]


@pytest.mark.parametrize(("kind", "cache"), [("splade", 3), ("dense", 0), ("cross", 0)])
def test_two_processes_are_one_with_the_whole_batch(kind: str, cache: int, tmp_path: Path) -> None:
    (alone,) = trained(tmp_path / "one", kind, cache, 1)
    first, second = trained(tmp_path / "two", kind, cache, 2)
    for name, expected in alone.items():
        assert torch.equal(first[name], second[name]), name
        assert torch.allclose(first[name], expected, atol=2e-5), name
    (again, _) = trained(tmp_path / "two", kind, cache, 2)  # finished before: only loaded
    assert all(torch.equal(again[name], first[name]) for name in first)
