"""Checks a training run's negatives: where they are mined, or searched at every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.component_types import NEGATIVES
from sluice.retrieval.config.components import Allow, check_index, check_retriever
from sluice.retrieval.config.sections import RetrieverSection, TrainingSection, checked
from sluice.retrieval.experiments.training.live_training import check_live
from sluice.retrieval.retrievers.candidate_lists import RANDOM, SELF, listed, named_sources
from sluice.retrieval.training_data.example_sources import changes
from sluice.retrieval.training_data.mining import mining_of
from sluice.retrieval.training_data.refreshing.settings import RefreshSettings
from sluice.retrieval.training_data.teachers.scoring_tasks import JUDGE, check_judge

if TYPE_CHECKING:
    from sluice.training import Mining


RETRIEVER = (
    "a name under retrievers or pipelines, a retriever folder, an inline {encoder, index}, "
    "a .trec file, or a list of these"
)


def check_negatives(spec: Mapping[str, Any], where: str, allow: Allow) -> Any:
    """Check ``negatives``; return the ``Mining`` of those that are mined."""
    if spec.get("type") not in NEGATIVES:
        raise ConfigError(f"{where}.type: {spec.get('type')!r}; expected 'mined' or 'live'")
    if spec["type"] == "live":
        check_live(spec, where)
        return None
    if "refresh" in spec:
        RefreshSettings.of(spec["refresh"], f"{where}.refresh")
    if "retriever" not in spec:
        raise ConfigError(f"{where}: needs 'retriever': {RETRIEVER}")
    for place, lists in named_sources(spec, f"{where}.retriever"):
        if isinstance(lists, Mapping):
            try:
                section = checked(lists, RetrieverSection)
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}") from None
            check_retriever(section, place, allow)
        elif not isinstance(lists, str) or not lists:
            raise ConfigError(f"{place}: {lists!r}; expected {RETRIEVER}")
    check_shares(spec, mining_of(spec, where), where)
    if spec.get("judge") is not None:
        check_judge(spec["judge"], f"{where}.judge", allow=allow)
    elif mining_of(spec, where).judged:
        raise ConfigError(f"{where}: needs 'judge': {JUDGE}")
    return mining_of(spec, where)


def check_shares(spec: Mapping[str, Any], mining: Mining, where: str) -> None:
    """Check that every list has its share, and that lists have the scores that are read."""
    lists = listed(spec["retriever"])
    if mining.shares is not None and len(mining.shares) != len(lists):
        raise ConfigError(
            f"{where}.shares: {len(mining.shares)} for {len(lists)} retrievers; expected one for "
            "each"
        )
    if mining.shares is not None and len(lists) == 1:
        raise ConfigError(f"{where}.shares: there is a single retriever; leave shares out")
    if mining.judge_gamma is not None and len(lists) > 1:
        raise ConfigError(
            f"{where}.judge_gamma: multiplies the scores of one list, and here are {len(lists)}, "
            "whose scores do not compare; name one retriever"
        )
    if RANDOM in lists and mining.judge_gamma is not None:
        raise ConfigError(
            f"{where}.judge_gamma: random documents have no scores that it could multiply; leave "
            "it out"
        )
    if RANDOM in lists and mining.min_score is not None:
        raise ConfigError(
            f"{where}.min_score: random documents have no scores that could reach it; leave one of "
            "them out"
        )


def check_live_negatives(section: TrainingSection, kind: str | None, prefix: str) -> None:
    """Check that live candidates have an encoder of queries alone, and no teacher."""
    if kind in ("cross_encoder", "three_heads", "listwise"):
        raise ConfigError(f"{prefix}negatives: live candidates are for encoders of queries alone")
    if section.encoder.get("type") == "towers" and section.encoder.get("freeze") != "document":
        raise ConfigError(
            f"{prefix}encoder.freeze: {section.encoder.get('freeze', 'none')!r}; live candidates "
            "come from a frozen index, so the document tower must not change: freeze: document"
        )
    if section.teacher is not None:
        raise ConfigError(
            f"{prefix}teacher: live candidates change at every step, and no teacher has scored "
            "them; leave it out, or mine the negatives"
        )
    index = (section.negatives or {}).get("index")
    check_index(index, section.encoder, where=f"{prefix}negatives.index")


def check_refresh(section: TrainingSection, mining: Mining, prefix: str) -> None:
    """Check that mining again can give other negatives."""
    named = listed((section.negatives or {}).get("retriever"))
    changing = SELF in named or RANDOM in named
    if mining.sampling != "random" and not changes(section.examples) and not changing:
        raise ConfigError(
            f"{prefix}negatives.refresh: would mine the same negatives each time; add self to "
            "retriever (the encoder as it is then), set sampling: random, or leave refresh out"
        )
    where = f"{prefix}negatives.refresh"
    if RefreshSettings.of((section.negatives or {})["refresh"], where).beside and SELF not in named:
        raise ConfigError(
            f"{where}: another process mines with copies of the encoder, and these lists ask none; "
            "add self to retriever, or write a number of steps: then training mines itself"
        )
