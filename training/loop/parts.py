"""Chooses module, collator, sampler and loss by the encoder and the loss that are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn
from transformers import TrainingArguments

from sluice.encoders.encoder import encoder_of, hooks_of, prompted
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import EncoderTraits, Learnt
from sluice.encoders.tuning.learning import learning_of
from sluice.training.batches.collator import (
    Batch,
    BatchTeacher,
    BiEncoderCollator,
    BySourceCollator,
    PairCollator,
    QueryCollator,
)
from sluice.training.batches.forward import BiEncoderModule, PairModule, TrainedModule
from sluice.training.batches.processes import world
from sluice.training.batches.sampler import TEMPERATURE, BatchSampler, MixedSampler
from sluice.training.batches.scoring import AttentionScoring, QNetScoring, TokenScoring
from sluice.training.batches.stream import Examples, ExampleStream, Mixture, StreamSampler
from sluice.training.batches.vector_batch import Scoring
from sluice.training.loop.objective import LiveCandidates, Objective
from sluice.training.losses.base import LossBase, as_loss, type_name
from sluice.training.losses.composed.by_source import BySource
from sluice.training.protocol import (
    BiEncoder,
    Example,
    ListWriter,
    Loss,
    PairEncoder,
    SpanWriter,
    Trained,
)
from sluice.training.rules import RULES, TrainingFacts, judge
from sluice.training.sparsity.regulariser import Regulariser


def with_own_rate(
    optimizer: torch.optim.Optimizer, model: nn.Module, names: Sequence[str], rate: float, key: str
) -> None:
    """Give the parameters whose names contain one of ``names`` their own learning rate.

    They leave their groups but keep the groups' other settings. Raises ``ConfigError`` that names
    ``key`` when there are none.
    """
    chosen = {id(p) for n, p in model.named_parameters() if any(part in n for part in names)}
    moved = False
    for group in list(optimizer.param_groups):
        own = [p for p in group["params"] if id(p) in chosen]
        if own:
            moved = True
            group["params"] = [p for p in group["params"] if id(p) not in chosen]
            optimizer.add_param_group({**group, "params": own, "lr": rate})
    if not moved:
        raise ConfigError(f"{key}: this encoder has no trainable parameters of that kind")


def add_rates(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    *,
    head: tuple[Sequence[str], float | None],
    parts: Mapping[str, float],
    loss: tuple[Sequence[nn.Parameter], float],
) -> None:
    """Set the learning rates of a head, of named parts of an encoder, and of a loss."""
    names, rate = head
    if rate is not None:
        with_own_rate(optimizer, model, names, rate, "head_learning_rate")
    for name, own_rate in parts.items():
        with_own_rate(optimizer, model, [name], own_rate, f"encoder: the rate of {name}")
    parameters, loss_rate = loss
    if parameters:
        optimizer.add_param_group(
            {"params": list(parameters), "weight_decay": 0.0, "lr": loss_rate}
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """What a batch passes through: ``collator`` to tensors, ``module`` to vectors, ``loss``.

    ``cosine`` says whether vectors are compared by cosine, ``scoring`` how vectors are that no
    inner product compares. With
    ``distinct`` no query may appear twice in a batch, because its documents are held against each
    other's queries.
    """

    module: TrainedModule
    collator: Callable[[Sequence[Example]], Batch]
    loss: LossBase
    cosine: bool
    distinct: bool
    scoring: Scoring | None = None

    def objective(self, regulariser: Regulariser | None, live: LiveCandidates | None) -> Objective:
        """Return what is minimised, of the vectors that ``module`` makes."""
        return Objective(
            self.loss,
            cosine=self.cosine,
            regulariser=regulariser,
            live=live,
            scoring=self.scoring,
        )

    def sampler(
        self,
        examples: Examples,
        arguments: TrainingArguments,
        temperature: float | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> BatchSampler | StreamSampler | MixedSampler:
        """Return what draws the batches of all processes together.

        ``temperature`` and ``weights`` are for examples of several sources, see ``MixedSampler``.
        """
        seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
        by_length = arguments.train_sampling_strategy == "group_by_length"

        def make(part: Any) -> BatchSampler | StreamSampler:
            size = arguments.train_batch_size * world()
            common: Any = {"seed": seed, "distinct": self.distinct, "processes": world()}
            if isinstance(part, ExampleStream):
                return StreamSampler(part, size, **common)
            return BatchSampler(part, size, by_length=by_length, **common)

        if isinstance(examples, Mixture):
            if by_length:
                raise ConfigError(
                    "trainer.train_sampling_strategy: group_by_length knows the lengths of all "
                    "examples, and these are streamed; leave it out"
                )
            if len(examples.parts) == 1:
                return make(*examples.parts.values())
            drawn: Any = examples.parts
        else:
            if len({example.source for example in examples}) == 1:
                return make(examples)
            drawn = examples
        return MixedSampler(
            drawn, make, seed=seed, temperature=temperature or TEMPERATURE, weights=weights
        )


def choose_parts(
    encoder: Trained,
    loss: Loss,
    *,
    live: bool,
    sparse: bool,
    seed: int,
    teacher: BatchTeacher | None = None,
    scoring: TokenScoring | None = None,
    prompts: Mapping[str, Mapping[str, str]] | None = None,
) -> Parts:
    """Return the parts that train this encoder with this loss.

    ``live``: candidates come from a frozen index, so that only queries are encoded. ``sparse``:
    there are sparsity penalties. ``teacher`` teaches whole batches. ``scoring`` is of token
    vectors, MaxSim by default. ``prompts`` are those of a source's texts, by side. Raises
    ``ConfigError`` where these do not fit the encoder.
    """
    hooks = as_loss(loss)
    if isinstance(hooks, BySource):
        return _by_source(encoder, hooks, {
            "live": live, "sparse": sparse, "seed": seed, "teacher": teacher, "scoring": scoring,
            "prompts": prompts,
        })  # fmt: skip
    facts = facts_of(encoder, hooks, live=live, sparse=sparse, taught=teacher, scoring=scoring)
    judge(RULES, facts)
    if teacher is not None and not facts.by_batch:
        raise ConfigError(
            "teacher: the loss learns nothing from a teacher of whole batches; leave it out, or "
            "train with kl_div (negatives: all) or alignment"
        )
    if isinstance(encoder, SpanWriter | ListWriter):
        own_pass = hooks.own_pass(encoder, seed=seed, sparse=False)
        if own_pass is None:
            raise ConfigError(f"loss: {facts.name} trains no {facts.called}")
        return Parts(*own_pass, hooks, cosine=False, distinct=False)
    if isinstance(encoder, PairEncoder):
        collator = PairCollator(encoder, texts="texts" in hooks.wants)
        return Parts(PairModule(encoder), collator, hooks, cosine=False, distinct=False)
    scored = _scoring(encoder, scoring)
    hooks = hooks.bound_to(encoder.similarity if scored is None else scored.similarity)
    similarity = encoder.similarity if hooks.similarity == "auto" else hooks.similarity
    cosine = similarity == "cosine" if scored is None else bool(hooks_of(encoder).normalize)
    own_pass = hooks.own_pass(encoder, seed=seed, sparse=sparse)
    if own_pass is not None:
        return Parts(*own_pass, hooks, cosine=cosine, distinct=False)
    module = BiEncoderModule(encoder)
    if live:
        return Parts(module, QueryCollator(encoder), hooks, cosine=cosine, distinct=True)
    in_batch = BiEncoderCollator(
        encoder,
        negatives=hooks.negatives,
        same_side=hooks.same_side,
        answered="answered" in hooks.wants,
        negative_queries="negative_queries" in hooks.wants,
        teacher=teacher,
        teacher_matrix="teacher_matrix" in hooks.wants,
        teacher_vectors="teacher_vectors" in hooks.wants,
        views={
            source: prompted(encoder_of(encoder, source), own)
            for source, own in (prompts or {}).items()
        },
    )
    return Parts(module, in_batch, hooks, cosine=cosine, distinct=True, scoring=scored)


def _by_source(encoder: Trained, losses: BySource, settings: Mapping[str, Any]) -> Parts:
    """Return the parts of a mixture, whose sources each have a loss and the collator for it."""
    each = {name: choose_parts(encoder, loss, **settings) for name, loss in losses.losses.items()}
    first = next(iter(each.values()))
    for name, parts in each.items():
        if type(parts.module) not in (BiEncoderModule, PairModule):
            raise ConfigError(
                f"loss: {type_name(parts.loss)} of {name} passes texts in a way of its own, and "
                "all datasets of a mixture share one; train with it alone"
            )
        if parts.cosine != first.cosine:
            raise ConfigError(
                f"loss: {type_name(parts.loss)} of {name} and {type_name(first.loss)} compare "
                "vectors in different ways; give both the same similarity"
            )
    return replace(
        first,
        collator=BySourceCollator({name: parts.collator for name, parts in each.items()}),
        loss=BySource({name: parts.loss for name, parts in each.items()}),
    )


# What training makes of texts of an encoder of one's own, by what turns its vectors into scores.
_BY_SIMILARITY: Final[Mapping[str, tuple[Learnt, ...]]] = {
    "max_sim": ("tokens",), "q_net": ("q_net",), "attention": ("pseudo_queries",),
    "ngrams": ("ngrams",), "identifiers": ("identifiers",),
}  # fmt: skip


def facts_of(
    encoder: Trained,
    loss: LossBase,
    *,
    live: bool,
    sparse: bool,
    taught: BatchTeacher | None,
    scoring: TokenScoring | None,
) -> TrainingFacts:
    """Return what the rules of training judge, of objects; of towers it is the documents'."""
    hooks = hooks_of(encoder)
    hooks = hooks_of(hooks.towers.get("document", encoder))
    learning = learning_of(hooks.kind)
    if not learning.learns:
        either: tuple[Learnt, ...] = ("one_way",) if hooks.one_way else ("dense", "sparse", "words")
        pairs = isinstance(encoder, PairEncoder)
        makes = _BY_SIMILARITY.get(hooks.similarity, either)
        learning = EncoderTraits("", learns=("scores",) if pairs else makes)
    return TrainingFacts(
        kind=hooks.kind or type(encoder).__name__,
        learning=learning,
        loss=loss,
        name=type_name(loss),
        live=live,
        sparse=sparse,
        teacher=taught is not None,
        scoring=scoring,
        unit=hooks.normalize is not False,
    )


def _scoring(encoder: BiEncoder, scoring: TokenScoring | None) -> Scoring | None:
    """Return how vectors score that no inner product compares; None for others."""
    hooks = hooks_of(encoder)
    if hooks.scoring is not None:
        own: Scoring = hooks.scoring
        return own
    if encoder.similarity == "attention":
        return AttentionScoring()
    if encoder.similarity != "q_net":
        tokens = encoder.similarity == "max_sim" and "heads" not in learning_of(hooks.kind).learns
        return (scoring or TokenScoring()) if tokens else None
    if hooks.q_nets is None:
        raise ConfigError(
            f"encoder: similarity is q_net, and {type(encoder).__name__} has no q_nets, the "
            "shape by which its queries are read; give it some"
        )
    return QNetScoring(hooks.q_nets.shape, unit=hooks.q_nets.unit_documents)
