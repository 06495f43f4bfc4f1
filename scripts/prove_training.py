#!/usr/bin/env python
"""Orderings of training on real data: three seeds, paired tests, one table after another.

    SLUICE_DATA=FOLDER .venv/bin/python scripts/prove_training.py dense --datasets scifact
    SLUICE_DATA=FOLDER .venv/bin/python scripts/prove_training.py --show

Tables: dense (zero-shot, in-batch, mined, distilled), modes (of mining), losses, positives (several
positives to a query), matryoshka, splade (by target), middle (masked-language training before
SPLADE's, against none), cross (reranking), adore (live against mined negatives, documents frozen
for both). Each system is trained from all-MiniLM-L6-v2 for
each seed and tested on the test split; a result that is there is not made again, so tables can be
made in parts and side by side. All systems of a dataset are trained and tested at the same lengths.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import BM25, MODEL, options as parsed, trainer

LENGTHS = {"nfcorpus": (16, 64), "scifact": (32, 64), "feedbackqa": (24, 64)}  # query, document
TEST_LENGTH = {"nfcorpus": 64, "scifact": 128, "feedbackqa": 128}  # of documents
MEASURES = ["nDCG@10", "R@100"]
Spec = dict[str, Any]


def dense(name: str, steps: int, **more: Any) -> Spec:
    query, document = LENGTHS[name]
    return {
        "encoder": {
            "type": "dense", "model": MODEL, "query_length": query, "document_length": document,
        },
        "loss": {"type": "info_nce", "temperature": 0.05},
        "trainer": trainer(steps),
        **more,
    }  # fmt: skip


def mined(work: Path, mode: str = "percentage", **more: Any) -> Spec:
    """Negatives from the zero-shot encoder's own lists, the same for every system."""
    spec = {"type": "mined", "retriever": str(zero(work)), "mode": mode, "per_query": 1}
    return {**spec, "positives": "highest", "sampling": "random", "range_max": 50, **more}


def zero(work: Path) -> Path:
    return work / "zero-retriever"


def teacher_path(work: Path) -> Path:
    return work / "teacher" / "model"


def middle_path(work: Path) -> Path:
    return work / "middle-training" / "model"


def middle(name: str, steps: int) -> Spec:
    """Masked-language and FLOPS training of the head that the closed form makes."""
    more = {"loss": {"type": "masked_language"}, "sparsity": {"target_doc_terms": 150}}
    return {**splade(name, steps), **more}


def distilled(name: str, work: Path, steps: int) -> Spec:
    loss = {
        "type": "sum",
        "losses": [
            {"type": "kl_div", "weight": 1.0, "temperature": 0.05, "teacher_temperature": 1.0},
            {"type": "info_nce", "weight": 1.0, "temperature": 0.05},
        ],
    }
    more = {"negatives": mined(work, per_query=2), "teacher": str(teacher_path(work))}
    return dense(name, steps, loss=loss, **more)


def teacher(name: str, work: Path, steps: int) -> Spec:
    query, document = LENGTHS[name]
    return {
        "encoder": {"type": "cross_encoder", "model": MODEL, "max_length": query + document},
        "loss": {"type": "localized_softmax"}, "negatives": mined(work, per_query=3, range_max=50),
        "head_learning_rate": 1.0e-3, "trainer": trainer(3 * steps, 16, 1.5e-4),
    }  # fmt: skip


def splade(name: str, steps: int, target: tuple[int, int] = (40, 150), **more: Any) -> Spec:
    query, document = LENGTHS[name]
    return {
        "encoder": {
            "type": "splade", "model": MODEL, "start": True,
            "query_length": query, "document_length": document,
        },
        "loss": {"type": "info_nce", "temperature": 0.3},
        "sparsity": {"target_query_terms": target[0], "target_doc_terms": target[1], "ramp": 0.33},
        "head_learning_rate": 2.0e-4,
        "trainer": trainer(steps),
        **more,
    }  # fmt: skip


