"""Dev evaluation: of the encoder during training, and of models whose average is taken (soups)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.encoder import Vectors, hooks_of
from sluice.encoders.foundation.bounded_input import Reservoir
from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.provenance import provenance
from sluice.encoders.table import RERANKERS
from sluice.retrieval.config.sections import DevSection
from sluice.retrieval.datasets.dataset import Dataset, load_dataset, training_splits
from sluice.retrieval.documents.document import Document, document_input
from sluice.retrieval.evaluation.measures import at_level, depth_of, parse_measure
from sluice.retrieval.evaluation.scores import Qrels, evaluate
from sluice.retrieval.experiments.training.tested_queries import without_tested
from sluice.retrieval.retrievers.corpus.fill_index import own_index
from sluice.retrieval.retrievers.corpus.index_queries import query_vectors
from sluice.retrieval.retrievers.state import queries_at_a_time
from sluice.retrieval.runs.queries import DEPTH
from sluice.retrieval.runs.run import Ranking, Run
from sluice.training.protocol import DevMeasures

if TYPE_CHECKING:
    from sluice.encoders.tuning.soup import GreedySoup
    from sluice.indexing import Hits
    from sluice.retrieval.datasets.dataset import Dataset


Evaluate = Callable[[Any], Mapping[str, float]]
PAIR_DEPTH = 20  # candidates a cross-encoder reranks for each dev query
TOKEN_BYTES = 64 << 20  # of documents' token vectors that are searched together
USUAL_TOKENS, USUAL_DIM = 512, 128  # of a document's vectors, where the encoder does not say


def dev_measure(section: DevSection) -> str:
    """Return the measure that chooses the best model, spelled as ``evaluate`` spells it."""
    return str(parse_measure(section.measures[0]))


def dev_depth(section: DevSection) -> int:
    """Return how many documents per query the section's measures need."""
    return depth_of([parse_measure(text) for text in section.measures]) or DEPTH


def dev_evaluation(
    dataset: Dataset,
    section: DevSection,
    *,
    seed: int,
    candidates: Run | None,
    bfloat16: bool = False,
) -> Evaluate:
    """Return ``evaluate(encoder) -> measures`` over a sample of a dev split.

    Bi-encoders search a sample of the corpus (all relevant documents, and others up to
    ``section.documents``) exactly. Cross-encoders rerank ``candidates``, a run of the dev queries.
    With ``bfloat16`` they compute in it meanwhile, where the processor has it.
    """
    chosen = list(dataset.queries)
    random.Random(f"dev {seed}").shuffle(chosen)
    queries = {query: dataset.queries[query] for query in sorted(chosen[: section.queries])}
    qrels = {query: dataset.qrels[query] for query in queries}
    if candidates is not None:
        measured = _by_reranking(dataset, queries, qrels, section.measures, candidates)
    else:
        measured = _by_searching(dataset, queries, qrels, section, seed)
    return _halved(measured) if bfloat16 else measured


def _halved(measured: Evaluate) -> Evaluate:
    """Return an evaluation during which the encoder computes in bfloat16."""

    def in_bfloat16(encoder: Any) -> Mapping[str, float]:
        from sluice.encoders.towers import TowerEncoder
        from sluice.encoders.transformer.arithmetic import pick_dtype
        from sluice.encoders.transformer.model import TransformerModel

        known = isinstance(encoder, TransformerModel | TowerEncoder)
        if not known:
            return measured(encoder)
        before = encoder.dtype
        encoder.dtype = pick_dtype("auto", encoder.device, encoder.module)
        try:
            return measured(encoder)
        finally:
            encoder.dtype = before

    return in_bfloat16


