"""Trainings of every kind by one or several processes: argv are output, model and processes."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

here = Path(__file__).parent
sys.path[:0] = [str(here), str(here.parents[1])]

import safetensors.torch  # noqa: E402
import tiny  # noqa: E402
import torch  # noqa: E402

from sluice.training import fit  # noqa: E402
from sluice.training.batches.processes import rank, world  # noqa: E402
from sluice.training.batches.scoring import TokenScoring  # noqa: E402
from sluice.training.losses.contrastive.pairs import BCE  # noqa: E402
from sluice.training.losses.contrastive.softmax import InfoNCE  # noqa: E402
from sluice.training.losses.sequences import MaskedLanguage  # noqa: E402


def trained(kind: str, output: Path, model: Path, processes: int) -> None:
    """Train with 8 queries a step, whatever the number of processes, and write the weights."""
    settings: dict[str, Any] = dict(tiny.JOB)
    trainer = {**tiny.JOB["trainer"], "per_device_train_batch_size": 8 // processes}
    several = processes > 1
    if kind == "masked":
        from masked_texts import JOB, texts

        from sluice.encoders import SpladeEncoder

        encoder: Any = SpladeEncoder.from_pretrained(model, device="cpu")
        # Adam makes noise of gradients that are 0 but for rounding (a key's bias)
        trainer |= {"optim": "sgd", "learning_rate": 0.05}
        settings = {**JOB, "trainer": trainer, "gradient_cache": 3 if several else None}
        loss: Any = MaskedLanguage()
        examples = texts(22)
    else:
        kinds = {
            "splade": tiny.Splade, "dense": tiny.Dense, "cross": tiny.Cross, "tokens": tiny.Tokens,
            "xtr": tiny.Tokens,
        }  # fmt: skip
        encoder = kinds.get(kind, tiny.Dense)(dropout=0.0)
        settings |= {"trainer": trainer, "gradient_cache": 3 if kind == "splade" else None}
        if kind != "splade":
            del settings["sparsity"]
        if kind == "dense":
            settings |= {"evaluate": lambda _: {"nDCG@10": 0.5}, "evaluate_every": 2}
        loss = BCE() if kind == "cross" else InfoNCE(symmetric=True, same_side=True)
        if kind in ("tokens", "xtr"):
            loss = InfoNCE(symmetric=True)
            settings["gradient_cache"] = 3 if several and kind == "xtr" else None
            settings["scoring"] = TokenScoring("xtr", 9) if kind == "xtr" else None
            # Adam makes noise of gradients that are 0 but for rounding (a key's bias)
            settings["trainer"] = {**trainer, "optim": "sgd", "learning_rate": 0.05}
        examples = tiny.examples(22, negatives=2)
        if kind == "sources":
            examples = [replace(each, source="ab"[n % 3 == 0]) for n, each in enumerate(examples)]
            settings["sampling_temperature"] = 4.0
            settings["gradient_cache"] = 3 if several else None
    fit(encoder, examples, loss, output=output / kind, **settings)
    weights = {name: value.clone() for name, value in encoder.module.state_dict().items()}
    distinct = {id(value): (name, value.contiguous()) for name, value in weights.items()}
    file = output / f"{kind}-{rank()}.safetensors"
    safetensors.torch.save_file(dict(distinct.values()), file)


KINDS = ("splade", "dense", "cross", "masked", "sources", "tokens", "xtr")

if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in KINDS:
        trained(each, Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    if world() != int(sys.argv[3]):
        raise SystemExit(f"{world()} processes")