def systems(table: str, name: str, work: Path, steps: int) -> dict[str, Spec | None]:
    """The systems of a table; None is the zero-shot encoder, which is not trained."""
    own = {"negatives": mined(work)}
    if table == "dense":
        return {
            "zero-shot": None, "in-batch": dense(name, steps), "mined": dense(name, steps, **own),
            "distilled": distilled(name, work, steps),
        }  # fmt: skip
    if table == "modes":
        modes = {
            mode: dense(name, steps, negatives=mined(work, mode, range_max=None, sampling="top"))
            for mode in ("naive", "absolute", "margin", "percentage", "adaptive")
        }
        modes["shifted"] = dense(
            name, steps, negatives=mined(work, "shifted", range_max=None, sampling="top")
        )
        modes["window"] = dense(name, steps, negatives=mined(work, "window", range_max=100))
        judge = {"judge": str(teacher_path(work)), "range_max": 20, "sampling": "cyclic"}
        modes["judge"] = dense(name, steps, negatives=mined(work, "judge", **judge))
        modes["bm25"] = dense(name, steps, negatives=mined(work, retriever=BM25))
        modes["self-refreshed"] = dense(
            name, steps, negatives=mined(work, retriever="self", refresh=max(1, steps // 2))
        )
        return {f"mode-{mode}": spec for mode, spec in modes.items()}
    if table == "losses":
        cosine: dict[str, Spec] = {
            "info_nce": {"temperature": 0.05},
            "info_nce-symmetric": {"type": "info_nce", "temperature": 0.05, "symmetric": True},
            "info_nce-same-side": {"type": "info_nce", "temperature": 0.05, "same_side": True},
            "info_nce-focal": {"type": "info_nce", "temperature": 0.05, "focal_gamma": 0.5},
            "info_nce-learnt-t": {"type": "info_nce", "learnable_temperature": True},
            "info_nce-logq": {"type": "info_nce", "temperature": 0.05, "logq": True},
            "star": {}, "bixse": {}, "soft_top_k": {"k": 1}, "psl": {}, "rank_net": {},
            "list_net": {}, "lambda_loss": {}, "list_mle": {},
            "matryoshka": {"loss": {"type": "info_nce", "temperature": 0.05}},
            "mixing": {"loss": {"type": "info_nce", "temperature": 0.05}},
            "clp": {}, "momentum_queue": {"loss": {"type": "info_nce", "temperature": 0.05}},
        }  # fmt: skip
        made: dict[str, Spec | None] = {
            f"loss-{key}": dense(name, steps, loss={"type": key, **loss}, **own)
            for key, loss in cosine.items()
        }
        scored = work / "dense" / "distilled-13" / "training" / "teacher.parquet"
        for key in ("kl_div", "margin_mse", "judge_kl", "lambda_distil", "listwise_hinge"):
            spec = {**distilled(name, work, steps), "loss": {"type": key}}
            # The same negatives for the same seed: what the table "dense" had scored is used again.
            made[f"loss-{key}"] = {**spec, **({"teacher": str(scored)} if scored.exists() else {})}
        return made
    if table == "positives":
        several = {"positives": 4}
        return {
            "one-positive": dense(name, steps),
            "decoupled-4": dense(
                name, steps, loss={"type": "decoupled_softmax", "temperature": 0.05}, **several
            ),
            "soft-top-k-4": dense(
                name, steps, loss={"type": "soft_top_k", "k": "positives"}, **several
            ),
        }
    if table == "matryoshka":
        inner = {"type": "info_nce", "temperature": 0.05}
        wrapped = {"type": "matryoshka", "loss": inner, "dims": [384, 192, 96, 48]}
        return {
            "plain": dense(name, steps),
            "matryoshka": dense(name, steps, loss=wrapped),
        }
    if table == "splade":
        own = {"negatives": mined(work, retriever=BM25)}
        return {
            "bm25": None,
            **{
                f"splade-{q}/{d}": splade(name, 2 * steps, (q, d), **own)
                for q, d in ((40, 150), (10, 40), (20, 80), (60, 300))
            },
        }
    if table == "middle":
        own = {"negatives": mined(work, retriever=BM25)}
        after = splade(name, 2 * steps, **own)
        after["encoder"] = {**after["encoder"], "model": str(middle_path(work))}
        del after["encoder"]["start"]
        return {"start": splade(name, 2 * steps, **own), "middle": after}
    if table == "adore":
        live = {"type": "live", "depth": 100}
        frozen = dense(name, steps, negatives=mined(work))
        one, old = frozen["encoder"], {"type": "dense", "model": MODEL}
        old["document_length"] = one["document_length"]
        frozen["encoder"] = {"type": "towers", "freeze": "document", "query": one, "document": old}
        return {
            "zero-shot": None,
            f"adore-{steps}": dense(name, steps, loss={"type": "adore"}, negatives=live),
            f"static-{steps}": frozen,
        }
    raise SystemExit(f"unknown table {table!r}")


def vectors_of(system: str, model: Any, name: str, dim: int | None = None) -> Any:
    from sluice.encoders import BM25Encoder
    from sluice.encoders.model_files.registry import open_encoder

    if system == "bm25":
        return BM25Encoder()
    query, _ = LENGTHS[name]
    options: Spec = {"dtype": "bfloat16"}
    if dim is not None:
        options["dim"] = dim
    encoder = open_encoder(model, **options)
    for part in (encoder.towers or {"both": encoder}).values():
        part.lengths = {"query": query, "document": TEST_LENGTH[name]}
    return encoder


def tested(encoder: Any, name: str, frozen: Path | None) -> Spec:
    """Test an encoder; with ``frozen``, over the documents' vectors of that retriever."""
    from sluice import Encoding, FlatIndex, Retriever, evaluate, load_dataset
    from sluice.retrieval.retrievers.candidate_lists import run_on

    data = load_dataset(name)
    corpus = list(data.corpus)
    how: Spec = {"encoding": Encoding()}
    if frozen is not None:
        old = Retriever.open(frozen)
        rows = old.store.rows([each.id for each in corpus])
        how = {"index": FlatIndex(), "vectors": [old.index.documents(rows)]}
    built = Retriever.build(encoder, corpus, **how)
    scores = evaluate(run_on(built, data, 100), data.qrels, MEASURES)
    terms: Spec = {}
    if hasattr(encoder, "queries"):
        sample = [d.full_text for d, _ in zip(data.corpus, range(500), strict=False)]
        terms = {
            "terms_document": float(encoder.encode_documents(sample).nnz / len(sample)),
            "terms_query": float(
                encoder.encode_queries(list(data.queries.values())).nnz / len(data.queries)
            ),
        }
    return {**dict(scores.mean), **terms, "per_query": dict(scores.per_query["nDCG@10"])}


def reranked(name: str, work: Path, first: Path, depth: int = 10) -> tuple[Spec, Spec]:
    """Test a dense model alone and under the trained cross-encoder."""
    from sluice import CrossEncoder, Encoding, Rerank, Retriever, evaluate, load_dataset
    from sluice.retrieval.retrievers.candidate_lists import run_on

    data = load_dataset(name)
    encoder = vectors_of("dense", first, name)
    built = Retriever.build(encoder, data.corpus, encoding=Encoding())
    cross = CrossEncoder.from_pretrained(teacher_path(work), dtype="bfloat16")
    found = []
    first_stage = built % 100
    mixed = Rerank(cross, depth, interpolate=0.5)
    for stage in (built, first_stage >> Rerank(cross, depth), first_stage >> mixed):
        scores = evaluate(run_on(stage, data, 100), data.qrels, MEASURES)
        found.append({**dict(scores.mean), "per_query": dict(scores.per_query["nDCG@10"])})
    return {"first": found[0], "cross": found[1], "interpolated": found[2]}, {}


def prepared(table: str, name: str, work: Path, steps: int, *, taught: bool) -> None:
    """Make what the systems share: the zero-shot retriever and, if needed, the cross-encoder."""
    from sluice import DenseEncoder, Retriever, load_dataset, train

    if not (zero(work) / "retriever.json").exists():
        encoder = DenseEncoder.from_pretrained(
            MODEL, dtype="bfloat16", query_length=LENGTHS[name][0],
            document_length=TEST_LENGTH[name],
        )  # fmt: skip
        Retriever.build(encoder, load_dataset(name).corpus, path=zero(work), name="zero")
    if table == "middle" and not (middle_path(work) / "config.json").exists():
        folder = str(work / "middle-training")
        train({**middle(name, 2 * steps), "dataset": name, "output": folder})
    if taught and not (teacher_path(work) / "config.json").exists():
        train({**teacher(name, work, steps), "dataset": name, "output": str(work / "teacher")})


def main() -> None:
    arguments = parsed(__doc__, {
        "tables": {"nargs": "*"}, "--datasets": {"nargs": "+", "default": list(LENGTHS)},
        "--seeds": [13, 14, 15], "--steps": 40,
        "--only": ({"nargs": "+"}, "these systems of the table"), "--output": Path("runs/prove"),
        "--show": (False, "print the tables from what is there"),
    })  # fmt: skip
    if arguments.show:
        show(arguments.output)
        return
    for table in arguments.tables:
        for name in arguments.datasets:
            work = arguments.output / name
            chosen = arguments.only or ["distilled"]
            taught = table in ("losses", "modes", "cross") or (
                table == "dense" and "distilled" in chosen
            )
            prepared(table, name, work, arguments.steps, taught=taught)
            made = (
                {"cross": None} if table == "cross" else systems(table, name, work, arguments.steps)
            )
            for seed in arguments.seeds:
                for system, spec in made.items():
                    if not arguments.only or system in arguments.only:
                        one(table, system, spec, name, work, seed)


def one(table: str, system: str, spec: Spec | None, name: str, work: Path, seed: int) -> None:
    from sluice.retrieval import train

    untrained = spec is None and table != "cross"
    result = work / table / f"{system.replace('/', '-')}.{0 if untrained else seed}.json"
    claim = result.with_suffix(".claimed")
    result.parent.mkdir(parents=True, exist_ok=True)
    if result.exists() or claim.exists():
        return
    claim.write_text(str(os.getpid()))
    start = time.monotonic()
    try:
        if table == "cross":
            first = work / "dense" / f"mined-{seed}" / "model"
            if not first.exists():
                return
            found, _ = reranked(name, work, first)
        elif spec is None:
            found = tested(
                vectors_of(system, MODEL, name), name, zero(work) if system == "zero-shot" else None
            )
        else:
            folder = result.with_suffix("").with_name(f"{system.replace('/', '-')}-{seed}")
            model = train({**spec, "dataset": name, "output": str(folder), "seed": seed})
            found = {"train_seconds": time.monotonic() - start}
            same = zero(work) if table == "adore" else None  # its documents are frozen
            found |= tested(vectors_of(system, model, name), name, same)
            if table == "matryoshka":
                for dim in (192, 96, 48):
                    short = tested(vectors_of(system, model, name, dim), name, None)
                    found[f"dim{dim}"] = {k: v for k, v in short.items() if k in MEASURES}
                    found[f"per_query_dim{dim}"] = short["per_query"]
            if table not in ("dense", "splade"):
                shutil.rmtree(folder, ignore_errors=True)
        found["seconds"] = time.monotonic() - start
        result.write_text(json.dumps(found))
        said = {k: round(v, 4) for k, v in found.items() if isinstance(v, float)}
        print(name, table, system, seed, said, flush=True)
    except Exception as error:
        print(name, table, system, seed, "FAILED", repr(error)[:400], flush=True)
    finally:
        claim.unlink(missing_ok=True)
        gc.collect()


def show(output: Path) -> None:
    """Print every table that has results: mean over seeds, spread, paired tests of neighbours."""
    for table in sorted({path.parent for path in output.glob("*/*/*.[0-9]*.json")}):
        found: dict[str, dict[int, Spec]] = {}
        for path in sorted(table.glob("*.[0-9]*.json")):
            system, _, seed = path.stem.rpartition(".")
            found.setdefault(system, {})[int(seed)] = json.loads(path.read_text())
        if table.name == "cross":
            found = {
                part: {seed: result[part] for seed, result in found["cross"].items()}
                for part in ("first", "cross", "interpolated")
            }
        print(f"\n## {table.parent.name}: {table.name}\n")
        print("| system | nDCG@10 | by seed | R@100 | against the first, p | terms q / d |")
        print("|---|---|---|---|---|---|")
        rows = sorted(found.items(), key=lambda item: mean(item[1], "nDCG@10"))
        base = per_query(rows[0][1])
        for system, seeds in rows:
            values = [result["nDCG@10"] for result in seeds.values()]
            spread = ", ".join(f"{value:.4f}" for value in values)
            p = "" if system == rows[0][0] else f"{paired(per_query(seeds), base):.2g}"
            terms = ""
            if "terms_query" in next(iter(seeds.values())):
                terms = f"{mean(seeds, 'terms_query'):.0f} / {mean(seeds, 'terms_document'):.0f}"
            cells = [system, f"{np.mean(values):.4f}", spread, f"{mean(seeds, 'R@100'):.4f}"]
            print("| " + " | ".join([*cells, p, terms]) + " |")
            for dim in (192, 96, 48):
                if f"dim{dim}" in next(iter(seeds.values())):
                    short = [result[f"dim{dim}"]["nDCG@10"] for result in seeds.values()]
                    print(f"| {system}, {dim} dimensions | {np.mean(short):.4f} | | | | |")
        for (one_name, one_seeds), (other_name, other_seeds) in itertools.pairwise(rows):
            value = paired(per_query(other_seeds), per_query(one_seeds))
            print(f"{other_name} over {one_name}: p = {value:.2g}")


def mean(seeds: Mapping[int, Spec], key: str) -> float:
    return float(np.mean([result[key] for result in seeds.values()]))


def per_query(seeds: Mapping[int, Spec]) -> dict[str, float]:
    """Each query's mean over the seeds."""
    results = [result["per_query"] for result in seeds.values()]
    return {q: float(np.mean([result[q] for result in results])) for q in results[0]}


def paired(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    from scipy.stats import ttest_rel

    shared = sorted(set(one) & set(other))
    left, right = [one[q] for q in shared], [other[q] for q in shared]
    return 1.0 if left == right else float(ttest_rel(left, right).pvalue)


if __name__ == "__main__":
    main()