def _by_searching(
    dataset: Dataset, queries: dict[str, str], qrels: Qrels, section: DevSection, seed: int
) -> Evaluate:
    texts = _sampled(dataset, qrels, section.documents, seed)
    ids = np.array(list(texts), dtype=object)
    documents = {name: Document(name, "", text) for name, text in texts.items()}
    drop = dataset.identical_ids(documents.get).drop  # outside the sample nothing can be a hit
    depth = dev_depth(section) + drop

    def measured(encoder: Any) -> Mapping[str, float]:
        search = token_hits if hooks_of(encoder).similarity == "max_sim" else _searched
        inputs = [document_input(encoder, each) for each in documents.values()]
        hits = search(encoder, inputs, list(queries.values()), depth)
        rankings = {}
        for query, rows, scores in zip(queries, hits.rows, hits.scores, strict=True):
            hit = rows >= 0
            rankings[query] = list(zip(ids[rows[hit]].tolist(), scores[hit], strict=True))
        return _scored(Run(rankings), qrels, section.measures, dataset.level, drop=drop)

    return measured


def token_hits(encoder: Any, texts: list[Any], queries: list[str], depth: int) -> Hits:
    """Return the exact best texts of every query by MaxSim, encoding a block of texts at a time.

    A score does not depend on the documents beside it: the hits are those of one index of all.
    """
    from sluice.indexing import Hits
    from sluice.indexing.tokens import TokenIndex

    hooks = hooks_of(encoder)
    tokens = hooks.lengths.get("document", USUAL_TOKENS)
    step = max(1, TOKEN_BYTES // (4 * tokens * (hooks.dim or USUAL_DIM)))
    asked = encoder.encode_queries(queries)
    best = Hits.missing(len(queries), depth)
    for start in range(0, len(texts), step):
        index = TokenIndex("float32")
        index.add(encoder.encode_documents(texts[start : start + step]))
        found = index.search(asked, depth)
        rows = np.where(found.rows < 0, found.rows, found.rows + start)
        scores = np.concatenate([best.scores, found.scores], axis=1)
        best = Hits(np.concatenate([best.rows, rows], axis=1), scores).sorted(depth)
    return best


def _searched(encoder: Any, texts: list[Any], queries: list[str], depth: int) -> Hits:
    """Return the exact best texts of every query, by the kind of their vectors."""
    from sluice.indexing import FlatIndex, GraphIndex, Hits, Index, InvertedIndex

    documents: Vectors = encoder.encode_documents(texts)
    index: Index = InvertedIndex()
    if hooks_of(encoder).similarity == "q_net":
        index, most = GraphIndex("exhaustive"), queries_at_a_time(encoder)
        index.add(documents)
        blocks = (queries[start : start + most] for start in range(0, len(queries), most))
        parts = [index.search(encoder.encode_queries(block), depth) for block in blocks]
        return Hits(*map(np.concatenate, zip(*parts, strict=True)))
    own = own_index(encoder)
    if own is not None:
        index = own
    elif isinstance(documents, np.ndarray):
        index = FlatIndex()
    index.add(documents)
    return index.search(query_vectors(encoder, queries, index), depth)


def _by_reranking(
    dataset: Dataset, queries: dict[str, str], qrels: Qrels, measures: list[str], candidates: Run
) -> Evaluate:
    from sluice.retrieval.pipelines.rerank import Rerank

    lists = Run({query: candidates.get(query, Ranking([], [])) for query in queries})
    needed = {doc for ranking in lists.values() for doc in ranking[:PAIR_DEPTH].doc_ids}
    texts = _Texts({d.id: d.full_text for d in dataset.corpus if d.id in needed})

    def measured(encoder: Any) -> Mapping[str, float]:
        run = Rerank(encoder, PAIR_DEPTH, documents=texts).run(queries, lists)
        return _scored(run, qrels, measures, dataset.level)

    return measured


def _scored(
    run: Run, qrels: Qrels, measures: Sequence[str], level: int, *, drop: bool = False
) -> DevMeasures:
    """Return what a run measures, by the names of the section, which leave the level out."""
    scores = evaluate(run, qrels, measures, ignore_identical_ids=drop, level=level)
    parsed = [parse_measure(text) for text in measures]
    names = list(map(str, at_level(parsed, level)))
    means = {str(each): scores.mean[name] for each, name in zip(parsed, names, strict=True)}
    return DevMeasures(means, [*scores.per_query[names[0]].values()])


class _Texts(dict[str, str]):
    """Texts by document id, as ``Rerank`` reads them."""

    def texts(self, document_ids: Any) -> list[str]:
        return [self[name] for name in document_ids]


def _sampled(dataset: Dataset, qrels: Qrels, limit: int, seed: int) -> dict[str, str]:
    """Return id -> text: every relevant document, and a reservoir sample of the others."""
    relevant = {doc for grades in qrels.values() for doc, grade in grades.items() if grade > 0}
    chance = random.Random(f"dev corpus {seed}")
    others: Reservoir[tuple[str, str]] = Reservoir(max(0, limit - len(relevant)), chance)
    texts: dict[str, str] = {}
    for document in dataset.corpus:
        if document.id in relevant:
            texts[document.id] = document.full_text
        else:
            others.add((document.id, document.full_text))
    if relevant and not texts:
        raise DataError(
            f"evaluate: {dataset.name}: none of the {plural(len(relevant), 'document')} that the "
            f"dev judgements call relevant (such as {min(relevant)!r}) is in the corpus, so every "
            "model scores 0; name the corpus that they belong to, or leave evaluate out"
        )
    return {**texts, **dict(others.items)}


def make_soup(models: Sequence[str], output: Path, weights: Sequence[float] | None) -> Path:
    """Write a soup with its manifest, see ``sluice.encoders.tuning.soup.soup``."""
    from sluice.encoders.tuning.soup import soup

    start = time.monotonic()
    made = soup(models, output, weights=weights)
    shares = None if weights is None else list(weights)
    _note(made, {"soup": list(models), "weights": shares}, time.monotonic() - start)
    return made


def make_greedy_soup(
    models: Sequence[str], output: Path, dataset: str, section: DevSection, *, seed: int = 13
) -> GreedySoup:
    """Write the greedy soup by the first measure of ``section`` on the dataset's dev split.

    Cross-encoders rerank BM25's top documents. Raises ``DataError`` for a dataset without judged
    queries, ``ConfigError`` where more than a few of them are queries of its test split.
    """
    from sluice.encoders.tuning.soup import greedy_soup

    start = time.monotonic()
    _, dev = training_splits(dataset, seed)
    dev = without_tested(dev, partial(load_dataset, dataset), "test")
    score = dev_score(dev, section, models, seed=seed)
    made = greedy_soup(models, output, score)
    facts = {
        "soup": list(made.chosen), "scores": dict(made.scores), "value": made.value,
        "dataset": dev.name, "split": "dev", "measure": dev_measure(section), "seed": seed,
    }  # fmt: skip
    _note(made.path, facts, time.monotonic() - start)
    return made


def dev_score(
    dev: Dataset, section: DevSection, models: Sequence[str], *, seed: int
) -> Callable[[Path], float]:
    """Return ``score(model folder)``: the first measure of ``section`` on a dev split."""
    from sluice.encoders.model_files.locate import model_folder
    from sluice.encoders.model_files.registry import kind_of, open_encoder

    kinds = {kind_of(model_folder(model)) for model in models}
    if len(kinds) > 1:
        raise ConfigError(f"models: several types, {', '.join(sorted(kinds))}; expected one")
    candidates = None
    if kinds <= set(RERANKERS):
        from sluice.encoders.lexical.bm25 import BM25Encoder
        from sluice.retrieval.retrievers.candidate_lists import run_on
        from sluice.retrieval.retrievers.retriever import Retriever

        lists = Retriever.build(BM25Encoder(), dev.corpus)
        candidates = run_on(lists, dev, max(PAIR_DEPTH, dev_depth(section)))
    evaluate = dev_evaluation(dev, section, seed=seed, candidates=candidates)

    def score(folder: Path) -> float:
        return next(iter(evaluate(open_encoder(folder)).values()))

    return score


def _note(folder: Path, facts: dict[str, Any], seconds: float) -> None:
    write_json(folder / MANIFEST, {**facts, **provenance(facts, seconds=seconds)})
