"""Kills a process of a training at random moments: the same command must end with the same bits.

Usage: python scripts/prove_launch.py [processes|ray] [KILLS] [SEED]

Two workers train a tiny model on a tiny collection, with negatives that another process mines
beside (a lag of 2 of 4 steps). Each time the driver, a worker, the miner or a process of Ray's is
killed, whichever is drawn; what the training then does not recover by itself is started again.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import yaml
from serving_load import family as processes

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import tiny_models  # noqa: E402
from small_world import write_beir  # noqa: E402

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


def config(folder: Path, launcher: str) -> Path:
    """Write the training's YAML file."""
    model = tiny_models.save_model(folder / "model", "Model")
    mined = {"type": "mined", "retriever": "self", "per_query": 1, "mode": "naive"}
    values = {
        "dataset": str(write_beir(folder / "data")),
        "output": str(folder / "out"),
        "encoder": {"type": "dense", "model": str(model)},
        "loss": {"type": "info_nce"},
        "negatives": {**mined, "refresh": {"every": 4, "lag": 2}},
        "launch": {"type": launcher, "workers": 2},
        "trainer": {
            "max_steps": 24, "per_device_train_batch_size": 2, "learning_rate": 1e-3,
            "save_steps": 2, "logging_steps": 1,
        },
    }  # fmt: skip
    file = folder / "training.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return file


def started(file: Path, output: Path) -> subprocess.Popen[bytes]:
    """Start the command, in a session of its own."""
    environment = {**os.environ, **THREADS, "PYTHONPATH": str(ROOT)}
    with Path(f"{output}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "sluice", "train", str(file), f"output={output}"],
            env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def family(root: int) -> dict[int, str]:
    """Return a process and all that it has started, with what each is."""
    return {pid: _what(pid) if pid != root else "driver" for pid in processes(root)}


def _what(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "ended"
    named = {
        "group_member": "worker", "execution.worker": "miner", "RayTrainWorker": "worker of Ray",
        "TrainController": "controller of Ray", "gcs_server": "head of Ray",
        "raylet": "node of Ray",
    }  # fmt: skip
    return next((what for mark, what in named.items() if mark in words), "another process")


def fingerprint(output: Path) -> str:
    """Return a hash of the weights, or nothing where there is no model."""
    file = output / "model" / "model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.exists() else ""


def main() -> None:
    launcher = sys.argv[1] if len(sys.argv) > 1 else "processes"
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    draw = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 13)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        file = config(folder, launcher)
        start = time.monotonic()
        code = started(file, folder / "undisturbed").wait()
        seconds, expected = time.monotonic() - start, fingerprint(folder / "undisturbed")
        if code or not expected:
            sys.exit((folder / "undisturbed.log").read_text(encoding="utf-8"))
        print(f"{launcher}: undisturbed in {seconds:.0f} s, weights {expected}", flush=True)
        killed: Counter[str] = Counter()
        runs = Counter(recovered=0, repeated=0)
        for number in range(kills):
            output = folder / f"killed-{number}"
            process = started(file, output)
            time.sleep(draw.uniform(0.2, 0.95) * seconds)
            victims = sorted(family(process.pid).items())
            if process.poll() is None:
                pid, what = victims[draw.randrange(len(victims))]
                killed[what] += 1
                os.kill(pid, signal.SIGKILL)
            code = process.wait()
            runs["repeated" if code else "recovered"] += 1
            if code and started(file, output).wait():
                sys.exit(Path(f"{output}.log").read_text(encoding="utf-8"))
            if fingerprint(output) != expected:
                sys.exit(f"kill {number}: weights {fingerprint(output)}, expected {expected}")
            print(f"{number + 1} of {kills}: {dict(killed)}, {dict(runs)}", flush=True)
    print(f"{launcher}: {kills} kills, every model has the same bits: {dict(killed)}, {dict(runs)}")


if __name__ == "__main__":
    main()
