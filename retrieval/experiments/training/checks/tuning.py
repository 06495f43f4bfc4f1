"""Checks which of an encoder's parameters a training run tunes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import TUNINGS
from sluice.encoders.tuning.of_experts import check_of_experts
from sluice.encoders.tuning.of_pyramid import check_of_pyramid

if TYPE_CHECKING:
    from sluice.retrieval.config.components import Allow
    from sluice.retrieval.config.sections import TrainingSection

# The tunings of models that write, and why they take no others.
OF_WRITERS: Final = {
    "listwise": ("lora", "ia3", "bitfit", "ln_tuning"),
    "true_false": ("ln_tuning",),
}
WHY: Final = {
    "listwise": "stays beside the weights, and a listwise ranker writes with the weights alone",
    "true_false": "is for one stack of blocks, and a true_false ranker is an encoder with a "
    "decoder",
}
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")


def check_tuning(section: TrainingSection, prefix: str, allow: Allow = None) -> None:
    """Raise ``ConfigError`` for tuning that does not fit the encoder or the trainer."""
    if section.tuning is None:
        weights = section.encoder.get("weights", "float32")
        if weights in ("int8", "int4"):
            raise ConfigError(
                f"{prefix}encoder.weights: {weights}: the matrices are codes, which cannot be "
                "trained; add tuning: {type: lora}, which trains beside them, or leave weights out"
            )
        return
    kind = section.encoder.get("type")
    if kind == "static":
        raise ConfigError(f"{prefix}tuning: a static encoder has no network to tune; leave it out")
    build(section.tuning, TUNINGS, where=f"{prefix}tuning", allow=allow)
    if section.tuning["type"] == "experts" and kind != "experts":
        raise ConfigError(
            f"{prefix}tuning: experts: a {kind} encoder has none; give encoder: {{type: experts, "
            "...}, or another tuning"
        )
    if kind == "experts" and section.tuning["type"] in TUNINGS:
        check_of_experts(section.tuning["type"], f"{prefix}tuning")
    if kind == "pyramid":
        check_of_pyramid(section.tuning["type"], f"{prefix}tuning")
    taken = OF_WRITERS.get(str(kind))
    if taken and section.tuning["type"] in TUNINGS and section.tuning["type"] not in taken:
        raise ConfigError(
            f"{prefix}tuning: {section.tuning['type']}: {WHY[str(kind)]}; take "
            f"{' or '.join(taken)}, or leave it out"
        )
    for key in CHECKPOINTING if section.tuning["type"] == "iaa" else ():
        if section.trainer.get(key):
            raise ConfigError(
                f"{prefix}trainer.{key}: computes every block again by itself, and tuning: iaa "
                "connects them; leave it out, or use adapter"
            )
