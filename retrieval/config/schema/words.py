"""A line about each argument that many components share, and about components."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

# Arguments that mean the same wherever they occur; all others are declared where they stand, as
# ``Annotated[int, "Tokens of a passage."]``, or said in their component's docstring.
WORDS: Mapping[str, str] = {
    "model": "A folder, a hub id, a short name such as all-MiniLM-L6-v2, or a model under `train`.",
    "pooling": "How token vectors become one; left out, as the model's folder says.",
    "projection": "Adds a new linear layer to so many dimensions, or several: {dim, layers, "
    "hidden, activation, residual}.",
    "query_prompt": "Text before every query, such as 'query: ' for E5.",
    "document_prompt": "Text before every document, such as 'passage: ' for E5.",
    "query_length": "Tokens of a query that are read; the rest is cut.",
    "document_length": "Tokens of a document that are read; the rest is cut.",
    "device": "auto (a GPU if there is one), cpu, cuda, cuda:1, mps.",
    "dtype": "The arithmetic: float32, bfloat16 (faster, less exact), int8 (on CPUs; faster and "
    "less exact again), or auto (float32 or bfloat16, which is faster here).",
    "batch_tokens": "Tokens encoded together; less takes less memory. Left out, chosen.",
    "seed": "The seed of what is drawn.",
    "normalize": "Scales vectors to unit length, so that the score is the cosine.",
    "layers": "Keeps only so many of the model's first layers.",
    "weights": "The bits of the large matrices: float32, int8 (a quarter of the memory), or int4 "
    "(about a sixth, less exact); left out, as the model's folder says.",
    "backend": "torch, onnx or openvino; the latter two run a graph of `sluice model export`.",
    "backend_file": "The graph's file in the model's folder, for onnx and openvino.",
    "concurrency": "Requests at the same time.",
    "api_key_env": "The environment variable that has the endpoint's key.",
    "api_key_file": "The file that has the endpoint's key, in place of a variable.",
    "timeout_s": "Seconds until a request counts as failed.",
    "retries": "How often a failed request is repeated.",
    "backoff_s": "Seconds before the first repetition; each next one waits twice as long.",
    "reduction": "The adapters have the hidden size divided by this.",
    "metric": "ip (inner product), cosine, or l2 (negative squared distance).",
    "similarity": "auto (the encoder's own), cosine or dot.",
    "negatives": "What a positive is compared with: all documents of the batch, the query's own, "
    "the others' positives (inbatch_pos), or these and its own.",
    "temperature": "Divides the scores: less makes the loss look at the hardest negatives. Left "
    "out, 0.05 for cosine and 1 for dot products.",
    "average": "Over each query's pairs, over all pairs of the batch, or the sum.",
    "documents": "Documents of the corpus that are used, the first ones; left out, all.",
    "normalise": "How scores are made comparable: min-max, z-score, ...",
    "fitted": "A file that `sluice fit` wrote; it has the settings.",
}  # fmt: skip


# Components whose docstring is for programmers; the class where two have one name.
SUMMARIES: Mapping[str, str] = {
    "generative": "A language model of transformers that judges, compares or orders candidates.",
    "http": "A language model behind an HTTP endpoint that judges, compares or orders candidates.",
    "sluice.encoders.dense.remote.encoder:HttpEncoder": "Dense vectors from a server of OpenAI's, "
    "Cohere's or TEI's shape.",
    "http_rerank": "Scores from a server's /rerank, of Cohere's or TEI's shape.",
    "precomputed": "Dense vectors that another program made; queries that it encoded too.",
    "dense": "A transformer with a pooling: one dense vector for each text.",
    "static": "A table of token vectors and no network: the mean of a text's is its vector.",
    "concepts": "Weights of concepts that a file names, served by an inverted index.",
    "sluice.encoders.own.csr:CsrEncoder.from_pretrained": "Sparse codes of dense vectors by a "
    "sparse autoencoder (CSR).",
    "sluice.encoders.dense.experts.encoder:ExpertEncoder.from_pretrained": "A dense encoder with "
    "feed-forward layers for each dataset, or chosen by a gate.",
    "gaussian": "A mean and a variance of each text, ranked by Kullback-Leibler divergence.",
    "sluice.encoders.own.pseudo_queries:PseudoQueryEncoder.from_pretrained": "Documents are "
    "centroids of their own tokens, which queries attend to.",
    "hypencoder": "Documents are vectors, a query a small network that scores them.",
    "seal": "A language model writes n-grams of the documents for a query (SEAL).",
    "dsi": "A language model writes the identifiers of documents for a query (DSI).",
    "splade": "SPLADE: weights of the vocabulary's terms, from a masked language model.",
    "pgvector": "Dense or sparse vectors in PostgreSQL with pgvector, exact or by a graph.",
    "qdrant": "Dense or sparse vectors in Qdrant, exact or by a graph.",
    "sluice.encoders.late_interaction.encoder:TokenEncoder.from_pretrained": "Late interaction "
    "(ColBERT): a vector for each token, scored by MaxSim.",
    "sluice.encoders.own.three_heads.encoder:HeadEncoder.from_pretrained": "One head of a model "
    "with three (BGE-M3); heads share the passes through it.",
    "towers": "Two encoders with weights of their own, for queries and for documents.",
    "cross_encoder": "Reads query and document together and returns one score.",
    "listwise": "A language model that writes the order of a whole list (full ranking).",
    "true_false": "An encoder with a decoder, such as a T5, that answers true or false (monoT5).",
    "bfs": "Titles or first sentences as queries, their bodies as documents.",
    "clicks": "What users clicked, freed of the position's bias by a click model.",
    "corpus": "Pairs of several kinds from the corpus, filtered and taught by a search of it.",
    "wlp": "First sentences as queries, documents linked with theirs as documents.",
    "fields": "Some fields of a document as the query, others as the document.",
    "file": "Examples from files of the usual formats.",
    "generated": "Queries of a language model with a soft prompt learnt on few judgements (SPTAR).",
    "ict": "Inverse cloze: a sentence of a document as the query, the rest as the document.",
    "indexing": "Texts of every document and queries for it, to learn its identifier from.",
    "texts": "Every document of the corpus, for losses that learn from texts alone.",
    "mined": "Hard negatives from ranked lists, found before training.",
    "abstain": "A stage without hits for queries that nothing here seems to answer.",
    "rrf": "Sums of reciprocal ranks; a | b is rrf(a, b).",
    "weighted": "Weighted sums of normalised scores.",
    "rank_biased": "Rank-biased centroids.",
    "comb_sum": "Sums of normalised scores of the lists that have the document.",
    "comb_mnz": "These sums times the number of those lists.",
    "fused": "Any other fusion, by method.",
    "fitted": "A fusion, or a reranker, whose settings are chosen on the dev queries.",
    "ltr": "A learnt ranker over the scores and ranks of several parts.",
    "normalised": "A retriever whose scores are corrected for hubs.",
    "max_sim": "Late interaction: each query token's best match among a document's tokens, summed.",
    "cached": "A reranker that keeps its scores in a file.",
    "summarised": "A reranker that reads a summary of each document, made for the query.",
}


LONGEST = 320  # characters of a description


def described(argument: str, docs: Sequence[str]) -> str:
    """Return one line about an argument without a sentence of its own; empty if nothing is known.

    ``docs`` are the docstrings of its class and of its factory. A sentence that begins with the
    argument says best what it is.
    """
    own = list(_sentences(docs, argument))
    about = [sentence for sentence in own if sentence.startswith(f"`{argument}")]
    text = WORDS.get(argument, "") or next(iter(about), "") or next(iter(own), "")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _sentences(docs: Sequence[str], argument: str) -> Iterator[str]:
    """Yield the sentences of docstrings that name an argument, code marked as in Markdown."""
    for doc in docs:
        for paragraph in doc.split("\n\n"):
            text = " ".join(paragraph.split()).replace("``", "`")
            for sentence in re.split(r"(?<=[.;]) (?=[A-Z`(])", text):
                if re.search(rf"`{argument}[`:]", sentence):
                    yield sentence.rstrip(";") + ("." if sentence[-1] not in ".;" else "")
