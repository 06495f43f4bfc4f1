"""The modules that the Trainer trains: one forward pass for both sides of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.protocol import BiEncoder, Features, PairEncoder, Side, Trainable


class TrainedModule(nn.Module):
    """An encoder's parameters under one forward pass, so that distributed wrappers see all use."""

    def __init__(self, encoder: Trainable) -> None:
        super().__init__()
        self.weights = encoder.module
        self.layers: tuple[int, ...] = ()  # whose vectors are returned; none: the encoder's own

    def unique_state(self) -> dict[str, Tensor]:
        """Return the state with tensors that share memory (tied embeddings) named once."""
        return {name: tensor.contiguous() for name, tensor in self._originals().values()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load what ``unique_state`` returned; a missing or foreign name is an error."""
        originals = self._originals()
        complete = {
            name: state_dict[originals[_memory(tensor)][0]]
            for name, tensor in self.state_dict().items()
            if originals[_memory(tensor)][0] in state_dict
        }
        foreign = {name: value for name, value in state_dict.items() if name not in complete}
        return super().load_state_dict({**complete, **foreign}, strict=True, assign=assign)

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Trade time for memory in every transformer inside (``trainer.activation_checkpointing``).

        The Trainer asks the module it is given, which is not the transformer itself here.
        """
        reached: set[nn.Module] = set()
        for module in self.weights.modules():
            enable = getattr(module, "activation_checkpointing_enable", None) or getattr(
                module, "gradient_checkpointing_enable", None
            )
            if callable(enable) and module not in reached:
                enable(**options)
                reached.update(module.modules())  # it sets its own parts

    # Its name in versions of transformers that know no other.
    gradient_checkpointing_enable = activation_checkpointing_enable

    def _originals(self) -> dict[tuple[object, ...], tuple[str, Tensor]]:
        first: dict[tuple[object, ...], tuple[str, Tensor]] = {}
        for name, tensor in self.state_dict().items():
            first.setdefault(_memory(tensor), (name, tensor))
        return first


def _memory(tensor: Tensor) -> tuple[object, ...]:
    # Empty tensors all lie at address 0.
    place = tensor.data_ptr() or id(tensor)
    return place, tuple(tensor.shape), tensor.stride(), tensor.dtype


class BiEncoderModule(TrainedModule):
    """Queries and documents to vectors.

    ``layers`` (numbers from 1, the last first) asks for the vectors of several layers, side by side
    ``[n, layers * dim]``; none is the encoder's own vectors alone.
    """

    SIDES: Mapping[str, Side] = {
        "query": "query", "document": "document", "answered": "query", "negative_query": "query",
    }  # fmt: skip

    def __init__(self, encoder: BiEncoder) -> None:
        super().__init__(encoder)
        self.encoder = encoder

    def forward(self, **features: Features) -> dict[str, Tensor]:
        """Return vectors ``[n, dim]`` under the names that the features came by."""
        return {name: self._vectors(part, self.SIDES[name]) for name, part in features.items()}

    def _vectors(self, features: Features, side: Side) -> Tensor:
        if not self.layers:
            return self.encoder.embed(features, side)
        embed_layers = hooks_of(self.encoder).embed_layers
        if embed_layers is None:
            raise ConfigError(
                f"loss: needs the vectors of layers {self.layers}, which a "
                f"{type(self.encoder).__name__} does not provide; train a dense encoder"
            )
        vectors: Tensor = embed_layers(features, side, self.layers)
        return vectors


class PairModule(TrainedModule):
    """Pairs to scores; also texts alone to vectors, for losses that need them."""

    def __init__(self, encoder: PairEncoder) -> None:
        super().__init__(encoder)
        self.encoder = encoder

    def forward(self, **features: Features) -> dict[str, Tensor]:
        """Return raw scores ``[n]`` as ``pairs``, and vectors ``[n, hidden]`` of the others."""
        return {
            name: self.encoder.logits(part) if name == "pairs" else self.encoder.embed_texts(part)  # type: ignore[attr-defined]
            for name, part in features.items()
        }
