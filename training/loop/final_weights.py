"""Chooses the weights that training ends with: the best ones, the start's, or some between."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import safetensors.torch
import torch

from sluice.encoders.foundation.disk.files import commit, new_draft, read_json, write_json
from sluice.encoders.foundation.numbers import plural
from sluice.training.batches.processes import rank, wait
from sluice.training.journal import VALUES
from sluice.training.protocol import DevMeasures

if TYPE_CHECKING:
    from sluice.training.loop.trainer import RetrievalTrainer

START = "start.safetensors"  # in the output of a training run: the weights it began with
VALUES_BY_SHARE = "kept.json"  # what was tried, by share of the way from the start

log = logging.getLogger("sluice")


class DevValue(NamedTuple):
    """The dev measure of some weights: its mean, and every query's where they are known."""

    value: float
    by_query: Sequence[float] = ()


class FinalWeights(NamedTuple):
    """The weights kept: ``start + share * (best - start)``, their step and their dev measure.

    ``gain`` is what the best that was tried has over the start, ``error`` its standard error over
    the ``queries``, None where it is not known or one query has none.
    """

    share: float
    step: int | None
    value: float | None
    gain: float | None = None
    error: float | None = None
    queries: int = 0


def save_start(job: RetrievalTrainer, output: Path) -> None:
    """Write the weights that training begins with, unless they are there."""
    path = output / START
    if rank() == 0 and not path.exists():
        state = {k: v.detach().cpu() for k, v in job.model.unique_state().items()}
        with new_draft(path) as draft:
            safetensors.torch.save_file(state, draft, {"format": "pt"})
            commit(draft, path)
    wait()


def keep_the_best(
    job: RetrievalTrainer,
    output: Path,
    shares: Sequence[float],
    margin: float,
    *,
    judged: bool = True,
) -> FinalWeights:
    """Leave a trained encoder with the weights that the dev measure likes best.

    Candidates are the best checkpoint, the start, and for each of ``shares`` the weights that far
    from the start to the best checkpoint (WiSE-FT, Wortsman et al. 2022, eq. 1). Of equal ones the
    nearest to the start is kept, and the start unless the best one's gain over it is more than
    ``margin`` standard errors of the mean difference over the dev queries, where those are known.
    Where nobody ``judged`` the dev queries only the start and the smallest of ``shares`` are
    candidates. Only the checkpoint is one where the start was not measured, and with sparsity
    penalties, since other weights have another number of terms; unjudged, that is the last one.
    """
    best = FinalWeights(1.0, job.state.best_global_step, job.state.best_metric)
    if not judged and job.regulariser is not None:
        return FinalWeights(1.0, job.state.global_step, _last_value(job))
    tried = _measure_shares(job, output, shares)
    if not tried:
        return best
    if not job.args.load_best_model_at_end:
        best = best._replace(step=job.state.global_step)
    unjudged = not judged and not shares
    allowed = tried if judged or unjudged else (0.0, min(shares))
    share = min(allowed, key=lambda each: (-tried[each].value, each))
    gain, error = _gain(tried[share], tried[0.0])
    unproven = share > 0 and error is not None and gain <= margin * error
    unjudged &= share > 0
    if unproven or unjudged:
        share = 0.0
    if share < 1:
        _mix(job, safetensors.torch.load_file(output / START), job.model.unique_state(), share)
    known = error is not None and math.isfinite(error)
    found = f"{gain:+.4f}" + (f" ± {error:.4f}" if known else "")
    queries = len(tried[0.0].by_query)
    if unjudged:
        log.warning(
            "training: no judgement says that it helped: the gain of %s is on %s made from the "
            "corpus, which say little of real ones; the start is kept (evaluate: {shares: [0.25]} "
            "goes a quarter of the way where they gain, {by: examples} lets them choose)",
            found, plural(queries, "query"),
        )  # fmt: skip
    elif unproven:
        log.warning(
            "training: the gain of %s on %s is no more than chance; the start is kept "
            "(evaluate: {margin: 0} keeps what is best)", found, plural(queries, "dev query"),
        )  # fmt: skip
    elif share == 0:
        log.warning(
            "training: did not help: the dev measure is %.4f at the start and %.4f at best after "
            "it; the start is kept", tried[0.0].value,
            max(tried[each].value for each in allowed if each),
        )  # fmt: skip
    step = best.step if share else 0
    return FinalWeights(share, step, tried[share].value, gain, error if known else None, queries)


def _gain(one: DevValue, start: DevValue) -> tuple[float, float | None]:
    """Return the difference of the means and its standard error, None where it is not known."""
    gain = one.value - start.value
    if len(one.by_query) != len(start.by_query) or not start.by_query:
        return gain, None
    differences = np.array(one.by_query) - np.array(start.by_query)
    if len(differences) == 1:
        return gain, math.inf  # one query proves nothing
    return gain, float(differences.std(ddof=1) / math.sqrt(len(differences)))


def _measure_shares(
    job: RetrievalTrainer, output: Path, shares: Sequence[float]
) -> dict[float, DevValue]:
    """Return the dev measure of each candidate by its share; nothing without a choice."""
    note, best = output / VALUES_BY_SHARE, job.state.best_metric
    if note.exists():
        tried = {float(share): DevValue(*value) for share, value in read_json(note).items()}
    else:
        begun = _start_value(job)
        if begun is None or best is None or job.regulariser is not None:
            return {}
        noted = read_json(output / VALUES) if (output / VALUES).exists() else {}
        at = str(job.state.best_global_step)
        end_value = DevValue(best, noted.get(at, ()))
        if not job.args.load_best_model_at_end:  # no checkpoint: the last weights are the end
            end_value = _measure(job)
        tried = {0.0: DevValue(begun, noted.get("0", ())), 1.0: end_value}
    left = sorted(set(shares) - tried.keys())
    if left:
        start = safetensors.torch.load_file(output / START)
        end = {name: value.detach().clone() for name, value in job.model.unique_state().items()}
        for share in left:
            _mix(job, start, end, share)
            tried[share] = _measure(job)
            log.info(
                "training: %s of the way from the start: %.4f on dev", f"{share:.0%}",
                tried[share].value,
            )  # fmt: skip
        job.model.load_state_dict(end)
    if rank() == 0 and (left or not note.exists()):
        write_json(note, {str(share): list(value) for share, value in tried.items()})
    return {share: tried[share] for share in (0.0, *shares, 1.0)}


def _measure(job: RetrievalTrainer) -> DevValue:
    """Measure the weights as they are."""
    found = job.measured()
    known = found.by_query if isinstance(found, DevMeasures) else ()
    return DevValue(float(found[str(job.args.metric_for_best_model)]), known)


def _start_value(job: RetrievalTrainer) -> float | None:
    return next((value for step, value in _logged(job) if step == 0), None)


def _last_value(job: RetrievalTrainer) -> float | None:
    return next((value for _, value in reversed(_logged(job))), None)


def _logged(job: RetrievalTrainer) -> list[tuple[int, float]]:
    """Return the step and the dev measure of every evaluation."""
    named, history = f"eval_{job.args.metric_for_best_model}", job.state.log_history
    if named == "eval_first":  # nothing was measured in this process
        named = next((key for line in history for key in line if key.startswith("eval_")), named)
    return [(line["step"], line[named]) for line in history if named in line]


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
