"""Trains a model from a config: dataset, negatives, examples, dev evaluation, model folder."""

from __future__ import annotations

import copy
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import encoder_of, hooks_of
from sluice.encoders.foundation.disk.files import read_json, write_json, write_text
from sluice.encoders.foundation.disk.generations import MANIFEST, settle
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.processes import give_back_memory, peak_memory
from sluice.encoders.foundation.provenance import provenance
from sluice.encoders.table import traits_of
from sluice.retrieval.config.component_types import LIVE
from sluice.retrieval.config.components import START_KEY, make_encoder
from sluice.retrieval.config.file_keys import Keys
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, TrainingSection
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.experiments.training.checks import token_scoring
from sluice.retrieval.experiments.training.dev_evaluation import dev_measure
from sluice.retrieval.experiments.training.kinds import (
    assign_identifiers,
    frozen_documents,
    live_candidates,
    live_examples,
)
from sluice.retrieval.experiments.training.parts import (
    FOLDER,
    Part,
    TrainingSet,
    check_learnable,
    corpus_texts,
    evaluation_of,
    judged,
    loss_in,
    made_examples,
    opened_parts,
)
from sluice.retrieval.experiments.training.summary import (
    CARD,
    KEY,
    facts_of,
    model_card,
    training_summary,
)
from sluice.retrieval.training_data.contamination import (
    Contamination,
    contamination_of,
    warn_of,
)
from sluice.retrieval.training_data.example_sources import example_source
from sluice.retrieval.training_data.examples import OpenJudge
from sluice.retrieval.training_data.refreshing_miner import COPIES, OtherMiner, RefreshSettings
from sluice.retrieval.training_data.teachers.batch_teacher import make_batch_teacher
from sluice.training.batches.stream import Examples
from sluice.training.losses.base import taught_by_batch
from sluice.training.protocol import ListWriter, PairEncoder

if TYPE_CHECKING:
    from sluice.training.losses.base import LossBase

log = logging.getLogger("sluice")

