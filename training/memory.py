"""What to lower when a training needs more memory than there is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from encoders.errors import ConfigError

ADVICE = (
    "lower per_device_train_batch_size, or keep it and set gradient_cache: 32 (the loss sees the "
    "whole batch, the encoder 32 texts at a time); shorter query_length and document_length, fewer "
    "negatives per_query, and bf16: true help too"
)


@contextlib.contextmanager
def advised_memory() -> Iterator[None]:
    """Turn a failure to allocate memory into a ``ConfigError`` that says what to lower."""
    import torch

    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ConfigError(f"trainer: a step does not fit into memory: {ADVICE}") from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "out of memory" not in str(error):
            raise
        raise ConfigError(f"trainer: a step does not fit into memory: {ADVICE}") from error
