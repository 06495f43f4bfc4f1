"""One training from a config: dataset, negatives, examples, dev evaluation, the model's folder."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encoders.errors import ConfigError, DataError
from encoders.files import MANIFEST, read_json, settle, write_json
from retrieval.asking import run_on
from retrieval.components import START_KEY, make_encoder, make_loss
from retrieval.config import TrainingSection
from retrieval.dataset import Dataset, training_splits
from retrieval.dependencies import Keys
from retrieval.dev_evaluation import PAIR_DEPTH, dev_depth, dev_evaluation
from retrieval.mining import mine_negatives
from retrieval.provenance import provenance
from retrieval.ranking import Run
from retrieval.stage import Stage

if TYPE_CHECKING:
    from training import Example

log = logging.getLogger("sluice")

# What a training puts into its folder; anything else there is somebody's and stays.
WORK = ("checkpoint-*", "examples-*.jsonl", "metrics.jsonl", "mining.json", "training.json")

Source = Callable[[Any, str], Stage | Run]  # `negatives.retriever` and where it stands -> lists


def train_model(
    section: TrainingSection,
    open_dataset: Callable[[], Dataset],
    *,
    model_path: Path,
    work_path: Path,
    seed: int,
    where: str,
    source: Source,
    model: Callable[[str], str],
    keys: Keys,
) -> Path:
    """Train a model to ``model_path``; return it untouched if the same training made it before.

    Checkpoints, ``metrics.jsonl`` and the mining report lie in ``work_path``; a killed training
    goes on from its last checkpoint, one with another key starts anew. ``keys`` stand for
    everything that decides the result.
    """
    if made_before(model_path, keys.key):
        return model_path
    _begin(work_path, keys.key)
    start = time.monotonic()
    train, dev = training_splits(open_dataset(), seed)
    encoder = _starting_encoder(section, train, where=where, model=model, seed=seed)
    lists = None
    if section.negatives is not None:
        lists = source(section.negatives["retriever"], f"{where}negatives.retriever")
    examples = _examples(section, train, lists, seed=seed, work_path=work_path)
    report = _fitted(encoder, section, examples, dev, lists, work_path, seed, where)
    encoder.save_pretrained(model_path)
    settings = {"training": section.model_dump(), "dataset": train.name, "seed": seed}
    manifest = {
        **keys._asdict(),
        "steps": report.steps,
        "best_step": report.best_step,
        "best_value": report.best_value,
        "examples": len(examples),
        "fingerprint": encoder.fingerprint,
        **provenance(settings, seconds=time.monotonic() - start),
    }
    write_json(model_path / MANIFEST, manifest)
    _remove(work_path, ("checkpoint-*",))
    name = where.rstrip(".") or "training"
    log.info("%s: %d steps in %.0f s, in %s", name, report.steps, report.seconds, model_path)
    return model_path


def made_before(model_path: Path, key: str) -> bool:
    """Return whether a folder holds the model of this very training, whole."""
    settle(model_path)
    manifest = model_path / MANIFEST
    return manifest.exists() and read_json(manifest).get("key") == key


def _begin(work_path: Path, key: str) -> None:
    note = work_path / "job.json"
    if note.exists() and read_json(note).get("key") != key:
        log.info("%s: the settings changed; the training starts anew", work_path)
        _remove(work_path, WORK)
    write_json(note, {"key": key})


def _remove(work_path: Path, patterns: Iterable[str]) -> None:
    for item in [found for pattern in patterns for found in work_path.glob(pattern)]:
        if item.is_dir():
            shutil.rmtree(item, ignore_errors=True)
        else:
            item.unlink()


def _starting_encoder(
    section: TrainingSection, train: Dataset, *, where: str, model: Callable[[str], str], seed: int
) -> Any:
    spec = dict(section.encoder)
    start = spec.pop(START_KEY, None)
    if start is None:
        return make_encoder(spec, where=f"{where}encoder", model=model)
    from encoders.splade_start import start_from_config

    spec["model"] = model(str(spec.get("model")))
    texts = (document.full_text for document in train.corpus)
    return start_from_config(spec, start, texts, where=f"{where}encoder", seed=seed)


def _examples(
    section: TrainingSection,
    train: Dataset,
    lists: Stage | Run | None,
    *,
    seed: int,
    work_path: Path,
) -> list[Example]:
    from training import pair_examples

    negatives: Mapping[str, Any] = {}
    if lists is not None:
        mined = mine_negatives(lists, train, section.negatives or {}, seed=seed)
        negatives = mined.negatives
        log.info("mined negatives: %s", mined.report)
        write_json(work_path / "mining.json", mined.report.as_dict())
    qrels = {query: grades for query, grades in train.qrels.items() if query in train.queries}
    wanted = {doc for grades in qrels.values() for doc, grade in grades.items() if grade > 0}
    wanted.update(doc for found in negatives.values() for doc in found)
    texts = {d.id: d.full_text for d in train.corpus if d.id in wanted}
    absent = wanted - texts.keys()
    if absent:
        log.warning(
            "%s: %d documents named by qrels or negatives are not in the corpus (%s)",
            train.name, len(absent), ", ".join(sorted(absent)[:3]),
        )  # fmt: skip
        qrels = {q: {d: g for d, g in grades.items() if d in texts} for q, grades in qrels.items()}
        negatives = {q: [d for d in found if d in texts] for q, found in negatives.items()}
    examples = list(pair_examples(train.queries, qrels, texts, negatives))
    if not examples:
        raise DataError(f"{train.name}: no training query has a relevant document with a text")
    return examples


def _fitted(
    encoder: Any,
    section: TrainingSection,
    examples: list[Example],
    dev: Dataset,
    lists: Stage | Run | None,
    work_path: Path,
    seed: int,
    where: str,
) -> Any:
    from training import fit

    evaluate = every = metric = None
    if section.evaluate is not None:
        candidates = None
        if hasattr(encoder, "tokenize_pairs"):
            if lists is None:
                raise ConfigError(
                    f"{where}evaluate: a cross-encoder reranks what the negatives' retriever "
                    "finds; give negatives, or leave evaluate out"
                )
            candidates = run_on(lists, dev, max(PAIR_DEPTH, dev_depth(section.evaluate)))
        evaluate = dev_evaluation(dev, section.evaluate, seed=seed, candidates=candidates)
        every = section.evaluate.every
        metric = section.evaluate.measures[0]
    return fit(
        encoder,
        examples,
        make_loss(section.loss, where=f"{where}loss"),
        output=work_path,
        trainer=section.trainer,
        sparsity=section.sparsity,
        evaluate=evaluate,
        evaluate_every=every,
        metric=metric,
        seed=seed,
        head_learning_rate=section.head_learning_rate,
    )
