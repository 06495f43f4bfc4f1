#!/usr/bin/env python
"""Kill ``sluice index`` and ``sluice train`` at random moments; prove that reruns end the same.

    .venv/bin/python scripts/prove_kills.py --kills 6

Makes a tiny BEIR folder and a tiny random BERT, runs both commands undisturbed, then again with
kill -9 at random moments until they get through, and compares weights, vectors and hits.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "sluice", *map(str, words)]


def undisturbed(words: list[str]) -> float:
    start = time.monotonic()
    subprocess.run(words, check=True, capture_output=True, env=ENVIRONMENT, cwd=ROOT)
    return time.monotonic() - start


def killed(words: list[str], seconds: float, kills: int, chance: random.Random) -> int:
    """Start, kill at a random moment, start again; the last start may finish. Return kills."""
    done = 0
    for _ in range(kills):
        process = subprocess.Popen(
            words, env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(timeout=chance.uniform(0.3, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            done += 1
    undisturbed(words)
    return done


def main() -> None:
    import numpy as np
    import yaml
    from safetensors.numpy import load_file
    from small_world import write_beir
    from tiny_models import save_model

    from sluice.retrieval import Retriever, load_dataset

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    work = Path(tempfile.mkdtemp(prefix="sluice-kills-"))
    data, model = write_beir(work / "data"), save_model(work / "bert", "Model")
    training = {
        "dataset": str(data), "output": str(work / "train"),
        "encoder": {"type": "dense", "model": str(model)}, "loss": {"type": "info_nce"},
        "negatives": {"type": "mined", "retriever": {"encoder": {"type": "bm25"}}, "per_query": 2},
        "evaluate": {"every": 20},
        "trainer": {
            "num_train_epochs": 60, "per_device_train_batch_size": 4, "save_steps": 20,
            "learning_rate": 1.0e-3,
        },
    }  # fmt: skip
    indexing = {
        "dataset": str(data), "output": str(work / "index"),
        "retrievers": {"dense": {"encoder": {"type": "dense", "model": str(model)}}},
    }  # fmt: skip
    for name, config in (("train", training), ("index", indexing)):
        (work / f"{name}.yaml").write_text(yaml.safe_dump(config))
        words = command(name, work / f"{name}.yaml")
        seconds = undisturbed([*words, f"output={work / name}-undisturbed"])
        kills = killed(words, seconds, arguments.kills, chance)
        print(f"{name}: {seconds:.1f} s undisturbed; killed {kills} times, then finished")
    one, other = (
        load_file(work / folder / "model" / "model.safetensors")
        for folder in ("train", "train-undisturbed")
    )
    difference = max(float(np.abs(one[key] - other[key]).max()) for key in one)
    print(f"train: largest difference between weights {difference}")
    queries = load_dataset(str(data), "test").queries
    runs = [
        Retriever.open(work / folder / "retrievers" / "dense").run(queries)
        for folder in ("index", "index-undisturbed")
    ]
    same = dict(runs[0]) == dict(runs[1])
    print(f"index: hits and scores {'equal' if same else 'DIFFER'}")
    shutil.rmtree(work)
    sys.exit(0 if same and difference == 0 else 1)


if __name__ == "__main__":
    main()
