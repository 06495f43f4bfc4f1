#!/usr/bin/env python
"""A small generative reranker made offline: MiniLM as a decoder, taught to answer yes or no.

    python scripts/prove_generative.py
    python scripts/prove_generative.py ../shared/data/scifact --steps 300 --others bm25

The decoder reads from left to right with the lower layers of an encoder, and is trained on a
dataset's train split: each query with a relevant document (yes) and another one (no). Then a
relevant document of each test query is told from others by the styles of ``type: generative``.
``--others`` are drawn at random, or BM25's first hits, which is far harder. Prints the AUC of the
yes-or-no scores, and nDCG@10 of the candidates in random order, and as reranked before and after
the training.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import MODEL, descend, options, write_record

PROMPT = "query: {query} document: {document} relevant?"


OPTIONS = {
    "dataset": ({"nargs": "?", "default": "pydocs"}, "A dataset: folder, name."),
    "--steps": (300, "Of the training."), "--layers": (2, "Of MiniLM's six."),
    "--others": {"choices": ["random", "bm25"], "default": "random"},
    "--queries": (150, "Test queries."), "--candidates": (5, "Of each test query."),
    "--document-length": (24, "Tokens."), "--batch": 16, "--learning-rate": 3e-4, "--seed": 13,
    "--json": (Path, "Write the figures here too."),
}  # fmt: skip


def decoder(folder: Path, layers: int) -> Path:
    """Write the lower layers of MiniLM as a causal language model."""
    from transformers import AutoTokenizer, BertLMHeadModel

    from sluice.encoders.model_files.loading import quiet_transformers
    from sluice.encoders.model_files.locate import model_folder

    home = model_folder(MODEL)
    with quiet_transformers():
        made = BertLMHeadModel.from_pretrained(home, is_decoder=True, num_hidden_layers=layers)
        made.save_pretrained(folder)
        AutoTokenizer.from_pretrained(home).save_pretrained(folder)
    return folder


def candidates(dataset: Any, count: int, asked: argparse.Namespace) -> dict[str, list[str]]:
    """Return for each query a relevant document, then others that are not."""
    draw = random.Random(asked.seed)
    known = [document.id for document in dataset.corpus]
    hits: dict[str, list[str]] = {query: draw.sample(known, count + 20) for query in dataset.qrels}
    if asked.others == "bm25":
        from sluice import BM25Encoder, InvertedIndex, Retriever

        bm25 = Retriever.build(BM25Encoder(), dataset.corpus, index=InvertedIndex(), name="bm25")
        judged = {query: dataset.queries[query] for query in dataset.qrels}
        hits = {query: list(own.doc_ids) for query, own in bm25.run(judged, k=count + 20).items()}
    found = {}
    for query, own in hits.items():
        relevant = [doc for doc, grade in dataset.qrels[query].items() if grade > 0]
        others = [doc for doc in own if doc not in relevant and doc != query]
        if relevant and len(others) >= count - 1:
            found[query] = [relevant[0], *others[: count - 1]]
    return found


def train(model: Any, pairs: list[tuple[str, str, int]], asked: argparse.Namespace) -> None:
    """Train on (query, document, place of the right answer), all but the word vectors."""
    import torch

    from sluice.encoders.rerankers.language_model import Template
    from sluice.encoders.rerankers.next_tokens import NextTokens

    template = Template(PROMPT, ["query", "document"])
    prompts = [template.fill({"query": query, "document": text}) for query, text, _ in pairs]
    ids, right = model.prompt_tokens(prompts), [answer for _, _, answer in pairs]
    own = model.tokenizer.convert_tokens_to_ids(["yes", "no"])
    model.model.get_input_embeddings().weight.requires_grad_(False)
    free = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
    model.model.train()
    draw = random.Random(asked.seed)

    def loss_of(_: int) -> Any:
        rows = draw.sample(range(len(ids)), asked.batch)
        texts = [ids[row].tolist() for row in rows]
        read = NextTokens(model.model, texts, (), padding=0, device=model.device, keep=False)
        wanted = torch.tensor([right[row] for row in rows], device=model.device)
        return torch.nn.functional.cross_entropy(read.logits[:, own], wanted)

    descend(free, loss_of, asked.steps, asked.learning_rate, pct_start=0.1)
    model.model.eval()


def auc(scores: dict[str, dict[str, float]], lists: dict[str, list[str]]) -> float:
    """Return how often a query's relevant document scores above one of its others."""
    wins = []
    for query, own in lists.items():
        best = scores[query][own[0]]
        wins += [(best > scores[query][doc]) + (best == scores[query][doc]) / 2 for doc in own[1:]]
    return round(sum(wins) / len(wins), 3)


