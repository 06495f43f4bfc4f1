"""The base of losses whose own head is trained with the encoder, and saved beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from sluice.encoders.dense.error_adapter import ErrorAdapter
from sluice.encoders.dense.pair_head import PairHead
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.losses.composed.wrapper import Wrapping

Head = TypeVar("Head", PairHead, ErrorAdapter)


@dataclass(eq=False)
class Headed(Wrapping, Generic[Head]):
    """A loss around ``loss`` with a head over two dense vectors, which ``bind`` makes."""

    head_name: ClassVar[str] = "head"  # in messages, and before the names of its tensors

    head_learning_rate: Annotated[
        float | None, "The learning rate of the head; left out, the trainer's."
    ] = None

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        self.head: Head | None = None
        if self.head_learning_rate is not None and not self.head_learning_rate > 0:
            raise ConfigError(
                f"{self.called}.head_learning_rate: {self.head_learning_rate!r}, expected above 0"
            )

    @property
    def forms(self) -> tuple[str, ...]:
        """A head reads one dense vector of each text, whatever the inner loss trains."""
        return ("dense",)

    @property
    def learning_rate(self) -> float | None:
        """``head_learning_rate``, else the inner loss's."""
        return self.head_learning_rate or super().learning_rate

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return the head's and the inner loss's parameters."""
        return [*self._head().parameters(), *super().parameters()]

    def state(self) -> dict[str, Tensor]:
        """Return the head's weights beside the inner loss's tensors."""
        own = {f"{self.head_name}.{k}": v.detach() for k, v in self._head().state_dict().items()}
        return {**super().state(), **own}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` returned."""
        super().restore(state)
        before = f"{self.head_name}."
        self._head().load_state_dict(
            {k.removeprefix(before): v for k, v in state.items() if k.startswith(before)}
        )

    def save(self, folder: str | Path) -> None:
        """Write the head beside the trained model."""
        super().save(folder)
        self._head().save(folder)

    def _head(self) -> Head:
        if self.head is None:
            raise ConfigError(
                f"{self.called}: has no {self.head_name} yet; call bind(encoder, seed) before "
                "training"
            )
        return self.head
