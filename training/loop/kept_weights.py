"""Chooses the weights that training ends with: the best ones, the start's, or some between."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import safetensors.torch
import torch

from sluice.encoders.foundation.disk.files import commit, new_draft, read_json, write_json
from sluice.training.batches.processes import rank, wait

if TYPE_CHECKING:
    from sluice.training.loop.trainer import RetrievalTrainer

START = "start.safetensors"  # in the output of a training run: the weights it began with
TRIED = "kept.json"  # beside it: the dev measure by share of the way from the start

log = logging.getLogger("sluice")


class Kept(NamedTuple):
    """The weights kept: ``start + share * (best - start)``, their step and their dev measure."""

    share: float
    step: int | None
    value: float | None


def save_start(job: RetrievalTrainer, output: Path) -> None:
    """Write the weights that training begins with, unless they are there."""
    path = output / START
    if rank() == 0 and not path.exists():
        state = {k: v.detach().cpu() for k, v in job.model.unique_state().items()}
        with new_draft(path) as draft:
            safetensors.torch.save_file(state, draft, {"format": "pt"})
            commit(draft, path)
    wait()


def keep_the_best(job: RetrievalTrainer, output: Path, shares: Sequence[float]) -> Kept:
    """Leave a trained encoder with the weights that the dev measure likes best.

    Candidates are the best checkpoint, the start, and for each of ``shares`` the weights that far
    from the start to the best checkpoint (WiSE-FT, Wortsman et al. 2022, eq. 1). Of equal ones the
    nearest to the start is kept. Only the checkpoint is one where the start was not measured, and
    with sparsity penalties, since other weights have another number of terms.
    """
    best = Kept(1.0, job.state.best_global_step, job.state.best_metric)
    tried = _tried(job, output, shares)
    if not tried:
        return best
    share = min(tried, key=lambda each: (-tried[each], each))
    if share < 1:
        _mix(job, safetensors.torch.load_file(output / START), job.model.unique_state(), share)
    if share == 0:
        log.warning(
            "training: did not help: the dev measure is %.4f at the start and %.4f at best after "
            "it; the start is kept", tried[0.0], tried[1.0],
        )  # fmt: skip
    return Kept(share, best.step if share else 0, tried[share])


def _tried(job: RetrievalTrainer, output: Path, shares: Sequence[float]) -> dict[float, float]:
    """Return the dev measure of each candidate by its share; nothing where there is no choice."""
    note, best = output / TRIED, job.state.best_metric
    if note.exists():
        tried = {float(share): value for share, value in read_json(note).items()}
    else:
        begun = _start_value(job)
        if begun is None or best is None or job.regulariser is not None:
            return {}
        tried = {0.0: begun, 1.0: best}
    left = sorted(set(shares) - tried.keys())
    if left:
        start = safetensors.torch.load_file(output / START)
        end = {name: value.detach().clone() for name, value in job.model.unique_state().items()}
        for share in left:
            _mix(job, start, end, share)
            tried[share] = job.evaluate()[f"eval_{job.args.metric_for_best_model}"]
        job.model.load_state_dict(end)
    if rank() == 0 and (left or not note.exists()):
        write_json(note, {str(share): value for share, value in tried.items()})
    return {share: tried[share] for share in (0.0, *shares, 1.0)}


def _start_value(job: RetrievalTrainer) -> float | None:
    named = f"eval_{job.args.metric_for_best_model}"
    values = (line[named] for line in job.state.log_history if line["step"] == 0 and named in line)
    return next(values, None)


def _mix(
    job: RetrievalTrainer,
    start: Mapping[str, torch.Tensor],
    end: Mapping[str, torch.Tensor],
    share: float,
) -> None:
    """Load ``start + share * (end - start)``; what is not a floating number is the end's."""
    job.model.load_state_dict(
        {
            name: torch.lerp(start[name].to(value), value.detach(), share)
            if value.is_floating_point()
            else value
            for name, value in end.items()
        }
    )
