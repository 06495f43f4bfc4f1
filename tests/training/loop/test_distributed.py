"""Two processes give what one process with the whole batch gives."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import safetensors.torch
import tiny_models
import torch
from places import SUPPORT

SCRIPT = SUPPORT / "distributed.py"


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
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc_per_node", "2", str(SCRIPT), str(two), str(model), "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
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
