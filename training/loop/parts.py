"""Chooses module, collator, sampler and loss by the encoder and the loss that are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from transformers import TrainingArguments

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.collator import Batch, BiEncoderCollator, PairCollator, QueryCollator
from sluice.training.batches.forward import BiEncoderModule, PairModule, TrainedModule
from sluice.training.batches.mixed_sampler import TEMPERATURE, MixedSampler
from sluice.training.batches.processes import world
from sluice.training.batches.q_net_scores import QNetScoring
from sluice.training.batches.sampler import BatchSampler
from sluice.training.batches.scoring import Scoring
from sluice.training.batches.teacher import BatchTeacher
from sluice.training.batches.token_scores import AttentionScoring, TokenScoring
from sluice.training.example import Example
from sluice.training.loop.live_candidates import LiveCandidates
from sluice.training.loop.objective import Objective
from sluice.training.losses.base import LossBase, as_loss, type_name, writes
from sluice.training.protocol import BiEncoder, ListWriter, Loss, PairEncoder, SpanWriter, Trained
from sluice.training.sparsity.regulariser import Regulariser


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
        examples: Sequence[Example],
        arguments: TrainingArguments,
        temperature: float | None = None,
    ) -> BatchSampler | MixedSampler:
        """Return what draws the batches of all processes together.

        ``temperature`` is for examples of several sources, see ``MixedSampler``.
        """
        seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
        make = partial(
            BatchSampler,
            batch_size=arguments.train_batch_size * world(),
            seed=seed,
            distinct=self.distinct,
            by_length=arguments.train_sampling_strategy == "group_by_length",
            processes=world(),
        )
        if len({example.source for example in examples}) == 1:
            return make(examples)
        return MixedSampler(examples, make, seed=seed, temperature=temperature or TEMPERATURE)


def choose_parts(
    encoder: Trained,
    loss: Loss,
    *,
    live: bool,
    sparse: bool,
    seed: int,
    teacher: BatchTeacher | None = None,
    scoring: TokenScoring | None = None,
) -> Parts:
    """Return the parts that train this encoder with this loss.

    ``live``: candidates come from a frozen index, so that only queries are encoded. ``sparse``:
    there are sparsity penalties. ``teacher`` teaches whole batches. ``scoring`` is of token
    vectors, MaxSim by default. Raises ``ConfigError`` where these do not fit the encoder.
    """
    hooks = as_loss(loss)
    if isinstance(encoder, SpanWriter | ListWriter):
        fits = not (live or sparse or teacher is not None or scoring)
        return _writing(encoder, hooks, seed=seed, fits=fits)
    made = _scoring(encoder, hooks, scoring, live=live, sparse=sparse)
    _check_codes(encoder, hooks, live=live, sparse=sparse)
    by_batch = hooks.teacher_matrix or hooks.teacher_vectors
    if by_batch and (live or isinstance(encoder, PairEncoder)):
        raise ConfigError(
            "loss: learns from a teacher batch by batch, which is for a bi-encoder and the "
            "documents of the examples; leave negatives: {type: live} out, or train a bi-encoder"
        )
    if teacher is not None and not by_batch:
        raise ConfigError(
            "teacher: the loss learns nothing from a teacher of whole batches; leave it out, or "
            "train with kl_div (negatives: all) or alignment"
        )
    if by_batch and teacher is None:
        raise ConfigError(
            "teacher: missing: this loss learns from it batch by batch; name an encoder (dense, "
            "splade, bm25)"
        )
    _check_negative_queries(hooks, encoder, live=live)
    if isinstance(encoder, PairEncoder):
        if sparse:
            raise ConfigError("sparsity: a cross-encoder has no vectors to make sparse")
        if live:
            raise ConfigError("negatives: live candidates are for encoders of queries alone")
        collator = PairCollator(encoder, texts=hooks.texts)
        return Parts(PairModule(encoder), collator, hooks, cosine=False, distinct=False)
    if made is not None:
        hooks = hooks.bound_to(made.similarity)
        cosine = bool(hooks_of(encoder).normalize)
    else:
        hooks = hooks.bound_to(encoder.similarity)
        similarity = encoder.similarity if hooks.similarity == "auto" else hooks.similarity
        cosine = similarity == "cosine"
        if hooks_of(encoder).one_way:
            check_one_way_loss(hooks)
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
        answered=hooks.wants_answered,
        negative_queries=hooks.wants_negative_queries,
        teacher=teacher if by_batch else None,
        teacher_matrix=hooks.teacher_matrix,
        teacher_vectors=hooks.teacher_vectors,
    )
    return Parts(module, in_batch, hooks, cosine=cosine, distinct=True, scoring=made)


def _check_negative_queries(
    loss: LossBase, encoder: BiEncoder | PairEncoder, *, live: bool
) -> None:
    if loss.wants_negative_queries and (live or isinstance(encoder, PairEncoder)):
        raise ConfigError(
            "loss: misfits learns from queries that documents of the batch do not answer; live "
            "candidates have none, and a cross-encoder has no vectors of them: leave negatives: "
            "{type: live} out, or train a dense or splade encoder"
        )


def _check_codes(
    encoder: BiEncoder | PairEncoder, loss: LossBase, *, live: bool, sparse: bool
) -> None:
    if loss.encoders != ("csr",):
        return
    if hooks_of(encoder).kind != "csr":
        raise ConfigError(
            "loss: csr reconstructs the dense vectors that a CSR encoder's codes are of, and this "
            f"is a {type(encoder).__name__}; take the loss inside it alone"
        )
    if live or sparse:
        key = "negatives: {type: live}" if live else "sparsity"
        raise ConfigError(
            f"{key}: is for vectors of terms alone, and the loss csr reads the dense ones below "
            "the codes too; leave it out"
        )


def _writing(encoder: SpanWriter | ListWriter, loss: LossBase, *, seed: int, fits: bool) -> Parts:
    """Return the parts that train an encoder to write; ``ConfigError`` for another loss."""
    own_pass = loss.own_pass(encoder, seed=seed, sparse=False) if fits else None
    if own_pass is None or not writes(loss):
        kind = hooks_of(encoder).kind
        own = {"dsi": "identifiers", "listwise": "rankings"}.get(kind, "spans")
        what = "the order of documents" if own == "rankings" else f"{own} of documents"
        raise ConfigError(
            f"loss: a {kind} encoder writes {what} and has no vectors; train it with the loss "
            f"{own} alone, without sparsity, a teacher, scoring or live candidates"
        )
    return Parts(*own_pass, loss, cosine=False, distinct=False)


def _scoring(
    encoder: BiEncoder | PairEncoder,
    loss: LossBase,
    scoring: TokenScoring | None,
    *,
    live: bool,
    sparse: bool,
) -> Scoring | None:
    """Return how vectors score that no inner product compares; None for others, and for pairs."""
    heads = hooks_of(encoder).kind == "three_heads"
    if heads != (loss.encoders == ("three_heads",)):
        kind = type(encoder).__name__
        raise ConfigError(
            f"loss: {type_name(loss)} trains one head, and {kind} has others on the same network; "
            "train it by the loss three_heads"
            if heads
            else f"loss: three_heads is for encoders with three heads, and this is a {kind}"
        )
    if heads or isinstance(encoder, PairEncoder) or encoder.similarity != "max_sim":
        if scoring is not None:
            raise ConfigError(
                f"scoring: {scoring.name}: is for encoders of token vectors, and this "
                f"{type(encoder).__name__} makes none alone; leave scoring out"
            )
        if heads and (live or sparse):
            key = "negatives: {type: live}" if live else "sparsity"
            raise ConfigError(f"{key}: is not for a model with three heads; leave it out")
        return None if heads else _own_scoring(encoder, loss, live=live, sparse=sparse)
    if live or sparse:
        key = "negatives: {type: live}" if live else "sparsity"
        raise ConfigError(f"{key}: is not for encoders of token vectors; leave it out")
    scoring = scoring or TokenScoring()
    check_token_loss(loss, scoring, unit=hooks_of(encoder).normalize is not False)
    return scoring


def _own_scoring(
    encoder: BiEncoder | PairEncoder, loss: LossBase, *, live: bool, sparse: bool
) -> Scoring | None:
    """Return how q-nets or pseudo-queries score; None for an encoder that makes neither."""
    if isinstance(encoder, PairEncoder) or encoder.similarity not in ("q_net", "attention"):
        return None
    kind = "hypencoder" if encoder.similarity == "q_net" else "pseudo_queries"
    if live or sparse:
        key = "negatives: {type: live}" if live else "sparsity"
        raise ConfigError(f"{key}: is not for a {OWN_SCORES[kind].name}; leave it out")
    check_own_loss(loss, kind)
    if kind == "pseudo_queries":
        return AttentionScoring()
    hooks = hooks_of(encoder)
    if hooks.q_net_shape is None:
        raise ConfigError(
            f"encoder: similarity is q_net, and {type(encoder).__name__} has no q_net_shape, which "
            "says how its queries are read; give it one"
        )
    return QNetScoring(hooks.q_net_shape, unit=hooks.unit_documents)


class OwnScores(NamedTuple):
    """What an encoder with a score of its own is called, and why two queries have none."""

    name: str
    apart: str


OWN_SCORES: Final[Mapping[str, OwnScores]] = {
    "hypencoder": OwnScores("Hypencoder", "networks, which score documents alone"),
    "pseudo_queries": OwnScores(
        "pseudo-query encoder", "single vectors, which attend to documents of several"
    ),
}


def check_own_loss(loss: LossBase, kind: str, where: str = "loss") -> None:
    """Raise ``ConfigError`` for a loss that means nothing to an encoder of ``OWN_SCORES``."""
    name, apart = OWN_SCORES[kind]
    if loss.encoders is not None and kind not in loss.encoders:
        raise ConfigError(
            f"{where}: {type_name(loss)} trains {', '.join(loss.encoders)} and needs one vector of "
            f"each text; a {name} takes losses of scores, such as info_nce, kl_div or margin_mse"
        )
    if loss.same_side:
        raise ConfigError(
            f"{where}.same_side: true: compares queries with queries, and those of a {name} are "
            f"{apart}; leave it out"
        )
    if loss.similarity != "auto":
        raise ConfigError(
            f"{where}.similarity: {loss.similarity}, and a {name}'s scores are its own, without "
            f"bounds; leave similarity out, or take another loss than {type_name(loss)}"
        )


def check_one_way_loss(loss: LossBase, where: str = "loss") -> None:
    """Raise ``ConfigError`` for a loss that compares what an encoder of two kinds does not."""
    if loss.similarity == "cosine":
        raise ConfigError(
            f"{where}: {type_name(loss)} compares vectors by cosine, and those of this encoder's "
            "queries and documents have inner products alone; leave similarity out, or take "
            "another loss"
        )
    if loss.same_side:
        raise ConfigError(
            f"{where}.same_side: true: this encoder's vectors of queries and of documents are of "
            "two kinds, and two queries have no score; leave it out"
        )


def check_token_loss(
    loss: LossBase, scoring: TokenScoring, where: str = "loss", *, unit: bool = True
) -> None:
    """Raise ``ConfigError`` for a loss that means nothing over the scores of token vectors.

    ``unit``: each has length 1.
    """
    if loss.encoders is not None and "tokens" not in loss.encoders:
        raise ConfigError(
            f"{where}: {type_name(loss)} trains {', '.join(loss.encoders)} and needs one vector a "
            "text, or scores of another kind; an encoder of token vectors takes losses of scores, "
            "such as info_nce, kl_div or margin_mse"
        )
    if loss.same_side:
        raise ConfigError(
            f"{where}.same_side: true: a MaxSim between two documents sums over far more tokens "
            "than one of a query, so the two cannot be compared; leave it out"
        )
    if loss.similarity == "dot" or (loss.similarity == "cosine" and scoring.name == "max_sim"):
        raise ConfigError(
            f"{where}.similarity: {loss.similarity}, and scoring is {scoring.name}: the scores of "
            "token vectors are what scoring says; leave similarity out, or for psl, which needs "
            "scores from -1 to 1, set scoring: mean_max_sim"
        )
    if loss.similarity == "cosine" and not unit:
        raise ConfigError(
            f"{where}: {type_name(loss)} needs scores from -1 to 1, and these token vectors have "
            "any length; leave normalize: false out of encoder, or take another loss"
        )
