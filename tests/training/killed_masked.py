"""A masked-language training that ends its own process at step 5: argv holds model and output."""

import os
import signal
import sys
from pathlib import Path

here = Path(__file__).parent
sys.path[:0] = [str(here), str(here.parent / "support"), str(here.parents[1])]

import torch  # noqa: E402
from test_masked_language import JOB, texts  # noqa: E402

from encoders import SpladeEncoder  # noqa: E402
from training import fit  # noqa: E402
from training.losses.masked_language import MaskedLanguage  # noqa: E402

torch.set_num_threads(1)


class Killed(MaskedLanguage):
    """The same loss, described as the same, until it strikes."""

    calls = 0

    def over(self, batch):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        Killed.calls += 1
        if Killed.calls == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return MaskedLanguage.over(self, batch)


Killed.__module__, Killed.__qualname__ = MaskedLanguage.__module__, MaskedLanguage.__qualname__
encoder = SpladeEncoder.from_pretrained(sys.argv[1], device="cpu")
fit(encoder, texts(), Killed(), output=sys.argv[2], **JOB)
