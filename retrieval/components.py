"""From the components of a config to encoders, indexes, losses and scorers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from encoders.build import build, check, check_arguments
from encoders.errors import ConfigError
from encoders.registry import ENCODERS, RERANKERS
from indexing.table import INDEXES
from retrieval.config import ExperimentConfig, RetrieverSection, TrainingSection
from retrieval.measures import parse_measure
from training.losses import LOSSES

MINING_KEYS = ("retriever", "depth")  # of `negatives:`, beside Mining's own arguments
Allow = Collection[str] | None  # classes of your own that types may name; None is all
START_KEY = "start"  # of a SPLADE encoder to be trained: make a head for an encoder without one


def make_encoder(spec: Mapping[str, Any], *, where: str, model: Callable[[str], str]) -> Any:
    """Make the encoder or cross-encoder a component describes.

    ``model`` maps the names of models trained in this experiment to their folders.
    """
    given = dict(spec)
    if isinstance(given.get("model"), str):
        given["model"] = model(given["model"])
    return build(given, {**ENCODERS, **RERANKERS}, where=where)


def make_index(spec: Mapping[str, Any] | None, *, where: str) -> Any:
    """Make the empty index a component describes; None lets the vectors decide."""
    return None if spec is None else build(spec, INDEXES, where=where)


def make_loss(spec: Mapping[str, Any], *, where: str) -> Any:
    """Make the loss a component describes."""
    return build(spec, LOSSES, where=where)


def check_experiment(config: ExperimentConfig, allow: Allow = None) -> None:
    """Check every component's type and arguments before any work is done."""
    check_measures(config.evaluate.measures, "evaluate.measures")
    for name, section in config.train.items():
        check_training(section, f"train.{name}", allow)
    for name, retriever in config.retrievers.items():
        check_retriever(retriever, f"retrievers.{name}", allow)
    for name, spec in config.rerankers.items():
        check(spec, RERANKERS, where=f"rerankers.{name}", allow=allow)


def check_retriever(section: RetrieverSection, where: str, allow: Allow = None) -> None:
    """Check a retriever's encoder and index."""
    check(section.encoder, ENCODERS, where=f"{where}.encoder", allow=allow)
    if section.index is not None:
        check(section.index, INDEXES, where=f"{where}.index", allow=allow)


def check_training(section: TrainingSection, where: str, allow: Allow = None) -> None:
    """Check a training's encoder, loss, negatives and trainer settings."""
    from training.arguments import check_trainer
    from training.negatives import Mining
    from training.regulariser import Sparsity

    prefix = f"{where}." if where else ""
    encoder = {key: value for key, value in section.encoder.items() if key != START_KEY}
    check(encoder, {**ENCODERS, **RERANKERS}, where=f"{prefix}encoder", allow=allow)
    if encoder.get("type") == "bm25":
        raise ConfigError(f"{prefix}encoder: bm25 counts words; it is fitted, not trained")
    check(section.loss, LOSSES, where=f"{prefix}loss", allow=allow)
    if section.sparsity is not None:
        Sparsity.from_config(section.sparsity)
    if section.negatives is not None:
        _check_negatives(section.negatives, f"{prefix}negatives", Mining)
    check_trainer(section.trainer)
    if section.evaluate is not None:
        check_measures(section.evaluate.measures, f"{prefix}evaluate.measures")


def check_measures(measures: Iterable[str], where: str) -> None:
    """Check that every measure is one we compute."""
    for text in measures:
        try:
            parse_measure(text)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None


def _check_negatives(spec: Mapping[str, Any], where: str, mining: Any) -> None:
    if spec.get("type") != "mined":
        raise ConfigError(f"{where}.type: {spec.get('type')!r}; expected 'mined'")
    if "retriever" not in spec:
        raise ConfigError(
            f"{where}: needs 'retriever': a name under retrievers or pipelines, a retriever "
            "folder, an inline {encoder, index}, or a .trec file"
        )
    if not isinstance(spec.get("depth", 100), int) or spec.get("depth", 100) < 1:
        raise ConfigError(f"{where}.depth: {spec['depth']!r}; expected 1 or more")
    own = {k: v for k, v in spec.items() if k not in ("type", *MINING_KEYS)}
    check_arguments(mining, own, where=where, kind="mined")
    mining(**own)
