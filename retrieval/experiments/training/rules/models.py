"""Rules of what a training run trains: its encoder, tuning, loss and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sluice.retrieval.config.components import START_KEY
from sluice.retrieval.experiments.training.rules.data import DATA, EXAMPLES, SELDOM
from sluice.training.losses.base import writes
from sluice.training.rules import RULES, Fault, Rule, first_of

if TYPE_CHECKING:
    from sluice.retrieval.experiments.training.rules.facts import RunFacts


STATIC = ("bow", "idf")  # `query_model` of queries without a network
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")


def _several_layers(run: RunFacts) -> Fault:
    parts = {"": run.encoder, **{f".{side}": tower for side, tower in run.towers.items()}}
    return run.loss.layers is not None and first_of(
        {"side": side, "layers": spec["top_layers"]}
        for side, spec in parts.items()
        if spec.get("top_layers", 1) != 1
    )


ENCODER: Final = (
    Rule("encoder", lambda run: run.learning.untrained,
         "{learning.untrained}",
         "encoder: bm25"),
    Rule("encoder.prune_quantile", lambda run: run.encoder.get("prune_quantile") is not None,
         "prunes documents after encoding and does nothing in training; give it to the encoder of "
         "a retriever",
         "encoder: {type: splade, prune_quantile: 0.1}"),
    Rule(f"encoder.{START_KEY}",
         lambda run: START_KEY in run.encoder and not run.untrained and "sparse" not in run.learns,
         "only splade encoders take a start (others: type fresh or drawn)",
         "encoder: {start: true}"),
    Rule("encoder.weights",
         lambda run: not run.tuning and run.encoder.get("weights") in ("int8", "int4"),
         "{encoder[weights]}: the matrices are codes, which cannot be trained; add tuning: "
         "{{type: lora}}, which trains beside them, or leave weights out",
         "encoder: {weights: int8}"),
    Rule("tuning", lambda run: run.way.of_experts and not run.learning.experts,
         "experts: a {kind} encoder has none; give encoder: {{type: experts, ...}}, or another "
         "tuning",
         "tuning: experts"),
    Rule("tuning.type", lambda run: run.refused_tuning,
         "{refused_tuning}",
         "{encoder: {type: true_false}, tuning: lora, loss: bce}"),
    Rule("trainer.{key}",
         lambda run: run.way.spans and run.first_set(*CHECKPOINTING, of=run.section.trainer),
         "computes every block again by itself, and tuning: iaa connects them; leave it out, or "
         "use adapter",
         "{tuning: iaa, trainer: {activation_checkpointing: true}}"),
    Rule("sparsity", lambda run: run.sparse and "codes" in run.learns,
         "a {called} keeps top_k latents of every text, trained or not; leave it out, and set "
         "encoder.top_k for fewer",
         "{encoder: {type: csr}, sparsity: {target_doc_terms: 4}}"),
    Rule("loss",
         lambda run: "texts_alone" in run.loss.wants and "sparse" in run.learns
         and "words" not in run.learns,
         "{name} hides words of the vocabulary, and a {called} has none; take a loss over scores, "
         "such as info_nce",
         "{encoder: {type: concepts}, loss: masked_language}"),
)  # fmt: skip

LOSS: Final = (
    Rule("encoder", lambda run: "texts_alone" in run.loss.wants and run.towers,
         "{name} trains one splade encoder, not towers",
         "{encoder: {type: towers, query: {type: splade, model: m}, document: {type: splade, "
         "model: m}}, loss: masked_language}"),
    Rule("teacher", lambda run: run.loss.needs_teacher and not run.teacher and not run.examples,
         "missing: {name} learns from a teacher's scores; name a reranker or a file that `sluice "
         "teach distil` wrote",
         "loss: margin_mse"),
    Rule("encoder{side}.top_layers", _several_layers,
         "{layers} layers make one vector, and {name} learns from a vector of each; leave it out",
         "{encoder: {top_layers: 2}, loss: matryoshka_2d}"),
    Rule("sparsity", lambda run: run.live and run.sparse,
         "live candidates are frozen vectors; leave it out",
         "{encoder: {type: splade}, negatives: {type: live}, sparsity: {target_doc_terms: 9}}"),
    Rule("loss", lambda run: run.loss.ranks == "columns" and not run.live,
         "{name} counts places in a retrieved list; give negatives: {{type: live}}, or ranks: "
         "scores",
         "loss: adore"),
    Rule("loss", lambda run: "texts" in run.loss.wants and run.learning.pairs_only,
         "{name} learns from vectors of single texts, and a {kind} has none; take a loss of "
         "scores, such as localized_softmax",
         "{encoder: {type: knrm}, loss: qbd, negatives: {type: mined, retriever: m}}"),
)  # fmt: skip

SETTINGS: Final = (
    Rule("freeze", lambda run: run.section.freeze and run.learning.fixed,
         "{learning.untuned}; leave it out",
         "{encoder: {type: knrm}, loss: bce, negatives: {type: mined, retriever: m}, freeze: "
         "{layers: 1}}"),
    Rule("encoder.train_vectors",
         lambda run: run.learning.fixed and run.encoder.get("train_vectors")
         and not run.differentiable,
         "{kind} counts similarities, so that vectors learn nothing from it; leave it out, or "
         "take knrm",
         "{encoder: {type: drmm, train_vectors: true}, loss: bce, negatives: {type: mined, "
         "retriever: m}}"),
    Rule("{key}", lambda run: "rankings" in run.loss.forms and writes(run.loss)
         and run.first_set("gradient_cache", "head_learning_rate", "answered"),
         "{name} learns what a language model writes, which has no vectors and no head; leave it "
         "out",
         "{encoder: {type: listwise}, loss: rankings, examples: PAIRS, gradient_cache: 4}"),
    Rule("encoder.freeze",
         lambda run: run.live and run.two_towers and run.encoder.get("freeze") != "document",
         "{frozen!r}; live candidates come from a frozen index, so the document tower must not "
         "change: freeze: document",
         "{encoder: {type: towers}, negatives: {type: live}}"),
    Rule("head_learning_rate", lambda run: run.section.head_learning_rate and "dense" in run.learns,
         "a dense encoder has no head; it is for splade, tokens and cross_encoder: set "
         "trainer.learning_rate",
         "head_learning_rate: 0.1"),
    Rule("head_learning_rate", lambda run: run.section.head_learning_rate and run.learning.no_head,
         "a {called} has no head; set trainer.learning_rate",
         "{encoder: {type: true_false}, loss: bce, negatives: {type: mined, retriever: m}, "
         "head_learning_rate: 0.1}"),
    Rule("head_learning_rate", lambda run: run.section.head_learning_rate and run.learning.fixed
         and not run.encoder.get("train_vectors"),
         "nothing but the head of a {kind} is trained without train_vectors: true; set "
         "trainer.learning_rate",
         "{encoder: {type: knrm}, loss: bce, negatives: {type: mined, retriever: m}, "
         "head_learning_rate: 0.1}"),
    Rule("head_learning_rate", lambda run: run.section.head_learning_rate and "words" in run.learns
         and run.tuning and not run.way.moves,
         "with tuning: {{type: {tuning}}} a splade encoder's head is not trained; leave it out",
         "{encoder: {type: splade}, tuning: lora, head_learning_rate: 0.1}"),
    Rule("xtr_top_k",
         lambda run: run.section.xtr_top_k and run.learns and "tokens" not in run.learns,
         "is for encoders of token vectors (encoder: {{type: tokens}}), and this one is {kind}; "
         "leave it out",
         "xtr_top_k: 5"),
    Rule("sparsity.{key}", lambda run: run.encoder.get("query_model") in STATIC
         and not run.encoder.get("train_idf") and run.penalty_of_queries,
         "with query_model: {encoder[query_model]} a query's terms are its own words, which no "
         "penalty changes; leave it out",
         "{encoder: {type: splade, query_model: idf}, sparsity: {target_query_terms: 4}}"),
)  # fmt: skip


RUN_RULES: Final = (*ENCODER, *DATA, *RULES, *LOSS, *EXAMPLES, *SETTINGS, *SELDOM)
