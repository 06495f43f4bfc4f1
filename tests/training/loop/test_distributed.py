"""Two processes give what one process with the whole batch gives."""

from __future__ import annotations

import importlib
import socket
import sys
from pathlib import Path

import pytest
import safetensors.torch
import tiny_models
import torch
from forks import run_together
from places import SUPPORT

SCRIPT = SUPPORT / "distributed.py"


@pytest.mark.thorough
def test_two_processes_are_one_with_the_whole_batch(tmp_path: Path) -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        distributed = importlib.import_module("distributed")
    finally:
        sys.path.remove(str(SCRIPT.parent))
    model = tiny_models.save_model(
        tmp_path / "model", "ForMaskedLM", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    one, two = tmp_path / "one", tmp_path / "two"
    assert run_together(SCRIPT, two, model, 2, environments=_of_torchrun(2)) == [0, 0]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for kind in distributed.KINDS:
        distributed.trained(kind, one, model, 1)
        alone, first, second = (
            safetensors.torch.load_file(folder / f"{kind}-{rank}.safetensors")
            for folder, rank in ((one, 0), (two, 0), (two, 1))
        )
        for name, expected in alone.items():
            assert torch.equal(first[name], second[name]), (kind, name)
            assert torch.allclose(first[name], expected, atol=2e-5), (kind, name)
    torch.set_num_threads(threads)


def _of_torchrun(processes: int) -> list[dict[str, str]]:
    """Return the variables that torchrun gives to each of its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    sizes = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    return [
        {**address, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(processes)
    ]
