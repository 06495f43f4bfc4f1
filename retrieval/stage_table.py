"""What YAML and pipeline expressions may name: types of ``rerankers``, and callable stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from encoders.table import RERANKERS

# The types of ``rerankers``: what scores pairs or lists without naming another part.
SCORERS: Final[Mapping[str, str]] = {
    **RERANKERS,
    "generative": "retrieval.generative_rerankers:generative",
    "http": "retrieval.generative_rerankers:generative_http",
    "max_sim": "retrieval.token_similarity:MaxSim.from_pretrained",
}

# name(part, ..., option=constant): parts are stages and scorers, options are checked against the
# signature. What is made is a stage, or a scorer, which takes the options of Rerank besides. What
# is called is made from stand-ins first, to check a config: it looks into its parts when it runs.
STAGES: Final[Mapping[str, str]] = {
    "cached": "retrieval.cached:cached",
    "dot": "retrieval.vector_dot:dot",
    "ltr": "retrieval.learned_reranker:ltr",
    "pair_head": "retrieval.pair_head_scorer:pair_head",
    "passages": "retrieval.passage_scorer:by_passages",
    "summarised": "retrieval.summary_scorer:summarised",
    "rrf": "retrieval.fuse:rrf",
    "weighted": "retrieval.fuse:weighted",
    "rank_biased": "retrieval.fuse:rank_biased",
    "comb_sum": "retrieval.fuse:comb_sum",
    "comb_mnz": "retrieval.fuse:comb_mnz",
    "fused": "retrieval.fuse:fused",
    "normalised": "retrieval.hub_stage:normalised",
    "prf": "retrieval.vector_feedback:prf",
    "rm3": "retrieval.term_feedback:rm3",
}

# Options of Rerank by which each query's depth is chosen: factories of a ``DepthRule`` from a
# number, or from the file of what was fitted.
DEPTH_RULES: Final[Mapping[str, str]] = {
    "cut_off": "retrieval.adaptive_depth:cut_off",
    "exit": "retrieval.confidence_exit:exit_rule",
}
