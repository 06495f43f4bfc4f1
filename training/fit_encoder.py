"""Trains an encoder on examples in one call, which resumes after an interruption."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import check_hooks, encoder_of, encodes
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.protocol import Example

if TYPE_CHECKING:
    from sluice.training.batches.collator import BatchTeacher
    from sluice.training.batches.scoring import TokenScoring
    from sluice.training.loop.objective import LiveCandidates
    from sluice.training.loop.refresh import Beside, NegativesAge, Refresh
    from sluice.training.loop.trainer import Evaluate
    from sluice.training.protocol import Loss, Trained
    from sluice.training.sparsity.regulariser import Regulariser

log = logging.getLogger("sluice")

MARGIN = 1.0  # standard errors by which trained weights must be better than the start


@dataclass(frozen=True, slots=True)
class FitReport:
    """The result of one training run.

    ``steps`` counts all optimiser steps, ``seconds`` are of this call, ``best_step`` and
    ``best_value`` of the dev measure (None without evaluation; step 0: the start was the best and
    is kept), ``history`` has every logged line, ``resumed_step`` is the step of the checkpoint it
    resumed from (None for a fresh start). The weights are ``start + share * (best - start)``;
    ``gain`` and ``error`` are of the best that was tried over the start, see ``FinalWeights``.
    ``negatives_age`` is of negatives that were refreshed.
    """

    steps: int
    seconds: float
    best_step: int | None
    best_value: float | None
    history: tuple[Mapping[str, float], ...]
    resumed_step: int | None
    share: float = 1.0
    gain: float | None = None
    error: float | None = None
    negatives_age: NegativesAge | None = None


def fit(
    encoder: Trained,
    examples: Iterable[Example] | Mapping[str, Iterable[Example]],
    loss: Loss | Mapping[str, Loss],
    *,
    output: str | Path,
    trainer: Mapping[str, Any] | None = None,
    sparsity: Mapping[str, Any] | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    metric: str | None = None,
    patience: int | None = None,
    shares: Sequence[float] = (),
    margin: float = MARGIN,
    judged: bool = True,
    gradient_cache: int | None = None,
    refresh: Refresh | Beside | None = None,
    refresh_every: int | None = None,
    live: LiveCandidates | None = None,
    teacher: BatchTeacher | None = None,
    seed: int = 13,
    head_learning_rate: float | None = None,
    sampling_temperature: float | None = None,
    weights: Mapping[str, float] | None = None,
    prompts: Mapping[str, Mapping[str, str]] | None = None,
    scoring: TokenScoring | None = None,
) -> FitReport:
    """Train the encoder in place; it ends with the best weights on dev, or the last without dev.

    The start's weights are among those that dev chooses from (not with ``sparsity``, which is to
    change the number of terms), so training that only harms leaves the encoder as it was. With
    ``shares``, so are the weights that far from the start to the best (WiSE-FT). Where ``evaluate``
    returns ``DevMeasures``, what is kept is better than the start by more than ``margin`` standard
    errors of the difference. Where nobody ``judged`` the dev queries (they are made from the
    documents), the start is kept or, with ``shares``, at most the smallest of them; with
    ``sparsity``, whose start has another number of terms, the last weights.

    ``output`` gets checkpoints and ``metrics.jsonl``. If it has a complete checkpoint of the same
    training, training resumes there and ends with the weights of an uninterrupted run (bit for bit
    on a CPU with one thread); a finished training is only loaded. ``trainer`` holds
    ``transformers.TrainingArguments`` keys, ``optim: lamb`` among them, ``sparsity`` the YAML
    section of that name.
    ``evaluate(encoder)`` returns finite measures, higher is better; it runs at the start, every
    ``evaluate_every`` steps (five times by default) and at the end; ``metric`` names the measure
    that chooses the best checkpoint (by default the first), and ``patience`` evaluations without an
    improvement end the training. ``refresh(step)`` returns new examples every ``refresh_every``
    steps (by default for each epoch after the first), mined with the current encoder; ``Beside``
    mines them in another process while training continues. ``live`` trains the query side against
    the results of a frozen index. ``teacher`` teaches whole batches, for losses that learn from all
    of their pairs, or from vectors. ``gradient_cache`` is how many texts are encoded at a time,
    whatever the batch size; the loss still sees the full batch.
    Examples of several sources (``Example.source``) are drawn by ``sampling_temperature``, 2 by
    default: every batch is of one source (``sluice.training.batches.sampler``). A mapping of
    sources to examples says which are of which; then ``loss`` may be a mapping too, ``weights`` say
    how many of the batches are of each, in proportion (left out, 1), and ``prompts`` what its texts
    begin with, by side. ``ExampleStream`` keeps examples on disk. ``scoring``
    says how token vectors make scores, MaxSim by default; it is for encoders of these alone.

    Under ``torchrun`` every process calls this with the same arguments; the batch size in
    ``trainer`` is each process's, and a loss sees the batches of all of them together.

    Raises ``DataError`` without examples, for a loss or a measure that is not finite, or when a
    finished training's best checkpoint is missing; ``ConfigError`` for invalid settings, or when
    ``output`` has checkpoints of another training.
    """
    from sluice.training.batches.processes import (
        first_process,
        rank,
        start as start_processes,
        world,
    )
    from sluice.training.batches.stream import Mixture, collected
    from sluice.training.example_checks import check_examples, check_sources, check_streamed
    from sluice.training.journal import VALUES
    from sluice.training.loop.arguments import own_optimizer, result_settings, training_arguments
    from sluice.training.loop.callbacks import reported_kill
    from sluice.training.loop.checkpoint import bind, examples_hash, last_complete
    from sluice.training.loop.final_weights import START, VALUES_BY_SHARE, keep_the_best, save_start
    from sluice.training.loop.refresh import RECORD, Beside
    from sluice.training.loop.trainer import RetrievalTrainer
    from sluice.training.losses.base import as_loss, describe
    from sluice.training.losses.composed.by_source import BySource

    chosen = collected(examples)
    known = chosen.first() if isinstance(chosen, Mixture) else chosen
    if not known:
        raise DataError("no training examples: the queries have no positives with a text")
    loss = BySource(loss) if isinstance(loss, Mapping) else loss
    _check_cache(gradient_cache)
    _check_dev(evaluate, patience, shares, margin, sparse=sparsity is not None)
    sources = list(dict.fromkeys(example.source for example in known))
    check_sources(sources, encoder, weights, prompts, sampling_temperature)
    for source in sources:
        encoder_of(encoder, source)  # an encoder with an expert for each dataset knows them all
    start_processes()
    _check_encoder(encoder)
    given = {"negatives.refresh": refresh, "negatives": live, "teacher": teacher}
    check_streamed(chosen, as_loss(loss), given)
    check_examples(as_loss(loss), known)
    settings = dict(trainer or {})
    folder = Path(output).resolve()
    arguments = training_arguments(
        settings,
        output=folder,
        seed=seed,
        evaluate_every=evaluate_every,
        evaluated=evaluate is not None,
        metric=metric,
    )
    if not judged and sparsity is not None:
        arguments.load_best_model_at_end = False
        if patience is not None:
            log.warning(
                "evaluate.patience: nobody judged the dev queries, so it runs to the last "
                "step; leave patience out, or write by: examples"
            )
        patience = None
    facts = {
        "trainer": result_settings(settings),
        "loss": describe(loss),
        "sparsity": sparsity,
        "patience": patience,
        "refresh_every": refresh_every,
        "processes": world(),
        "seed": seed,
        "head_learning_rate": head_learning_rate,
        "examples": examples_hash(chosen),
        **({} if teacher is None else {"teacher": teacher.fingerprint}),
        "encoder": {name: list(p.shape) for name, p in encoder.module.named_parameters()},
        **_if_given(
            sampling_temperature=sampling_temperature,
            weights=weights,
            prompts=prompts,
            scoring=None if scoring is None else scoring.facts,
            beside=refresh.facts if isinstance(refresh, Beside) else None,
        ),
    }
    with first_process():
        if rank() == 0:
            bind(folder, facts)
            if last_complete(folder) is None:
                stale = [
                    *folder.glob("examples-*.jsonl"),
                    folder / RECORD,
                    folder / START,
                    folder / VALUES_BY_SHARE,
                    folder / VALUES,
                ]
                for path in stale:
                    path.unlink(missing_ok=True)
                if isinstance(refresh, Beside):
                    refresh.miner.forget()
    checkpoint = last_complete(folder)
    job = RetrievalTrainer(
        encoder,
        chosen,
        loss,
        arguments,
        regulariser=_regulariser(encoder, sparsity, known),
        evaluate=evaluate,
        patience=patience,
        gradient_cache=gradient_cache,
        refresh=refresh,
        refresh_every=refresh_every,
        live=live,
        teacher=teacher,
        head_learning_rate=head_learning_rate,
        sampling_temperature=sampling_temperature,
        weights=weights,
        prompts=prompts,
        scoring=scoring,
        optimizer=own_optimizer(settings, arguments),
    )
    start = time.monotonic()
    if evaluate is not None:
        save_start(job, folder)
    with reported_kill(folder, first=rank() == 0):
        if checkpoint is None:
            job.train()
        elif job.load_finished(checkpoint):
            log.info("training: already finished; loading the weights from %s", folder)
        else:
            log.info("training: resuming from %s", checkpoint)
            arguments.eval_on_start = False  # the start's measure is in the checkpoint's history
            job.train(resume_from_checkpoint=str(checkpoint))
    kept = keep_the_best(job, folder, shares, margin, judged=judged)
    encoder.module.eval()
    steps = job.state.global_step
    return FitReport(
        steps=steps,
        seconds=time.monotonic() - start,
        best_step=kept.step,
        best_value=kept.value,
        history=tuple(job.state.log_history),
        resumed_step=None if checkpoint is None else int(checkpoint.name.rpartition("-")[2]),
        share=kept.share,
        gain=kept.gain,
        error=kept.error,
        negatives_age=None if job.refreshing is None else job.refreshing.ages(steps),
    )


def _check_dev(
    evaluate: Evaluate | None,
    patience: int | None,
    shares: Sequence[float],
    margin: float,
    *,
    sparse: bool,
) -> None:
    if patience is not None and (patience < 1 or evaluate is None):
        raise ConfigError(f"evaluate.patience: {patience}, expected 1 or more dev evaluations")
    if shares and (evaluate is None or sparse):
        cause = "needs a dev evaluation" if evaluate is None else "does not go with sparsity"
        raise ConfigError(f"evaluate.shares: {cause}; leave shares out")
    if not margin >= 0:
        raise ConfigError(f"evaluate.margin: {margin}, expected 0 or more standard errors")
    if not all(0 < share < 1 for share in shares):
        raise ConfigError(f"evaluate.shares: {list(shares)}, expected numbers between 0 and 1")


def _check_cache(gradient_cache: int | None) -> None:
    if gradient_cache is not None and gradient_cache < 1:
        raise ConfigError(f"gradient_cache: {gradient_cache}, expected 1 or more texts")


def _check_encoder(encoder: Trained) -> None:
    import torch

    from sluice.encoders.model_files.adapters import tuned_of
    from sluice.encoders.model_files.weights.quantised import weights_of

    if encodes(encoder):
        check_hooks(encoder)
    weights = weights_of(encoder.module)
    if weights != "float32" and not any(map(tuned_of, encoder.module.modules())):
        raise ConfigError(
            f"encoder.weights: {weights}: the matrices are codes, which cannot be trained; add "
            "tuning: {type: lora}, which trains beside them, or write weights: float32"
        )
    for name, parameter in encoder.module.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ConfigError(
                f"encoder: {name} is {parameter.dtype}, and training needs float32 weights: load "
                "the encoder with dtype: float32 and set trainer.bf16: true for speed"
            )


def _if_given(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None: training runs without them stay what they were."""
    return {name: value for name, value in settings.items() if value is not None}


def _regulariser(
    encoder: Trained,
    sparsity: Mapping[str, Any] | None,
    examples: Sequence[Example],
) -> Regulariser | None:
    from sluice.training.protocol import WithoutTerms
    from sluice.training.sparsity.controller import Sparsity
    from sluice.training.sparsity.regulariser import Regulariser, document_idf

    if sparsity is None:
        return None
    penalties = Sparsity.from_config(sparsity)
    document = penalties.document
    if document is not None and document.by_rank and max(len(e.documents) for e in examples) == 1:
        raise ConfigError(
            "sparsity.document.by_rank: every training example has one document, so all are of one "
            "rank; add negatives, or leave by_rank out"
        )
    if isinstance(encoder, WithoutTerms):  # without terms: refused where parts meet
        return Regulariser(penalties, None)
    return Regulariser(penalties, partial(document_idf, encoder, examples))
