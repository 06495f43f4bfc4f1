"""A line about each argument of the functions of pipelines."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.retrieval.pipelines.table import WRITERS

# What a language model that writes for a query may cost, whatever it writes.
WRITING: Mapping[str, str] = {
    "tokens": "Tokens of what the model writes, at most; 128 if left out.",
    "cache": "The file of answers (SQLite), so that none is paid for twice; left out, in memory.",
    "budget": "The most tokens of all prompts and answers of the stage; 0: only what is cached.",
    "deadline_ms": "Milliseconds of an answer, after which the query is searched as it is.",
}
PIPELINES: Mapping[str, str] = {
    "abstain.fitted": "A file that `sluice fit no-answer` wrote.",
    "abstain.threshold": "The least confidence of a query that gets hits.",
    "abstain.kind": "What confidence is: energy, top, margin, softmax or deviation of the scores, "
    "or the variance that a Gaussian encoder gives the query.",
    "abstain.width": "The first scores that confidence looks at, 25.",
    "abstain.temperature": "What the scores of softmax and energy are divided by, 1.",
    **{
        f"{kind}.weights": "One weight for each part; left out, all alike."
        for kind in ("fused", "rank_biased", "rrf", "weighted")
    },
    "normalise": "How scores are made comparable: min-max, z-score, ...",
    "minimum": "The least score of theoretical-min: a number, or one for each part.",
    "fitted": "A file that `sluice fit` wrote; it has the settings.",
    "fitted.measure": "What the choice maximises on the dev queries.",
    "fitted.depth": "Hits of each part that are fused (all), or the most that are reranked (50).",
    "fitted.queries": "Dev queries that are used, at most: 1,000 of a fusion, 300 of a reranker.",
    "fitted.methods": "The fusions that are tried; weighted alone, unless given.",
    "rank_constant": "The constant of 1 / (rank_constant + rank): 60.",
    "phi": "The persistence of rank-biased centroids.",
    "fused.gamma": "The exponent of comb_gmnz.",
    "fused.sigma": "The sigma of logn_isr.",
    "fused.method": "The fusion: rrf, weighted, or any other of `sluice fit fusion`.",
    "cached.file": "The file of scores.",
    "max_bytes": "The size that the file may reach.",
    "cached.name": "Identifies a scorer without a fingerprint.",
    "ltr.model": "The folder that `sluice fit ranker` wrote.",
    "pair_head.model": "The model whose head scores pairs.",
    "normalised.fitted": "The file of a saved normaliser, instead of a bank.",
    "bank": "The dataset whose train queries hubs are estimated on.",
    "normalised.mode": "dynamic: only queries whose first hit is a hub; static: all.",
    "normalised.beta": "How sharply hubs differ from other documents.",
    "normalised.documents": "Documents that normalisers are made for; 0: those seen.",
    "normalised.depth": "Hits that are reordered.",
    "evidence.sharpness": "1 joins by products, larger values ever more by the best part (MaxP).",
    "evidence.temperature": "How many points of score make the odds e times as large.",
    "max_sim.retriever": "Instead of a model: a retriever, whose stored token vectors are "
    "compared; only queries are encoded.",
    "prf.kind": "average of the query and the first documents, or rocchio.",
    "prf.alpha": "The query's weight in rocchio.",
    "prf.beta": "The first documents' weight in rocchio.",
    "prf.gamma": "The last documents' weight in rocchio.",
    "prf.bottom": "Documents at the end of the list that count against.",
    "prf.k": "Documents at the head of the list that are taken as relevant.",
    "prf.depth": "Hits that the last documents are taken from.",
    "rm3.documents": "Documents at the head of the list that are taken as relevant.",
    "rm3.terms": "Terms of these documents that the query gets.",
    "original_weight": "The weight of the query's own terms, from 0 to 1.",
    "max_document_share": "Terms in a larger share of the documents are left out.",
    "summarised.words": "Words of a summary, at most.",
    "decay": "What a term counts that is covered already: 0 nothing, 1 as before.",
    "how": "A document's score: of its best passage (max), the first, the sum or the mean.",
    "length": "Tokens of a passage, at most.",
    "overlap": "Tokens that neighbours share.",
    "late": "Encodes passages by token states that saw the document around them (late chunking).",
    "rm3.by": "What a document counts: its score, or all equal.",
    **{f"{name}.{key}": text for name in WRITERS for key, text in WRITING.items()},
    "hyde.prompt": "A prompt with {query}, or a list of such, each of which writes a document.",
    "query2doc.prompt": "The prompt, with {query}.",
    "iter_retgen.prompt": "The prompt, with {query} and {documents}.",
    "structured.prompt": "The prompt, with {query} and {fields}, which asks for a JSON object.",
    "synonyms.file": "Lines such as 'tv, television' (each for the others), 'tv => television'.",
    "synonyms.rules": "Such lines themselves, instead of a file.",
    "spelling.edits": "Letters of a word that may differ, 1 or 2; 1 in words of three to five.",
    "spelling.query_weight": "What the query as it stands counts; the corrected one counts 1.",
    "spelling.language": "The language of the texts, as of BM25.",
    "key_phrases.phrases": "Phrases that are searched by, at most.",
    "key_phrases.weight": "What all phrases count together; the query counts query_weight.",
    "key_phrases.query_weight": "What the query itself counts; 0: the phrases alone.",
    "key_phrases.common": "Words in a larger share of the documents are in no phrase.",
    "key_phrases.language": "The language of the texts, as of BM25.",
    "hyde.samples": "Documents written for each prompt; several are drawn, each time the same.",
    "hyde.temperature": "How freely several are drawn, above 0 and at most 2; left out, 0.7.",
    "synonyms.weight": "What all synonyms of a phrase count together; the query counts 1.",
    "query_weight": "What the query itself counts; each document written for it counts 1.",
    "repeats": "How often the query stands before the passage; left out, 5 times where words are "
    "counted, else once.",
    "rounds": "How many drafts are written, each followed by a search; 0: none.",
    "iter_retgen.depth": "Documents that a draft is written from.",
}  # fmt: skip
