"""Checks what a training run's examples come from: datasets, and what searches their corpora."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.components import Allow, check_retriever, trained_kind
from sluice.retrieval.config.file_keys import collection_key
from sluice.retrieval.config.sections import RetrieverSection, TrainingSection, checked
from sluice.retrieval.retrievers.candidate_lists import SELF, listed
from sluice.retrieval.retrievers.folder import HEAD
from sluice.retrieval.training_data.example_sources import (
    MORE_NEGATIVES,
    NEGATIVE,
    first_rows,
    searched_with,
    stream,
)
from sluice.retrieval.training_data.files.quality_examples import check_quality
from sluice.retrieval.training_data.own_pairs import OF_CORPUS
from sluice.retrieval.training_data.teachers.teachers import teacher_models
from sluice.training.losses.base import compares_own

if TYPE_CHECKING:
    from sluice.training.losses.base import LossBase

ONE_RETRIEVER = "a name under retrievers or pipelines, a retriever folder or {encoder, index}"
SCORE, UNANSWERED = "a teacher's score", "negative_queries"  # what a row may lack
REMEDIES = {
    NEGATIVE: MORE_NEGATIVES,
    SCORE: "name a teacher (teacher: MODEL), or a file that `sluice teach distil` wrote",
    UNANSWERED: "`sluice teach describe` writes them",
}


def check_sources(section: TrainingSection, prefix: str, allow: Allow = None) -> None:
    """Raise ``ConfigError`` for datasets, examples and dev examples that do not go together."""
    check_quality(section, prefix)
    _check_searched(section, f"{prefix}examples.retriever", allow)
    _check_datasets(section, prefix)
    by = None if section.evaluate is None else section.evaluate.by
    spec = section.examples
    if by == "examples" and (spec is None or spec.get("type") == "texts"):
        raise ConfigError(
            f"{prefix}evaluate.by: examples: none has a query; add examples, or leave "
            "by out, and the dev split's judgements are used"
        )


def check_list_scores(section: TrainingSection, loss: LossBase, prefix: str) -> None:
    """Check that the scores of lists, which pairs of the corpus may have, are there and learnt."""
    spec = section.examples or {}
    if spec.get("type") != "corpus":
        return
    name = section.loss["type"]
    if loss.needs_teacher and section.teacher is None and not spec.get("candidates"):
        raise ConfigError(
            f"{prefix}examples.candidates: missing: {name} learns from a teacher's scores; give "
            "retriever and candidates, which have those of the list, or name a teacher"
        )
    learnt = loss.needs_teacher or ":" in name
    if "scale" in spec and (not learnt or section.teacher is not None):
        why = "that the teacher's replace" if learnt else f"which {name} does not learn from"
        raise ConfigError(f"{prefix}examples.scale: is of the list's scores, {why}; leave it out")


def check_learnable(section: TrainingSection, loss: LossBase, where: str, allow: Allow) -> None:
    """Raise ``ConfigError`` if no row of the files of ``examples`` has what the loss declares.

    The rows are read until each need is met, so files that meet none are read to their end.
    """
    rows = stream(section.examples, where, allow)
    name, needs = section.loss["type"], dict[str, str]()  # what a row has, what is learnt from it
    batch = section.trainer.get("per_device_train_batch_size")
    paired = not compares_own(loss) and trained_kind(section.encoder) == "cross_encoder"
    if (paired or compares_own(loss) or loss.wants_answered) and section.negatives is None:
        needs[NEGATIVE] = "each query's own documents"
    elif section.negatives is None and loss.negatives == "all" and batch == 1:
        others = "other documents than the positive, which a batch of 1 lacks"
        needs[NEGATIVE] = f"{others} (raise per_device_train_batch_size)"
    if loss.needs_teacher and section.teacher is None:
        needs[SCORE] = "a teacher's scores"
    if loss.wants_negative_queries:
        needs[UNANSWERED] = "queries that a positive does not answer"
    if not rows or not needs:
        return
    lacking, grades = dict(needs), dict[str, float]()  # the first grade of a query
    for row in rows:
        key = "" if loss.across_queries else row.query.key if row.graded else row.place
        labels = [one.label for one in row.documents]
        if any(label <= 0 or grades.setdefault(key, label) != label for label in labels):
            lacking.pop(NEGATIVE, None)
        if any(math.isfinite(one.score) for one in row.documents):
            lacking.pop(SCORE, None)
        if row.negative_queries:
            lacking.pop(UNANSWERED, None)
        if not lacking:
            return
    learns = f"{name} on a cross_encoder" if paired else name
    raise ConfigError(
        f"{where}: no row has {' or '.join(lacking)}; {learns} learns from "
        f"{' and '.join(needs[each] for each in lacking)}; "
        f"{'; '.join(REMEDIES[each] for each in lacking)}"
    )


def check_negative_queries(section: TrainingSection, loss: LossBase, prefix: str) -> None:
    """Check that rows with negative queries meet a loss that learns from them, and it such rows."""
    spec, name = section.examples, section.loss["type"]
    kind = "" if spec is None else str(spec.get("type", "file"))
    if loss.wants_negative_queries:
        if kind != "file" and ":" not in kind:
            raise ConfigError(
                f"{prefix}examples: {'missing' if spec is None else kind}; {name} learns from "
                "queries that a positive does not answer, which files have (examples: {file: "
                "FILE}, rows with negative_queries); `sluice teach describe` writes them"
            )
        if (section.negatives or {}).get("type") == "live":
            raise ConfigError(
                f"{prefix}negatives: live candidates are documents, and {name} learns from queries "
                "too; leave it out, or mine negatives"
            )
    limit = (spec or {}).get("negative_queries")
    if limit == 0 and loss.wants_negative_queries:
        raise ConfigError(
            f"{prefix}examples.negative_queries: 0 leaves out what {name} learns from; leave it out"
        )
    if loss.wants_negative_queries or kind != "file" or limit == 0 or spec is None:
        return
    row = next((row for row in first_rows(spec) if row.negative_queries), None)
    if row is not None:
        raise ConfigError(
            f"{prefix}loss: {name} reads no negative_queries, which {row.place} has; train with "
            f"misfits around it (loss: {{type: misfits, loss: {{type: {name}}}}}), or leave them "
            "out: examples.negative_queries: 0"
        )


def _check_searched(section: TrainingSection, where: str, allow: Allow) -> None:
    """Check what the examples are searched with."""
    named = searched_with(section.examples)
    if isinstance(named, Mapping):
        check_retriever(checked(named, RetrieverSection), where, allow)
    elif named is not None and (not isinstance(named, str) or named in ("", SELF)):
        raise ConfigError(f"{where}: {named!r}; expected {ONE_RETRIEVER}")


def _check_datasets(section: TrainingSection, prefix: str) -> None:
    """Check that a list of datasets stands with nothing that belongs to one of them."""
    if section.datasets is None:
        if section.sampling_temperature is not None:
            raise ConfigError(
                f"{prefix}sampling_temperature: weighs several datasets; list them under datasets, "
                "or leave it out"
            )
        return
    keys = [collection_key(each) for each in section.datasets]
    for number, each in enumerate(section.datasets):
        if keys[number] in keys[:number]:
            raise ConfigError(
                f"{prefix}datasets[{number}]: {each!r} is named twice; once is enough"
            )
        if isinstance(each, dict) and each.get("split", "train") != "train":
            raise ConfigError(
                f"{prefix}datasets[{number}].split: {each['split']!r}: training on the test is "
                "refused: leave split out, and the train split is used"
            )
    if len(section.datasets) == 1 and section.sampling_temperature is not None:
        raise ConfigError(
            f"{prefix}sampling_temperature: weighs several datasets, and there is one; leave it out"
        )
    _check_one_corpus(section, prefix)


def _check_one_corpus(section: TrainingSection, prefix: str) -> None:
    """Refuse, beside several datasets, files and folders that are of one of them."""
    if section.examples is not None and section.examples.get("type") not in OF_CORPUS:
        raise ConfigError(
            f"{prefix}examples: a file does not say which of the datasets its rows are of; leave "
            f"datasets out, or take examples of type {', '.join(OF_CORPUS)}"
        )
    if section.answered is not None:
        raise ConfigError(
            f"{prefix}answered: a file does not say which of the datasets its documents are of; "
            "leave it out, and the judgements of each dataset say what its documents answer, or "
            "give one dataset"
        )
    if (section.negatives or {}).get("type") == "live":
        raise ConfigError(
            f"{prefix}negatives: live candidates are those of one corpus; mine them, or give one "
            "dataset"
        )
    _check_files(section, prefix)


def _check_files(section: TrainingSection, prefix: str) -> None:
    searching = [("examples.retriever", searched_with(section.examples))]
    mined = listed((section.negatives or {}).get("retriever"))
    for key, named in [*searching, *(("negatives.retriever", each) for each in mined)]:
        if isinstance(named, str) and (Path(named).is_file() or (Path(named) / HEAD).exists()):
            raise ConfigError(
                f"{prefix}{key}: {named} holds the documents of one corpus, and datasets are "
                "several; name a retriever of this file, which is built for each of them, or write "
                "{encoder: ..., index: ...}"
            )
    scored = [
        ("teacher", section.teacher),
        ("negatives.judge", (section.negatives or {}).get("judge")),
    ]
    for key, named in scored:
        for name in teacher_models(named) if isinstance(named, (str, Mapping)) else []:
            if Path(name).is_file():
                raise ConfigError(
                    f"{prefix}{key}: {name} has scores by the ids of one dataset, and datasets are "
                    "several; name the model that gives the scores"
                )