# What training writes into its work folder; anything else there is the user's and stays.
OF_EXAMPLES = ("mining*", "negatives*.parquet", "teacher*")
WORK = (
    "checkpoint-*", "examples-*.jsonl", "metrics.jsonl", "running.json", "start.safetensors",
    "kept.json", "training.json", "refreshes.json", COPIES, *OF_EXAMPLES,
    *(f"{FOLDER}/*/{each}" for each in OF_EXAMPLES),
)  # fmt: skip
NEEDED_NO_MORE = ("checkpoint-*", "start.safetensors", COPIES)  # when the model is there


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One training run: its settings, its folders, and what opens the parts it names.

    The model goes to ``model_path``; checkpoints, ``metrics.jsonl``, the mining report and the
    negatives' provenance to ``work_path``. ``where`` is put before the keys in errors.
    ``collections`` are what is trained on, one or several. ``judge`` opens what ``negatives``
    names, ``model`` maps names of models trained in the same experiment to folders. ``keys`` hash
    everything that decides the result. ``tested`` opens the tested queries that training texts are
    searched for. ``let_go`` is called when everything is mined and the steps begin. ``order`` is
    what another process needs to make this job too, in values that JSON has.
    """

    section: TrainingSection
    collections: Sequence[TrainingSet]
    model_path: Path
    work_path: Path
    seed: int
    where: str
    judge: OpenJudge
    model: Callable[[str], str]
    keys: Keys
    tested: Callable[[], Sequence[Dataset]] = tuple
    let_go: Callable[[], None] = lambda: None
    order: Callable[[], Mapping[str, Any]] = dict


def order_of(
    config: ExperimentConfig | TrainConfig, file: str | Path | None, name: str = ""
) -> dict[str, Any]:
    """Return what another process makes a job of: its config, the file, the model's name in it.

    Raises ``ConfigError`` where the config has objects that cannot be handed on.
    """
    try:
        text = json.dumps(config.model_dump(mode="json"))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the config cannot be handed to other processes ({error}); expected texts, numbers "
            "and lists, as in YAML"
        ) from None
    place = None if file is None else str(Path(file).absolute())
    return {"config": text, "file": place, "name": name}


def train_model(job: TrainingJob) -> Path:
    """Train a model and return its folder; the model of an identical earlier run is reused.

    A killed run continues from its last checkpoint; with another key it starts again. Under
    ``torchrun`` the first process prepares and writes, and all train.
    """
    if made_before(job.model_path, job.keys.key):
        log.info("%s: already trained with these settings", job.model_path)
        _remove(job.work_path, NEEDED_NO_MORE)  # where a kill came between the model and this
        return job.model_path
    with peak_memory() as peak:
        _train(job, peak)
    give_back_memory()  # of the model and its optimiser
    return job.model_path


def _train(job: TrainingJob, peak: Callable[[], int]) -> None:
    """Train the model and write its folder."""
    from sluice.training.batches.processes import (
        first_process,
        rank,
        start as start_processes,
        wait,
    )

    section, model_path, work_path, where = job.section, job.model_path, job.work_path, job.where
    start_processes()
    start = time.monotonic()
    with first_process():
        if rank() == 0:
            _begin(work_path, job.keys.key)
        loss = loss_in(section, where)
        parts = parts_of(job, loss)
        encoder = _starting_encoder(job, parts)
        live = None
        with_live = (section.negatives or {}).get("type") == LIVE
        if with_live:
            encoder = frozen_documents(encoder, where=where)
        _narrow(encoder, job)
        _check_routes(encoder, parts, where)
        examples = made_examples(parts, encoder)
        if with_live:  # which several datasets are refused with
            train = parts[0].data.train
            examples = live_examples(list(examples), train)
            live = live_candidates(encoder, train, examples, section.negatives or {}, where=where)
        else:
            check_learnable(examples, encoder, loss, where)
        overlap = contamination_of(examples, job.tested()) if rank() == 0 else Contamination()
        warn_of(overlap, f"{where}examples")
        teacher = _batch_teacher(job, loss, parts)
    report = _fitted(job, encoder, examples, loss, parts, live, teacher)
    wait()  # every process has read the best checkpoint, which is removed below
    if rank() == 0:
        _save(encoder, loss, section, model_path)
        seconds = time.monotonic() - start
        facts = facts_of(section, parts, len(examples), report, seconds, overlap, peak())
        card = model_card(model_path, section, facts, encoder, report.history, job.seed)
        write_text(model_path / CARD, card)
        names = [part.data.train.name for part in parts]
        settings = {
            "training": section.model_dump(),
            "dataset": names[0] if len(names) == 1 else names,
            "seed": job.seed,
        }
        manifest = {
            **job.keys._asdict(),
            "steps": report.steps,
            "best_step": report.best_step,
            "best_value": report.best_value,
            "share": report.share,
            "examples": len(examples),
            "fingerprint": encoder.fingerprint,
            KEY: facts,
            **provenance(settings, seconds=seconds),
        }
        write_json(model_path / MANIFEST, manifest)
        _remove(work_path, NEEDED_NO_MORE)
        if where:  # of an experiment; `sluice train` prints it
            log.info("%s: %s", where.rstrip("."), training_summary(model_path))
    wait()


def parts_of(job: TrainingJob, loss: LossBase | None = None) -> list[Part]:
    """Open what a job trains on, and what makes its examples."""
    return opened_parts(
        job.section, job.collections, seed=job.seed, work_path=job.work_path, where=job.where,
        judge=job.judge, model=job.model, loss=loss or loss_in(job.section, job.where),
    )  # fmt: skip


def _batch_teacher(job: TrainingJob, loss: LossBase, parts: Sequence[Part]) -> Any:
    """Return the teacher that the loss asks batch by batch; None where it asks none so."""
    spec = job.section.teacher
    if spec is None or not taught_by_batch(loss):
        return None
    return make_batch_teacher(
        spec, where=f"{job.where}teacher", model=job.model, corpus=lambda: corpus_texts(parts)
    )


def _check_routes(encoder: Any, parts: Sequence[Part], where: str) -> None:
    """Check that an opened encoder has an expert for every part, and that some expert learns."""
    for part in parts:
        try:
            encoder_of(encoder, part.name)
        except ConfigError as error:
            raise ConfigError(f"{where}encoder.experts: {error}") from None
    known = traits_of(encoder)
    if (
        known is not None
        and known.experts
        and not any(parameter.requires_grad for parameter in encoder.expert_parameters().values())
    ):
        raise ConfigError(
            f"{where}freeze: the layers with experts are frozen, so that these stay alike; freeze "
            "fewer layers, or give experts to others (encoder.expert_layers)"
        )


def _narrow(encoder: Any, job: TrainingJob) -> None:
    """Freeze parts of the encoder as the section says, or all but what its tuning trains."""
    section, where = job.section, job.where
    if section.freeze is not None:
        from sluice.encoders.tuning.tune import freeze

        try:
            freeze(encoder, layers=section.freeze.layers, embeddings=section.freeze.embeddings)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from None
        if not any(parameter.requires_grad for parameter in encoder.module.parameters()):
            raise ConfigError(f"{where}freeze: every parameter is frozen; nothing is left to train")
    if section.tuning is not None:
        from sluice.encoders.tuning.tune import tune

        tune(encoder, section.tuning, where=f"{where}tuning", seed=job.seed)


def _save(encoder: Any, loss: LossBase, section: TrainingSection, model_path: Path) -> None:
    """Write the model, and what its loss saves with it."""
    if section.tuning is not None:
        from sluice.encoders.tuning.tune import merge

        merge(encoder)
    encoder.save_pretrained(model_path)
    loss.save(model_path)


def made_before(model_path: Path, key: str) -> bool:
    """Return whether a folder holds the complete model of the training run with this key."""
    settle(model_path)
    manifest = model_path / MANIFEST
    return manifest.exists() and read_json(manifest).get("key") == key


def _begin(work_path: Path, key: str) -> None:
    note = work_path / "job.json"
    if note.exists() and read_json(note).get("key") != key:
        log.info("%s: the settings changed; training starts again", work_path)
        _remove(work_path, WORK)
    write_json(note, {"key": key})


def _remove(work_path: Path, patterns: Iterable[str]) -> None:
    for item in [path for pattern in patterns for path in work_path.glob(pattern)]:
        if item.is_dir():
            shutil.rmtree(item, ignore_errors=True)
        else:
            item.unlink(missing_ok=True)


def _starting_encoder(job: TrainingJob, parts: Sequence[Part]) -> Any:
    from sluice.encoders.transformer.from_scratch import (
        DRAWN,
        draw_weights,
        fresh_from_config,
        is_fresh,
    )
    from sluice.encoders.tuning.tune import networks

    def texts() -> Iterator[str]:
        return corpus_texts(parts)

    spec, place = dict(job.section.encoder), f"{job.where}encoder"
    if is_fresh(spec.get(START_KEY)):
        spec = fresh_from_config(spec, texts(), job.work_path / "fresh", where=place, seed=job.seed)
    start = spec.pop(START_KEY, None)
    if start is None or start == DRAWN:
        encoder = make_encoder(spec, where=place, model=job.model)
        if (
            traits := traits_of(spec)
        ) is not None and traits.heads:  # heads opened elsewhere share the network
            encoder = copy.deepcopy(encoder)
        for network in networks(encoder) if start else ():
            draw_weights(network, job.seed)
    else:
        from sluice.encoders.splade.start import start_from_config

        spec["model"] = job.model(str(spec.get("model")))
        start = _aimed(start, job.section.sparsity)
        encoder = start_from_config(spec, start, texts(), where=place, seed=job.seed)
    fitted = hooks_of(encoder).fitted_terms
    if fitted is not None and fitted.prune_quantile is not None:
        raise ConfigError(
            f"{place}.model: was saved with prune_quantile {fitted.prune_quantile}, which prunes "
            "documents after encoding and does nothing in training; start from the unpruned model"
        )
    if fitted is not None and fitted.needs_idf:
        from sluice.encoders.splade.start import fit_idf

        log.info("%s: counting the query terms' weights in the corpus", place)
        fit_idf(encoder, texts())
    assign_identifiers(encoder, parts, job.seed, place, job.model)
    return encoder


def _aimed(start: Any, sparsity: Mapping[str, Any] | None) -> Any:
    """Start SPLADE a third above the documents' target of terms: training only removes terms."""
    from sluice.training.sparsity.controller import Sparsity

    document = Sparsity.from_config(sparsity or {}).document
    if document is None or document.target_terms is None:
        return start
    settings = {} if start is True else start
    aimed = {"terms": 4 / 3 * document.target_terms}
    return {**aimed, **settings} if isinstance(settings, Mapping) else start


