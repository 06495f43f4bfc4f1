"""One process of a distributed training, for torchrun: argv are output, kind and gradient cache."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import safetensors.torch  # noqa: E402
import tiny  # noqa: E402
import torch  # noqa: E402

from training import fit  # noqa: E402
from training.losses.bce import BCE  # noqa: E402
from training.losses.info_nce import InfoNCE  # noqa: E402
from training.processes import rank, world  # noqa: E402

torch.set_num_threads(1)
output, kind, cache = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) or None


def job() -> dict[str, object]:
    """Return the settings; a step has 8 queries whatever the number of processes."""
    settings = dict(tiny.JOB)
    each = 8 // int(sys.argv[4])
    settings["trainer"] = {**tiny.JOB["trainer"], "per_device_train_batch_size": each}
    if kind != "splade":
        del settings["sparsity"]
    return settings


if __name__ == "__main__":
    encoder = {"splade": tiny.Splade, "dense": tiny.Dense, "cross": tiny.Cross}[kind](dropout=0.0)
    loss = BCE() if kind == "cross" else InfoNCE(symmetric=True, same_side=True)
    fit(
        encoder,
        tiny.examples(22, negatives=2),
        loss,
        output=output,
        gradient_cache=cache,
        evaluate=None if kind == "cross" else lambda _: {"nDCG@10": 0.5},
        evaluate_every=2,
        **job(),
    )
    if world() != int(sys.argv[4]):
        raise SystemExit(f"{world()} processes")
    weights = {name: value.clone() for name, value in encoder.module.state_dict().items()}
    safetensors.torch.save_file(weights, output / f"weights-{rank()}.safetensors")
