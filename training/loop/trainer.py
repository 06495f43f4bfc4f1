"""The Trainer: transformers' loop around our batches, losses, regulariser and evaluation.

What happens at a step, in this order:

1. ``get_batch_samples``: examples are refreshed if that is due; the sampler's next examples go
   through the collator, which tokenises them and lays out labels and mask.
2. ``training_step``: the module encodes the batch, ``Objective`` gathers the vectors of all
   processes, evaluates the loss and adds the sparsity penalties; then the backward pass.
3. transformers clips gradients and steps the optimiser.
4. ``Conductor.on_step_end``: the regulariser, the head's bias and the loss move on by one step.
5. Every so many steps ``log``, ``evaluate`` and ``_save_checkpoint``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import SAFE_WEIGHTS_NAME

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.training.batches.collator import (
    BatchTeacher,
    ExampleList,
    batch_loader,
    vectors_of_texts,
)
from sluice.training.batches.forward import BiEncoderModule
from sluice.training.batches.processes import average_gradients, from_first, rank, wait, world
from sluice.training.batches.scoring import TokenScoring
from sluice.training.batches.stream import Examples, Mixture
from sluice.training.journal import note_values
from sluice.training.loop.callbacks import Conductor, Journal, MemoryWatch, advised_memory
from sluice.training.loop.checkpoint import load_state, save_state, seal, sealed_state
from sluice.training.loop.large_batches import cached_backward
from sluice.training.loop.objective import LiveCandidates
from sluice.training.loop.parts import add_rates, choose_parts
from sluice.training.loop.refresh import Beside, Refresh, refreshing
from sluice.training.protocol import DrawsByEpoch, Example, Loss, Trained, WithoutTerms
from sluice.training.sparsity.regulariser import Regulariser, Steering

Evaluate = Callable[[Any], Mapping[str, float]]


class RetrievalTrainer(Trainer):  # type: ignore[misc]
    """Trains a bi-encoder or a cross-encoder, in place, from examples and a loss.

    Forward passes run under autocast when the arguments say bf16; score matrix and loss are
    float32 always. ``evaluate`` is called with the encoder in evaluation mode and returns measures,
    the first of which (or the one named ``metric_for_best_model``) chooses the best checkpoint;
    ``patience`` evaluations without a better one end the training. ``gradient_cache`` texts are
    encoded at a time while the loss sees the whole batch. ``refresh(step)`` gives new examples
    every ``refresh_every`` steps, by default at the beginning of every epoch but the first; with
    ``Beside`` they are mined while training continues.
    ``live`` trains queries alone against what a frozen index answers to them. ``teacher`` teaches
    whole batches, for a loss that learns from all pairs or from vectors. ``optimizer`` is a class
    with its settings, in place of the one that the arguments name. ``sampling_temperature`` is for
    examples of several sources, and so are ``weights``, see ``MixedSampler``, and ``prompts``;
    ``scoring`` is of token vectors. Of streamed examples what memory holds is looked at before.
    """

    control: TrainerControl

    def __init__(
        self,
        encoder: Trained,
        examples: Examples,
        loss: Loss,
        arguments: TrainingArguments,
        *,
        regulariser: Regulariser | None = None,
        evaluate: Evaluate | None = None,
        patience: int | None = None,
        gradient_cache: int | None = None,
        refresh: Refresh | Beside | None = None,
        refresh_every: int | None = None,
        live: LiveCandidates | None = None,
        teacher: BatchTeacher | None = None,
        head_learning_rate: float | None = None,
        sampling_temperature: float | None = None,
        weights: Mapping[str, float] | None = None,
        prompts: Mapping[str, Mapping[str, str]] | None = None,
        scoring: TokenScoring | None = None,
        optimizer: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
    ) -> None:
        self.encoder = encoder
        self.teacher = teacher
        self.evaluate_encoder = evaluate
        self.gradient_cache = gradient_cache
        self.head_learning_rate = head_learning_rate
        parts = choose_parts(
            encoder,
            loss,
            live=live is not None,
            sparse=regulariser is not None,
            seed=arguments.seed,
            teacher=teacher,
            scoring=scoring,
            prompts=prompts,
        )
        known = examples.first() if isinstance(examples, Mixture) else examples
        if teacher is not None:
            teacher.prepare(known)
        self.objective = parts.objective(regulariser, live)
        self.objective.chunk = gradient_cache
        self.steering = None
        if regulariser is not None and not isinstance(encoder, WithoutTerms):
            self.steering = Steering(encoder, regulariser, known, self.compute_loss_context_manager)
        self.sampler = parts.sampler(examples, arguments, sampling_temperature, weights)
        folder = Path(arguments.output_dir)
        self.refreshing = None
        if refresh is not None:
            steps = -(-len(self.sampler) // arguments.gradient_accumulation_steps)
            self.refreshing = refreshing(refresh, refresh_every, steps, folder)
            within_epochs = refresh_every is not None
            if isinstance(refresh, Beside):
                within_epochs |= refresh.max_age is not None or (refresh.lag or 0) % steps != 0
            if within_epochs and arguments.dataloader_num_workers:
                raise ConfigError(
                    "trainer.dataloader_num_workers: workers keep the old negatives; leave it "
                    "at 0 where negatives are refreshed"
                )
        parts.loss.bind(encoder, arguments.seed)
        parts.loss.bind_examples(known)
        if teacher is not None and "teacher_vectors" in parts.loss.wants:
            parts.loss.bind_teacher(partial(vectors_of_texts, teacher, known))
        self._count_documents(known)
        super().__init__(
            model=parts.module,
            args=arguments,
            data_collator=parts.collator,
            train_dataset=ExampleList(examples),
            eval_dataset=None if evaluate is None else ExampleList(()),
            optimizer_cls_and_kwargs=optimizer,
            callbacks=[
                Conductor(
                    parts.module,
                    parts.loss,
                    steering=self.steering,
                    begin_epoch=self.begin_epoch,
                    patience=patience,
                ),
                MemoryWatch(folder, writes=rank() == 0),
                Journal(folder, lines=arguments.disable_tqdm, writes=rank() == 0),
            ],
        )
        self.loss_is_scaled_for_ga = False  # the loss is a mean over its own batch
        self.remove_callback(PrinterCallback)  # the journal logs instead of printing
        self._resolve_shares()

    @property
    def regulariser(self) -> Regulariser | None:
        """The regulariser of a sparse encoder's vectors, if there is one."""
        return self.objective.regulariser

    def _resolve_shares(self) -> None:
        """Turn intervals given as shares of all steps into steps, as checkpoints record them."""
        *_, self.total_steps = self.set_initial_training_values(
            self.args, self.get_train_dataloader()
        )
        if self.refreshing is not None:
            self.refreshing.total_steps = self.total_steps
        for name in ("save_steps", "eval_steps", "logging_steps"):
            interval = getattr(self.args, name)
            if interval is not None and 0 < interval < 1:
                setattr(self.args, name, math.ceil(self.total_steps * interval))

    def load_finished(self, checkpoint: Path) -> bool:
        """Load the weights that a finished training ended with, and its state.

        Returns False, with nothing loaded, when steps are left to train after ``checkpoint``.
        Raises ``DataError`` when the best checkpoint, which it ended with, is missing.
        """
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if state.global_step < self.total_steps:
            return False
        if self.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            checkpoint = checkpoint.with_name(Path(state.best_model_checkpoint).name)
            if sealed_state(checkpoint) is None:
                raise DataError(
                    f"{checkpoint}: the best checkpoint of this finished training is missing or "
                    "incomplete; delete the folder that contains it to train again"
                )
        self._load_from_checkpoint(str(checkpoint))
        self.state = state
        return True

    def get_train_dataloader(self) -> DataLoader[Example]:
        """Return batches in the sampler's order, of all processes together."""
        return batch_loader(self.train_dataset, self.sampler, self.data_collator, self.args)

    def _count_documents(self, examples: Sequence[Example]) -> None:
        """Give the loss the number of times each document is drawn."""
        self.objective.loss.bind_counts(Counter(d.id for e in examples for d in e.documents))

    def _exchange(self, examples: Sequence[Example], *, packed: bool) -> None:
        """Continue with refreshed examples; ``packed``: an epoch begins, so pack new batches."""
        if self.teacher is not None:
            self.teacher.prepare(examples)
        if packed:
            self.train_dataset.examples = list(examples)
            self.sampler.replace(examples)  # type: ignore[union-attr]  # streams are not refreshed
        else:
            self.train_dataset.replace(examples)
        self._count_documents(examples)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Return the batches of a step, after refreshing the examples if that is due."""
        if self.refreshing is not None:
            step = self.state.global_step
            examples = self.refreshing.within_epoch(step, self.model)
            if examples is not None:
                self._exchange(examples, packed=False)
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def training_step(
        self,
        model: Any,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Add the gradients of a batch; return its loss as a share of the accumulated step's."""
        model.train()
        self._ask_layers()
        inputs = self._prepare_inputs(inputs)
        share = 1.0 / self.current_gradient_accumulation_steps
        with advised_memory():
            if self.gradient_cache is not None:
                loss = self._cached_step(model, inputs, share)
            else:
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, inputs)
                self.accelerator.backward(loss * share)
        detached: Tensor = loss.detach() * share
        return detached

    def _cached_step(self, model: Any, inputs: dict[str, Any], share: float) -> Tensor:
        # Gradients of the chunks add up in this process first, and are averaged once.
        single = self.accelerator.no_sync(model=model) if world() > 1 else nullcontext()
        with single:
            loss = cached_backward(
                lambda features: model(**features),
                inputs["features"],
                self.gradient_cache or 1,
                lambda outputs: self._value(outputs, inputs),
                arithmetic=self.compute_loss_context_manager,
                share=share,
                backward=self.accelerator.backward,
            )
        if self.accelerator.gradient_state.sync_gradients:
            average_gradients(self.model)
        return loss

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a batch; raises ``DataError`` when it is not a finite number."""
        outputs = model(**inputs["features"])
        total = self._value(outputs, inputs)
        return (total, outputs) if return_outputs else total

    def _value(self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> Tensor:
        layers = max(1, len(self.model.layers))
        return self.objective(outputs, inputs, layers=layers, step=self.state.global_step + 1)

    def _ask_layers(self) -> None:
        """Set which layers' vectors the module returns at this step."""
        layers = self.objective.loss.layers
        if layers is not None and isinstance(self.model, BiEncoderModule):
            self.model.layers = tuple(layers(self.state.global_step))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the loss together with its parts, as means since the last such line."""
        if "loss" in logs:
            logs |= self.objective.report()
            if self.refreshing is not None:
                logs["negatives_age"] = self.refreshing.age(self.state.global_step)
        super().log(logs, start_time)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Measure the encoder with the caller's function and log what it returns."""
        measures = self.measured()
        if rank() == 0:
            note_values(Path(self.args.output_dir), self.state.global_step, measures)
        metrics = {f"{metric_key_prefix}_{name}": float(v) for name, v in measures.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def measured(self) -> Mapping[str, float]:
        """Return what the caller's function measures of the encoder as it is."""
        if self.evaluate_encoder is None:
            raise ConfigError("evaluate: no function to evaluate the encoder with; pass evaluate=")
        self.model.eval()
        measures = from_first(self.evaluate_encoder(self.encoder) if rank() == 0 else {})
        self.model.train()
        if self.args.metric_for_best_model == "first":
            self.args.metric_for_best_model = next(iter(measures), "first")
        metric = self.args.metric_for_best_model
        if metric is not None and metric not in measures:
            raise ConfigError(
                f"metric: {metric!r} is not among the measures {', '.join(measures) or '(none)'}"
                f"{suggest(metric, measures)}"
            )
        for name, value in measures.items():
            if not math.isfinite(value):
                raise DataError(
                    f"training step {self.state.global_step}: the dev measure {name} is {value}, "
                    "expected a finite number; look at the dev queries and their judgements"
                )
        return measures

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Make the optimizer; heads, named parts and the loss may have their own learning rates."""
        new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if new:
            loss, hooks = self.objective.loss, hooks_of(self.encoder)
            add_rates(
                optimizer,
                self.model,
                head=(hooks.head_parameters, self.head_learning_rate),
                parts=hooks.learning_rates,
                loss=(list(loss.parameters()), loss.learning_rate or self.args.learning_rate),
            )
        return optimizer

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch's batches, of examples refreshed now or, if resumed, before the restart."""
        if self.refreshing is not None:
            # Packed from what was in force when the epoch began, also where it is resumed.
            step = self.state.global_step
            examples = self.refreshing.at_epoch(epoch, step, self.model)
            if examples is not None:
                self._exchange(examples, packed=True)
            later = self.refreshing.resumed(epoch, step)
            if later is not None:
                self._exchange(later, packed=False)
        self.sampler.set_epoch(epoch)
        if isinstance(self.data_collator, DrawsByEpoch):
            self.data_collator.set_epoch(epoch)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write the weights as safetensors: tied ones once, and no pickle beside them."""
        folder = Path(output_dir or self.args.output_dir)
        if self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            state = {k: v.detach().cpu() for k, v in self.model.unique_state().items()}
            safetensors.torch.save_file(state, folder / SAFE_WEIGHTS_NAME, {"format": "pt"})

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save, mark the checkpoint as complete, and only then remove older ones."""
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        wait()  # every process has its random state there
        if self.args.should_save:
            output = self.args.output_dir
            folder = Path(output) / f"checkpoint-{self.state.global_step}"
            state = {} if self.regulariser is None else self.regulariser.state()
            save_state(folder, self.objective.loss)
            seal(folder, {"regulariser": state})
            rotate_checkpoints(output, limit, self.state.best_model_checkpoint)
        wait()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        load_state(Path(resume_from_checkpoint), self.objective.loss)
        state = (sealed_state(Path(resume_from_checkpoint)) or {}).get("regulariser")
        if self.regulariser is not None and state:
            self.regulariser.restore(state)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.state.best_model_checkpoint is not None:
            load_state(Path(self.state.best_model_checkpoint), self.objective.loss)
