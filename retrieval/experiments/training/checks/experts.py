"""Checks that the experts of an encoder and the datasets it is trained on belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.encoders.dense.experts.names import checked_experts
from sluice.encoders.encoder import encoder_of, hooks_of
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.table import KNOWN
from sluice.retrieval.experiments.training.parts import names_of
from sluice.retrieval.pipelines.table import REMOTE

# Types whose folders open as no other: they learn as another does, with parts of their own.
ALONE = frozenset(
    name for name, each in KNOWN.items() if each.learns_as and name != "static"
)  # fmt: skip

if TYPE_CHECKING:
    from sluice.retrieval.config.sections import ExperimentConfig, TrainingSection
    from sluice.retrieval.experiments.training.parts import Part


def check_experts(section: TrainingSection, prefix: str) -> None:
    """Raise ``ConfigError`` where experts are named for other datasets than are trained on."""
    spec, where = section.encoder, f"{prefix}encoder"
    if spec.get("type") != "experts":
        return
    if spec.get("expert") is not None:
        raise ConfigError(
            f"{where}.expert: names the one to search with, and all are trained; give it to the "
            "encoder of a retriever, and leave it out here"
        )
    if spec.get("experts") is None:  # those of a saved folder, which is not open yet
        return
    try:
        names, _ = checked_experts(spec["experts"], spec.get("gate_learns"))
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None
    if not names:
        return
    trained = names_of(section.datasets or [])
    if len(trained) < 2:
        raise ConfigError(
            f"{where}.experts: there is an expert for each dataset, {', '.join(names)}, and "
            f"{prefix}datasets names {', '.join(trained) or 'none'}; list them under datasets, or "
            f"give experts: {len(names)}, among which a gate chooses"
        )
    for name in names:
        if name not in trained:
            raise ConfigError(
                f"{where}.experts: {name!r} is not a dataset of this training: {', '.join(trained)}"
                f"{suggest(name, trained)}"
            )
    for name in trained:
        if name not in names:
            raise ConfigError(
                f"{where}.experts: none for {name!r}, which is under datasets; name it too, or "
                "leave that dataset out"
            )


def check_opened(config: ExperimentConfig) -> None:
    """Raise ``ConfigError`` where a model trained here is named for a type that cannot open it."""
    named = {f"retrievers.{name}.encoder": each.encoder for name, each in config.retrievers.items()}
    named.update({f"rerankers.{name}": spec for name, spec in config.rerankers.items()})
    for where, spec in named.items():
        section = config.train.get(str(spec.get("model")))
        own = "" if section is None else str(section.encoder.get("type"))
        if own in ALONE and spec["type"] not in (own, *REMOTE):
            raise ConfigError(
                f"{where}.type: {spec['type']}: {spec['model']} is trained as {own}, and its "
                f"folder opens as no other type; write type: {own}"
            )


def check_chosen(config: ExperimentConfig) -> None:
    """Raise ``ConfigError`` for a retriever that does not say which trained expert it is of."""
    for name, retriever in config.retrievers.items():
        spec, where = retriever.encoder, f"retrievers.{name}.encoder"
        section = config.train.get(str(spec.get("model")))
        if section is None or section.encoder.get("type") != "experts":
            continue
        if spec["type"] == "experts":
            _check_chosen(spec, section.encoder, where)


def _check_chosen(spec: Mapping[str, Any], trained: Mapping[str, Any], where: str) -> None:
    if trained.get("experts") is None:
        return
    names, _ = checked_experts(trained["experts"])
    known, chosen = [*names, "mean"], spec.get("expert")
    if not names and chosen is not None:
        raise ConfigError(
            f"{where}.expert: {chosen!r}; {spec['model']} has experts that a gate chooses among; "
            "leave it out"
        )
    if names and chosen not in known:
        what = "missing" if chosen is None else repr(chosen)
        raise ConfigError(
            f"{where}.expert: {what}: {spec['model']} has an expert for each dataset; name the one "
            f"to search with: {', '.join(known)}{suggest(str(chosen), known)}"
        )


def check_routes(encoder: Any, parts: Sequence[Part], where: str) -> None:
    """Check that an opened encoder has an expert for every part, and that some expert learns."""
    for part in parts:
        try:
            encoder_of(encoder, part.name)
        except ConfigError as error:
            raise ConfigError(f"{where}encoder.experts: {error}") from None
    if hooks_of(encoder).kind == "experts" and not any(
        parameter.requires_grad for parameter in encoder.expert_parameters().values()
    ):
        raise ConfigError(
            f"{where}freeze: the layers with experts are frozen, so that these stay alike; freeze "
            "fewer layers, or give experts to others (encoder.expert_layers)"
        )
