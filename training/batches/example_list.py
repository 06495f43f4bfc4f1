"""Examples by position, as a data loader reads them."""

from __future__ import annotations

from collections.abc import Sequence

from torch.utils.data import Dataset

from sluice.encoders.foundation.errors import DataError
from sluice.training.example import Example


class ExampleList(Dataset[Example]):
    """Examples by position; they can be exchanged between epochs."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = list(examples)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place: int) -> Example:
        return self.examples[place]

    def replace(self, examples: Sequence[Example]) -> None:
        """Exchange examples while an epoch runs: the same queries, in the same order."""
        if [e.query.id for e in examples] != [e.query.id for e in self.examples]:
            raise DataError(
                "refreshed examples: expected the same queries in the same order as before; only "
                "their documents may change within an epoch"
            )
        self.examples = list(examples)
