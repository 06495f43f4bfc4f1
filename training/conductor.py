"""What moves along with the steps of a training: epochs, penalties, the loss, early stopping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd.graph import increment_version
from transformers import TrainerCallback

if TYPE_CHECKING:
    from training.trainer import RetrievalTrainer


class Conductor(TrainerCallback):  # type: ignore[misc]
    """Tells the trainer's parts which step and epoch it is."""

    def __init__(self, trainer: RetrievalTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell the regulariser how long the training is."""
        if self.trainer.regulariser is not None:
            self.trainer.regulariser.begin(state.max_steps)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the batches of the epoch."""
        self.trainer.begin_epoch(int(state.epoch or 0))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Forget the gradients of the loss's own parameters."""
        for parameter in self.trainer.loss_parameters():  # the Trainer knows the model's only
            parameter.grad = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count the step where it is counted."""
        # A fused optimiser leaves version counters alone, by which fingerprints are cached.
        increment_version(list(self.trainer.model.parameters()))
        if self.trainer.steering is not None:
            self.trainer.steering.step()
        advance = getattr(self.trainer.objective.loss, "advance", None)
        if advance is not None:
            advance(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        """Stop after `patience` evaluations without a better one."""
        patience = self.trainer.patience
        if patience is None or not state.best_global_step:
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
        if len(since) >= patience:
            control.should_training_stop = True
