"""Trainer callback: everything that happens at a step beside the optimiser, in its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.autograd.graph import increment_version
from transformers import TrainerCallback

from sluice.training.losses.base import LossBase
from sluice.training.sparsity.regulariser import Steering


class Conductor(TrainerCallback):  # type: ignore[misc]
    """Advances everything beside the weights: epochs, penalties, the loss, early stopping.

    ``begin_epoch`` sets the batches of an epoch; ``patience`` is of evaluations.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: LossBase,
        *,
        steering: Steering | None,
        begin_epoch: Callable[[int], None],
        patience: int | None,
    ) -> None:
        self.module = module
        self.loss = loss
        self.steering = steering
        self.begin_epoch = begin_epoch
        self.patience = patience

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Give the regulariser the number of steps."""
        if self.steering is not None:
            self.steering.regulariser.begin(state.max_steps)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the batches of the epoch."""
        self.begin_epoch(int(state.epoch or 0))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Clear the gradients of the loss's own parameters."""
        for parameter in self.loss.parameters():  # the Trainer knows the model's only
            parameter.grad = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After an optimiser step advance versions, the sparsity by target, then the loss."""
        # A fused optimiser leaves version counters alone, by which fingerprints are cached.
        increment_version(list(self.module.parameters()))
        if self.steering is not None:
            self.steering.regulariser.advance(self.steering.dropout())
            self.steering.raise_heads()
        self.loss.advance(state.global_step)
        if state.global_step >= max(state.max_steps, args.eval_delay):
            # As the Trainer itself does in newer versions: the last step is always evaluated.
            control.should_evaluate |= args.eval_strategy == "steps"

    def on_evaluate(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        """Stop after `patience` evaluations without an improvement."""
        if self.patience is None or not state.best_global_step:
            return
        # This evaluation may be the best so far: the state hears of it only after this.
        if event["metrics"][f"eval_{args.metric_for_best_model}"] > state.best_metric:
            return
        # Counted from the history, which checkpoints keep: a resumed training stops where it would.
        named = f"eval_{args.metric_for_best_model}"
        since = {
            line["step"] for line in state.log_history
            if named in line and line["step"] > state.best_global_step
        }  # fmt: skip
        if len(since) >= self.patience:
            control.should_training_stop = True
