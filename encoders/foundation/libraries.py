"""How numerical libraries wait and what they keep: said in the environment, before they are loaded.

OpenMP's threads spin between two parallel loops, by default. On a core that another process needs
too, they take the time that the thread they wait for would have worked in. oneDNN keeps the code it
makes for every shape of a product, and torch a second time what oneDNN made (1,024 shapes of each
kind); batches without padding have a new shape each, and nearly all that is kept of them is never
used again, some 200 KB each: the process would grow by 8 MB a step.
"""

from __future__ import annotations

import os
import sys

# They say how OpenMP waits: any OpenMP; GCC's; Intel's and LLVM's.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
KEEPING = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")
TORCH = ("LRU_CACHE_CAPACITY",)
KEPT_BY_TORCH = 64  # queries one by one take as long with it as with 1,024
KEPT_SHAPES = 320  # of 1,024: queries one by one take as long; with 256, 1.04 times; with 64, 1.21


def set_up_libraries() -> None:
    """Ask for sleeping threads and a smaller cache of shapes, here and in processes started here.

    What the environment says already stays, and nothing changes where torch is loaded, which has
    read it.
    """
    if "torch" in sys.modules:
        return
    settings = (
        (WAITING, "passive"),
        (KEEPING, str(KEPT_SHAPES)),
        (TORCH, str(KEPT_BY_TORCH)),
    )
    for names, value in settings:
        if not any(name in os.environ for name in names):
            os.environ[names[0]] = value
