"""The Trainer: transformers' loop around our batches, losses, regulariser and evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, Dataset
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import SAFE_WEIGHTS_NAME

from encoders.errors import ConfigError, DataError, suggest
from training.checkpoint import load_examples, save_examples, seal, sealed_state
from training.collator import BiEncoderCollator, PairCollator
from training.example import Example
from training.journal import Journal
from training.module import BiEncoderModule, PairModule
from training.protocol import BiEncoder, Loss, PairEncoder
from training.regulariser import Regulariser, active_terms
from training.sampler import BatchSampler

Evaluate = Callable[[Any], Mapping[str, float]]
Refresh = Callable[[int], Sequence[Example]]


class ExampleList(Dataset[Example]):
    """Examples by position; they can be exchanged between epochs."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = list(examples)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place: int) -> Example:
        return self.examples[place]


class RetrievalTrainer(Trainer):  # type: ignore[misc]
    """Trains a bi-encoder or a cross-encoder, in place, from examples and a loss.

    Forward passes run under autocast when the arguments say bf16; score matrix and loss are
    float32 always. ``evaluate`` is called with the encoder in evaluation mode and returns measures,
    the first of which (or the one named ``metric_for_best_model``) chooses the best checkpoint.
    ``refresh(epoch)`` gives the examples of every epoch but the first.
    """

    control: TrainerControl

    def __init__(
        self,
        encoder: BiEncoder | PairEncoder,
        examples: Sequence[Example],
        loss: Loss,
        arguments: TrainingArguments,
        *,
        regulariser: Regulariser | None = None,
        evaluate: Evaluate | None = None,
        refresh: Refresh | None = None,
        head_learning_rate: float | None = None,
    ) -> None:
        self.encoder = encoder
        self.regulariser = regulariser
        self.evaluate_encoder = evaluate
        self.refresh = refresh
        self.head_learning_rate = head_learning_rate
        self.parts: dict[str, tuple[Tensor, int]] = {}
        model: BiEncoderModule | PairModule
        collator: BiEncoderCollator | PairCollator
        if isinstance(encoder, PairEncoder):
            if regulariser is not None:
                raise ConfigError("sparsity: a cross-encoder has no vectors to make sparse")
            model, collator = PairModule(encoder), PairCollator(encoder)
            self.similarity = "dot"
        else:
            loss = loss.bound_to(encoder.similarity) if hasattr(loss, "bound_to") else loss
            self.similarity = getattr(loss, "similarity", encoder.similarity)
            collator = BiEncoderCollator(
                encoder,
                negatives=getattr(loss, "negatives", "all"),
                same_side=getattr(loss, "same_side", False),
            )
            model = BiEncoderModule(encoder)
        self.loss = loss
        self.sampler = BatchSampler(
            examples,
            arguments.train_batch_size,
            seed=arguments.seed if arguments.data_seed is None else arguments.data_seed,
            distinct=not isinstance(encoder, PairEncoder),
            by_length=arguments.train_sampling_strategy == "group_by_length",
        )
        super().__init__(
            model=model,
            args=arguments,
            data_collator=collator,
            train_dataset=ExampleList(examples),
            eval_dataset=None if evaluate is None else ExampleList(()),
            callbacks=[
                _Conductor(self),
                Journal(Path(arguments.output_dir), lines=arguments.disable_tqdm),
            ],
        )
        self.loss_is_scaled_for_ga = False  # the loss is a mean over its own batch
        self.remove_callback(PrinterCallback)  # the journal logs instead of printing
        self._resolve_shares()

    def _resolve_shares(self) -> None:
        """Turn intervals given as shares of all steps into steps, as checkpoints record them."""
        *_, self.total_steps = self.set_initial_training_values(
            self.args, self.get_train_dataloader()
        )
        for name in ("save_steps", "eval_steps", "logging_steps"):
            interval = getattr(self.args, name)
            if interval is not None and 0 < interval < 1:
                setattr(self.args, name, math.ceil(self.total_steps * interval))

    def load_finished(self, checkpoint: Path) -> bool:
        """Load the weights that a finished training ended with, and its state.

        Returns False, with nothing loaded, when steps are left to train after ``checkpoint``.
        Raises ``DataError`` when the best checkpoint, which it ended with, is gone.
        """
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if state.global_step < self.total_steps:
            return False
        if self.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            checkpoint = checkpoint.with_name(Path(state.best_model_checkpoint).name)
            if sealed_state(checkpoint) is None:
                raise DataError(
                    f"{checkpoint}: the best checkpoint of this finished training is not there or "
                    "not whole; delete the folder it belongs in to train again"
                )
        self._load_from_checkpoint(str(checkpoint))
        self.state = state
        return True

    def get_train_dataloader(self) -> DataLoader[Example]:
        """Return batches in the sampler's order."""
        workers = self.args.dataloader_num_workers
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=self.sampler,
            collate_fn=self.data_collator,
            num_workers=workers,
            pin_memory=self.args.dataloader_pin_memory,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
        )
        prepared: DataLoader[Example] = self.accelerator.prepare(loader)
        return prepared

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a batch; raises ``DataError`` when it is not a finite number."""
        labels, mask, places = inputs["labels"], inputs["mask"], inputs["places"]
        if "pairs" in inputs:
            logits = model(pairs=inputs["pairs"]).float()
            scores = torch.zeros_like(labels).masked_scatter(places, logits)
            outputs: tuple[Tensor, ...] = (scores,)
            penalties: dict[str, Tensor] = {}
        else:
            queries, documents = model(query=inputs["query"], document=inputs["document"])
            outputs = queries.float(), documents.float()
            scores = score_matrix(
                *outputs,
                cosine=self.similarity == "cosine",
                positives=inputs["positives"] if labels.shape[1] > len(documents) else None,
            )
            penalties = self._penalties(*outputs)
        loss = self.loss(scores, labels, mask)
        if penalties:
            self._note("loss_ranking", loss)
        total: Tensor = sum(penalties.values(), start=loss)
        if not torch.isfinite(total):
            raise DataError(
                f"training step {self.state.global_step + 1}: the loss is {total.item()}; the last "
                "checkpoint is kept: lower the learning rate or look at the batch's texts"
            )
        return (total, outputs) if return_outputs else total

    def _penalties(self, queries: Tensor, documents: Tensor) -> dict[str, Tensor]:
        if self.regulariser is None:
            return {}
        penalties = self.regulariser(queries, documents)
        for side, penalty in penalties.items():
            self._note(f"loss_sparsity_{side}", penalty)
        self._note("active_terms_query", active_terms(queries))
        self._note("active_terms_document", active_terms(documents))
        return penalties

    def _note(self, name: str, value: Tensor) -> None:
        """Add to the mean that the next log line reports."""
        total, count = self.parts.get(name, (torch.zeros((), device=value.device), 0))
        self.parts[name] = (total + value.detach(), count + 1)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with the loss its parts, as means since the last such line."""
        if "loss" in logs:
            logs |= {name: float(total) / count for name, (total, count) in self.parts.items()}
            if self.regulariser is not None:
                logs["sparsity_strength"] = self.regulariser.strength
            self.parts = {}
        super().log(logs, start_time)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Measure the encoder with the caller's function and log what it returns."""
        if self.evaluate_encoder is None:
            raise ConfigError("evaluate: no function was given that evaluates the encoder")
        self.model.eval()
        measures = self.evaluate_encoder(self.encoder)
        self.model.train()
        if self.args.metric_for_best_model == "first":
            self.args.metric_for_best_model = next(iter(measures), "first")
        wanted = self.args.metric_for_best_model
        if wanted is not None and wanted not in measures:
            raise ConfigError(
                f"metric: {wanted!r} is not among the measures {', '.join(measures) or '(none)'}"
                f"{suggest(wanted, measures)}"
            )
        for name, value in measures.items():
            if not math.isfinite(value):
                raise DataError(
                    f"training step {self.state.global_step}: the dev measure {name} is {value}, "
                    "expected a finite number; look at the dev queries and their judgements"
                )
        metrics = {f"{metric_key_prefix}_{name}": float(v) for name, v in measures.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Make the optimizer; the head's parameters get their own learning rate if one is set."""
        made = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if made and self.head_learning_rate is not None:
            names = tuple(getattr(self.encoder, "head_parameters", ()))
            heads = {
                id(p) for n, p in self.model.named_parameters() if any(part in n for part in names)
            }
            if not heads:
                raise ConfigError("head_learning_rate: this encoder has no parameters of a head")
            for group in list(optimizer.param_groups):
                own = [p for p in group["params"] if id(p) in heads]
                group["params"] = [p for p in group["params"] if id(p) not in heads]
                optimizer.add_param_group({**group, "params": own, "lr": self.head_learning_rate})
        return optimizer

    def begin_epoch(self, epoch: int) -> None:
        """Set the sampler, and take the epoch's refreshed examples: made now, or made before."""
        if self.refresh is not None and epoch > 0:
            saved = Path(self.args.output_dir) / f"examples-{epoch}.jsonl"
            if not saved.exists():
                self.model.eval()
                save_examples(saved, self.refresh(epoch))
                self.model.train()
            examples = load_examples(saved)
            self.train_dataset.examples = examples
            self.sampler.replace(examples)
        self.sampler.set_epoch(epoch)

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
        if self.args.should_save:
            output = self.args.output_dir
            state = {} if self.regulariser is None else self.regulariser.state()
            seal(Path(output) / f"checkpoint-{self.state.global_step}", {"regulariser": state})
            rotate_checkpoints(output, limit, self.state.best_model_checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        state = (sealed_state(Path(resume_from_checkpoint)) or {}).get("regulariser")
        if self.regulariser is not None and state:
            self.regulariser.restore(state)


def score_matrix(
    queries: Tensor, documents: Tensor, *, cosine: bool, positives: Tensor | None = None
) -> Tensor:
    """Return ``[B, N]`` scores of queries ``[B, dim]`` and documents ``[N, dim]``.

    ``positives`` (column of each query's positive) appends the query-query and positive-positive
    scores, as ``training.batch`` lays them out.
    """
    if cosine:
        queries, documents = normalize(queries, dim=1), normalize(documents, dim=1)
    scores = queries @ documents.T
    if positives is None:
        return scores
    own = documents[positives]
    return torch.cat([scores, queries @ queries.T, own @ own.T], dim=1)


class _Conductor(TrainerCallback):  # type: ignore[misc]
    """Moves what depends on the step along with the loop."""

    def __init__(self, trainer: RetrievalTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.trainer.regulariser is not None:
            self.trainer.regulariser.begin(state.max_steps)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.begin_epoch(int(state.epoch or 0))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # A fused optimiser leaves version counters alone, by which fingerprints are cached.
        increment_version(list(self.trainer.model.parameters()))
        if self.trainer.regulariser is not None:
            self.trainer.regulariser.advance()