def main() -> None:
    import torch

    from sluice import Ranking, Rerank, Run, evaluate, load_dataset
    from sluice.encoders.rerankers.local_language_model import LocalLanguageModel
    from sluice.retrieval.stages.generative.pointwise import Pointwise
    from sluice.retrieval.stages.generative.rerankers import Listwise, Pairwise

    asked = options(__doc__, OPTIONS)
    torch.manual_seed(asked.seed)
    start = time.monotonic()
    training, test = load_dataset(asked.dataset, "train"), load_dataset(asked.dataset, "test")
    texts = {document.id: document.full_text for document in test.corpus}

    class Store:
        def texts(self, document_ids: Any) -> list[str]:
            return [texts[doc] for doc in document_ids]

    pairs = []
    for query, (relevant, other) in candidates(training, 2, asked).items():
        pairs += [(training.queries[query], texts[relevant], 0)]
        pairs += [(training.queries[query], texts[other], 1)]
    lists = dict(list(candidates(test, asked.candidates, asked).items())[: asked.queries])
    draw = random.Random(asked.seed)
    mixed = {query: draw.sample(own, len(own)) for query, own in lists.items()}
    given = Run({q: Ranking(own, list(range(len(own), 0, -1))) for q, own in mixed.items()})
    qrels = {q: {own[0]: 1} for q, own in lists.items()}
    queries = {q: test.queries[q] for q in lists}

    def ndcg(run: Any) -> float:
        return round(evaluate(run, qrels, ["nDCG@10"]).mean["nDCG@10"], 4)

    with tempfile.TemporaryDirectory() as name:
        length = asked.document_length
        model = LocalLanguageModel.from_pretrained(
            decoder(Path(name) / "decoder", asked.layers), document_length=length
        )
        scorer = Pointwise.yes_no(model, prompt=PROMPT)
        stage = Rerank(scorer, documents=Store())
        figures: dict[str, Any] = {"nDCG@10, random order": ndcg(given)}
        run = stage.run(queries, given)
        figures |= {
            "AUC, untrained": round(auc(run.to_dict(), lists), 3),
            "nDCG@10, untrained": ndcg(run),
        }
        begun = time.monotonic()
        train(model, pairs, asked)
        figures["training seconds"] = round(time.monotonic() - begun)
        begun = time.monotonic()
        run = stage.run(queries, given)
        rate = len(lists) * asked.candidates / (time.monotonic() - begun)
        figures |= {
            "AUC, trained": round(auc(run.to_dict(), lists), 3),
            "nDCG@10, trained": ndcg(run),
        }
        figures |= {"pairs to train on": len(pairs), "scored pairs/s": round(rate)}
        few = dict(list(queries.items())[:3])
        for other in (Pairwise(model), Listwise(model, window=4)):  # neither was trained for
            run = Rerank(other, documents=Store()).run(few, given)
            same = all(sorted(run[q].doc_ids) == sorted(lists[q]) for q in few)
            figures[f"{type(other).__name__} returns permutations"] = same
    figures |= {"queries": len(lists), "seconds": round(time.monotonic() - start)}
    print(json.dumps(figures, indent=2))
    write_record(asked.json, figures)


if __name__ == "__main__":
    main()
