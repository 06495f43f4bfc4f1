"""Five steps of training, whose loss falls, and a search of what was trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

QUERIES = ["gold", "deep", "rank"]
ASKED = "gold in the river, a search for deep water, learn to rank the stone"
DOCUMENTS = ["stone of the river", "a search for water", "learn the score"]


def five_steps(encoder: Any, rate: float = 2e-3) -> None:
    """Train an encoder on three pairs and check that its loss falls; without dropout."""
    losses = []
    optimiser = torch.optim.Adam(encoder.module.parameters(), lr=rate)
    encoder.module.eval()
    for _ in range(5):
        left = encoder.embed(encoder.tokenize(QUERIES, "query"), "query")
        right = encoder.embed(encoder.tokenize(DOCUMENTS, "document"), "document")
        scores = 10 * torch.nn.functional.normalize(left) @ torch.nn.functional.normalize(right).T
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(3))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def searched(encoder: Any) -> None:
    """Index the documents and check that a search finds them in the order of inner products."""
    from sluice.retrieval import Document, Retriever

    corpus = [Document(f"d{number}", "", text) for number, text in enumerate(DOCUMENTS)]
    hits = Retriever.build(encoder, corpus).search(ASKED, k=9)
    documents, queries = encoder.encode_documents(DOCUMENTS), encoder.encode_queries([ASKED])
    sparse = not isinstance(documents, np.ndarray)
    scores = (documents @ queries.T).toarray()[:, 0] if sparse else documents @ queries[0]
    order = [n for n in np.argsort(-scores, kind="stable") if scores[n] > 0 or not sparse]
    assert order
    assert [hit.doc_id for hit in hits] == [f"d{n}" for n in order]
    np.testing.assert_allclose([hit.score for hit in hits], scores[order], rtol=1e-4)
