"""One process of a masked-language training: argv are model, output, cache and processes."""

import sys
from pathlib import Path

here = Path(__file__).parent
sys.path[:0] = [str(here), str(here.parent / "support"), str(here.parents[1])]

import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from test_masked_language import JOB, texts  # noqa: E402

from encoders import SpladeEncoder  # noqa: E402
from training import fit  # noqa: E402
from training.losses.masked_language import MaskedLanguage  # noqa: E402
from training.processes import rank  # noqa: E402

torch.set_num_threads(1)

if __name__ == "__main__":
    model, output, cache, processes = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
    encoder = SpladeEncoder.from_pretrained(model, device="cpu")
    # Adam makes noise of gradients that are 0 but for rounding (a key's bias)
    plain = {"optim": "sgd", "learning_rate": 0.05}
    trainer = {**JOB["trainer"], **plain, "per_device_train_batch_size": 8 // processes}
    job = {**JOB, "trainer": trainer, "gradient_cache": cache or None}
    fit(encoder, texts(22), MaskedLanguage(), output=output, **job)
    weights = {name: value.clone() for name, value in encoder.module.state_dict().items()}
    distinct = {id(value): (name, value.contiguous()) for name, value in weights.items()}
    safetensors.torch.save_file(dict(distinct.values()), output / f"weights-{rank()}.safetensors")
