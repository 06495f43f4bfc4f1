"""A line about each argument of indexes, of databases and graphs too."""

from __future__ import annotations

from collections.abc import Mapping

INDEXES: Mapping[str, str] = {
    # indexes
    "metric": "ip (inner product), cosine, or l2 (negative squared distance).",
    "train_size": "Vectors that FAISS's training sees, at most.",
    "faiss.rescore": "Candidates scored again with full vectors, where they are kept; 0: none.",
    "faiss.params": "Search parameters that every search has, such as {nprobe: 16}.",
    "flat.depth": "Candidates of the first pass that are scored exactly.",
    "inverted.fidelity": "How exactly weights are stored: exact, or a form that takes less memory.",
    "inverted.order": "How documents are arranged inside: input, or by what they share.",
    "inner": "The index that does the searching, {type: ...}.",
    "augmented.augmentation": "document_bias or mips_to_l2, as {type: ...}.",
    "funnel.first": "The index of the first pass, {type: ...}; left out, flat.",
    "funnel.dimensions": "Dimensions of the first pass; left out, all.",
    "funnel.depth": "Candidates of the first pass that are scored exactly.",
    "auto.k": "Hits that the recall is measured at.",
    "auto.target_recall": "The share of the exact best hits that must be found.",
    "document_bias.values": "One number for each document, added to its score.",
    # databases
    "dsn": "postgresql://user@host:port/database without a password, which PGPASSWORD or ~/.pgpass "
    "has; if left out, PGHOST, PGDATABASE and PGUSER are used.",
    "pgvector.table": "The prefix of its tables' names.",
    "pgvector.column": "vector, halfvec (float16) or sparsevec; left out, as the vectors are.",
    "pgvector.method": "exact, or hnsw: a graph, approximate and faster for many documents.",
    "pgvector.m": "Links of a vector in each layer of the graph, 16.",
    "pgvector.ef_construction": "Candidates for the links of a new vector, 64.",
    "pgvector.prune": "Keeps so many of a sparse vector's weights, the largest; left out, too many "
    "(16,000; with hnsw 1,000) are an error.",
    # Qdrant
    "qdrant.path": "The folder of Qdrant's engine in this process, open in one at a time; or url.",
    "qdrant.url": "A Qdrant server: https, or http of this machine; its key is in QDRANT_API_KEY.",
    "qdrant.collection": "The prefix of its collections' names.",
    "qdrant.method": "exact, or hnsw: a graph, approximate and faster for many documents.",
    "qdrant.m": "Links of a vector in the graph, 16.",
    "qdrant.ef_construct": "Candidates for the links of a new vector, 100.",
    # graphs
    "query_graph.neighbours": "Links of a document's own; as many others lead to it at most.",
    "query_graph.depth": "Hits of each training query that are linked with each other.",
    "query_graph.build": "How the nearest documents are found: exact, or faiss, faster for many.",
    "query_graph.entries": "Documents that a walk begins with, those that training queries find.",
    "query_graph.candidates": "The best documents so far whose links a walk scores, one by one.",
    "query_graph.budget": "Documents that a walk may score, at most; left out, all it reaches.",
    "graph.mode": "graph walks from document to document; exhaustive scores all of them.",
    "graph.neighbours": "Documents that each is linked with, the nearest: 32.",
    "graph.build": "How neighbours are found: exact, or faiss, faster for many documents.",
    "graph.entries": "Random documents that a walk begins with; left out, a twentieth of all.",
    "graph.candidates": "Of the documents scored last, how many are followed; left out, 10 to 50.",
    "graph.iterations": "Steps of a walk, at most: 16.",
    "graph.budget": "Documents that a walk may score, at most; left out, all it reaches.",
    "graph.early_stop": "Ends a walk where a step finds none of the best k.",
}  # fmt: skip