def _fitted(
    job: TrainingJob,
    encoder: Any,
    examples: Examples,
    loss: LossBase,
    parts: Sequence[Part],
    live: Any,
    teacher: Any,
) -> Any:
    from sluice.training import fit

    section = job.section
    settings: dict[str, Any] = {}
    if section.evaluate is not None:
        settings = {
            "evaluate": evaluation_of(
                parts,
                section,
                seed=job.seed,
                reranks=isinstance(encoder, PairEncoder | ListWriter),
                where=job.where,
            ),
            "evaluate_every": section.evaluate.every,
            "metric": dev_measure(section.evaluate),
            "patience": section.evaluate.patience,
            "shares": section.evaluate.shares,
            "margin": section.evaluate.margin,
            "judged": any(judged(part, section) for part in parts),
        }
    job.let_go()
    with _refreshed(job, encoder, parts) as refresh:
        return fit(
            encoder,
            examples,
            loss,
            output=job.work_path,
            trainer=section.trainer,
            sparsity=section.sparsity,
            gradient_cache=section.gradient_cache,
            live=live,
            teacher=teacher,
            seed=job.seed,
            head_learning_rate=section.head_learning_rate,
            sampling_temperature=section.sampling_temperature,
            weights=section.dataset_weights,
            prompts=section.dataset_prompts,
            scoring=token_scoring(section, job.where),
            **refresh,
            **settings,
        )


@contextmanager
def _refreshed(job: TrainingJob, encoder: Any, parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of ``fit`` for refreshed examples: mined by itself, or beside it."""
    from sluice.training.loop.refresh import Beside

    value = (job.section.negatives or {}).get("refresh")
    if value is None and not example_source(job.section.examples).changes:
        yield {}
        return
    where = f"{job.where}negatives.refresh"
    settings = RefreshSettings.read("epoch" if value is None else value, where)
    if not settings.beside:
        refresh = lambda step: made_examples(parts, encoder, step)  # noqa: E731
        yield {"refresh": refresh, "refresh_every": settings.steps}
        return
    executor = settings.miner(where)
    with OtherMiner(encoder, job.order(), executor, job.work_path, where) as miner:
        beside = Beside(miner, settings.lag, settings.max_age)
        yield {"refresh": beside, "refresh_every": settings.steps}
