"""The names that YAML and pipeline expressions may use: types of rerankers, and functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluice.encoders.foundation.build import Core
from sluice.encoders.table import RERANKERS

# The types of ``rerankers``: scorers of pairs or lists that need no other part.
SCORERS: Final[Mapping[str, str]] = {
    **RERANKERS,
    "generative": Core("sluice.retrieval.stages.generative.rerankers:generative"),
    "http": "sluice.retrieval.stages.generative.rerankers:generative_http",
    "http_rerank": "sluice.encoders.rerankers.external:HttpReranker",
    "max_sim": "sluice.retrieval.stages.rerankers.similarity:max_sim_scorer",
}

# Those that a saved pipeline holds, by the class that reads what ``save_pretrained`` wrote.
SAVED: Final[Mapping[str, str]] = {
    **RERANKERS,
    "max_sim": "sluice.retrieval.stages.rerankers.similarity:MaxSim.from_pretrained",
}
# Settings of theirs that ``save_pretrained`` does not write.
UNWRITTEN: Final[Mapping[str, tuple[str, ...]]] = {"rrra": ("weight",)}

# Those of these types, of the judges' and of encoders' that talk to the server at their ``url``.
REMOTE: Final = frozenset({"http", "http_rerank"})

# name(part, ..., option=constant): parts are stages and scorers, options are checked against the
# signature. The result is a stage, or a scorer, which also takes the options of Rerank. A config is
# checked by calling these with stand-ins, so they may look into their parts only when they run.
STAGES: Final[Mapping[str, str]] = {
    "abstain": "sluice.retrieval.stages.abstain:abstain",
    "diverse": Core("sluice.retrieval.stages.diverse:diverse"),
    "cached": "sluice.retrieval.stages.rerankers.score_cache:cached",
    "dot": "sluice.retrieval.stages.rerankers.similarity:dot",
    "evidence": "sluice.retrieval.stages.rerankers.evidence:evidence",
    "ltr": Core("sluice.retrieval.stages.ltr.reranker:ltr"),
    "max_sim": "sluice.retrieval.stages.rerankers.stored_vectors:max_sim",
    "pair_head": "sluice.retrieval.stages.rerankers.stored_vectors:pair_head",
    "passages": Core("sluice.retrieval.stages.rerankers.long_documents:by_passages"),
    "summarised": "sluice.retrieval.stages.rerankers.long_documents:summarised",
    "rrf": Core("sluice.retrieval.pipelines.fusion_calls:rrf"),
    "weighted": Core("sluice.retrieval.pipelines.fusion_calls:weighted"),
    "rank_biased": "sluice.retrieval.pipelines.fusion_calls:rank_biased",
    "comb_sum": "sluice.retrieval.pipelines.fusion_calls:comb_sum",
    "comb_mnz": "sluice.retrieval.pipelines.fusion_calls:comb_mnz",
    "fused": "sluice.retrieval.pipelines.fusion_calls:fused",
    "fitted": "sluice.retrieval.pipelines.fitting.fitter:fitted",
    "normalised": "sluice.retrieval.stages.hubs:normalised",
    "prf": "sluice.retrieval.stages.feedback.dense:prf",
    "rm3": Core("sluice.retrieval.stages.feedback.stage:rm3"),
    "synonyms": "sluice.retrieval.stages.transforms.rules:synonyms",
    "spelling": "sluice.retrieval.stages.transforms.rules:spelling",
    "key_phrases": "sluice.retrieval.stages.transforms.rules:key_phrases",
    "hyde": "sluice.retrieval.stages.transforms.drafts:hyde",
    "query2doc": "sluice.retrieval.stages.transforms.drafts:query2doc",
    "iter_retgen": "sluice.retrieval.stages.transforms.drafts:iter_retgen",
    "structured": "sluice.retrieval.stages.transforms.structured:structured",
}

# Those whose scorers are their stages and nothing else, so that a saved pipeline holds them.
OF_STAGES: Final = ("dot", "max_sim")

# What blends others by a ranker, by a fusion of any kind, and feedback of vectors, or of terms.
BLEND, FUSED, OF_VECTORS, OF_TERMS = "ltr", "fused", "prf", "rm3"

# Those that search by other texts, which a saved pipeline holds with these options. No file is one.
TRANSFORMS: Final = (
    "synonyms", "spelling", "key_phrases", "hyde", "query2doc", "iter_retgen", "structured",
)  # fmt: skip
OF_TRANSFORMS: Final = (
    "rules", "weight", "edits", "query_weight", "language", "phrases", "common", "prompt",
    "samples", "temperature", "repeats", "rounds", "depth", "tokens", "budget", "deadline_ms",
)  # fmt: skip

# What ``Stage.written`` writes. Other functions read and write files anywhere on the machine.
WRITES: Final = frozenset({"abstain", "diverse", FUSED, *OF_STAGES, *TRANSFORMS})

# The type of reranker that reads the vectors that the retriever it names has stored.
STORED: Final = "max_sim"

# Those whose second part is a reranker of one of the types whose language model can be asked.
WRITERS: Final = ("hyde", "query2doc", "iter_retgen", "structured")
LANGUAGE_MODELS: Final = ("generative", "http")

# The options of these that name what is written: (name, option, option without which it is not).
WRITTEN: Final = (
    ("cached", "file", None),
    ("normalised", "fitted", "bank"),
    *((name, "cache", None) for name in WRITERS),
)

# The options of these that name a file or folder to read; of all calls those of READ_BY_ALL do.
READ: Final = (
    ("evidence", "overrides"),
    ("ltr", "model"),
    ("normalised", "bank"),
    ("pair_head", "model"),
    ("synonyms", "file"),
)
READ_BY_ALL: Final = ("cut_off", "exit", "fitted", "probability")

# Those that name what may lie on a hub: (name, option), a model's or a dataset's.
FETCHED: Final = (("pair_head", "model"), ("normalised", "bank"))

# Options of Rerank that choose each query's depth: factories of a ``DepthRule`` from a number or
# from the file of a fitted rule.
DEPTH_RULES: Final[Mapping[str, str]] = {
    "cut_off": "sluice.retrieval.stages.adaptive_depth:cut_off",
    "exit": "sluice.retrieval.stages.confidence_exit:exit_rule",
}
