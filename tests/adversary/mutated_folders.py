"""Mutated folders that Sluice wrote: retrievers, experiments, pipelines, fitted values, models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import mutation_seeds as seeds
import numpy as np
from forging import forge
from fuzzing import Case, sluice
from mutating import mutate_bytes, mutate_values
from mutation_case import CHANGED, MEMORY, SLOW, call, change, copied, files_of, python
from mutation_seeds import LONG_QUERY, QUERY, seed

ANSWERS: dict[Path, dict[str, float]] = {}  # of folders that nobody changed
# Files of a retriever whose checksums are forged; the others are checked by their contents.
ARRAYS = (".npy", ".faiss", ".bin", ".txt", ".safetensors")
SEARCH = ("search", "r", QUERY, "-k", 10, "--json")


def experiment(case: Case) -> None:
    """A file of an output folder is changed: what reads it answers, or says so."""
    out = copied(case, seed(case.world, seeds.lexical) / "out")
    files = [file for file in files_of(out) if "retrievers" not in file.parts]
    results = [file for file in files if file.name == "results.json"]
    change(case, case.chance.choice(results if case.chance.random() < 0.4 else files))
    words = case.chance.choice((
        ("search", out, "gold river", "--pipeline", "hybrid"), ("report", out), ("report", out),
        ("explain", out, "gold river"), ("verify", out), ("add", out, "none.jsonl"),
        ("evaluate", seed(case.world, seeds.lexical) / "x.yaml"),
    ))  # fmt: skip
    call(case, *words, timeout=SLOW)


def reproduction(case: Case) -> None:
    """Results that were changed are reproduced, or it is said why not."""
    out = copied(case, seed(case.world, seeds.lexical) / "out")
    change(case, out / "results.json")
    done = sluice(
        "reproduce", out, "--output", "again", cwd=case.folder, memory=MEMORY, timeout=SLOW
    )
    if fault := done.fault((0, 1, 2)):
        case.wrong(fault, changed=CHANGED, err=done.err[-1500:])


def saved_pipeline(case: Case) -> None:
    """A saved pipeline answers as before, or says what is damaged."""
    folder = seed(case.world, seeds.pipeline)
    copied(case, folder / "saved", "r")
    change(case, case.folder / "r" / "pipeline.json")
    call(case, "search", "r", QUERY, "-k", 10, "--json")


def fitted(case: Case) -> None:
    """A file of fitted values is used, or refused."""
    from sluice.retrieval import Run
    from sluice.retrieval.stages.adaptive_depth import PredictedDepth
    from sluice.retrieval.stages.confidence_exit import exit_rule

    name = case.chance.choice(("fusion.json", "fusion.json", "depth.json", "exit.json"))
    change(case, file := copied(case, seed(case.world, seeds.pipeline) / name))
    ranking = Run({"q": {f"d{n}": 1.0 / (n + 1) for n in range(20)}})["q"]
    if name == "depth.json":
        python(case, lambda: PredictedDepth.load(file).depth(ranking))
        return
    if name == "exit.json":
        python(case, lambda: exit_rule(str(file)).depth(ranking))
        return
    out = copied(case, seed(case.world, seeds.lexical) / "out")
    text = (out / "experiment.yaml").read_text(encoding="utf-8")
    expression = f"fused(bm25, two, fitted='{file}') % 10"
    text = text.replace("(bm25 | two) % 10", expression)
    (out / "experiment.yaml").write_text(text, encoding="utf-8")
    call(case, "search", out, QUERY, "--pipeline", "hybrid")


def answer(text: str) -> dict[str, float]:
    """Return ids and scores of what ``search --json`` writes."""
    return {hit["doc_id"]: hit["score"] for hit in map(json.loads, text.splitlines())}


def alike(one: dict[str, float], other: dict[str, float]) -> bool:
    """Return whether two answers are the same but for the last digits of float32."""
    return one.keys() == other.keys() and np.allclose(
        [*one.values()], [other[name] for name in one], rtol=1e-4
    )


def retriever(case: Case, *, make: Callable[[Path, Path], None], place: str) -> None:
    """A file of a retriever is changed: searching answers as before, or says so."""
    source = seed(case.world, make) / place
    folder = copied(case, source, "r")
    files = files_of(folder)
    weighty = [file for file in files if file.suffix in (*ARRAYS, ".json")]
    change(case, case.chance.choice(weighty if case.chance.random() < 0.8 else files))
    done = call(case, *SEARCH, fork=True)
    if done.code == 0:
        if source not in ANSWERS:
            words = ("search", source, *SEARCH[2:])
            ANSWERS[source] = answer(sluice(*words).out)
        if not alike(answer(done.out), ANSWERS[source]):
            case.wrong("another answer after a change", changed=CHANGED, out=done.out[:300])


def forged(case: Case, *, make: Callable[[Path, Path], None], place: str) -> None:
    """An array is changed and the checksums are made to agree, as somebody hostile would."""
    folder = copied(case, seed(case.world, make) / place, "r")
    file = case.chance.choice([f for f in files_of(folder) if f.suffix in (*ARRAYS, "")])
    CHANGED[:] = [str(file.relative_to(case.folder))]
    data = file.read_bytes()
    head = data.find(b"\n") + 1 if file.suffix == ".npy" else 0
    if case.chance.random() < 0.7 and len(data) > head + 8:
        data = data[:head] + mutate_values(data[head:], case.chance)
    else:
        data = mutate_bytes(data, case.chance)
    file.write_bytes(data)
    forge(folder, file)
    change_of = case.chance.choice((
        ("delete", "r", "d03", "--compact"), ("verify", "r"), ("explain", "r", QUERY),
        ("search", "r", QUERY, "--where", "year>=2003", "--where", "tags=a"),
        ("add", "r", seed(case.world, seeds.lexical) / "new.jsonl"),
    ))  # fmt: skip
    for words in (("search", "r", LONG_QUERY, "-k", 30, "--json"), change_of):
        if call(case, *words, fork=True).fault():
            return


def model(case: Case) -> None:
    """A model's folder is damaged: it encodes, or says so."""
    from sluice.encoders.model_files.registry import open_encoder

    folder = copied(case, seed(case.world, seeds.models) / case.chance.choice(("bert", "masked")))
    change(case, case.chance.choice(files_of(folder)))
    python(case, lambda: open_encoder(folder).encode_queries(["gold river"]), fork=True)


def score_cache(case: Case) -> None:
    """A damaged cache of scores gives the scores that were put into it, or is refused."""
    for file in seed(case.world, seeds.scores).iterdir():
        copied(case, file)
    file = case.chance.choice(files_of(case.folder))
    CHANGED[:] = [file.name]
    file.write_bytes(mutate_bytes(file.read_bytes(), case.chance))
    expected = seeds.Lengths().score(seeds.PAIRS)

    def job() -> None:
        if seeds.cached_scores(case.folder / "c.sqlite") != expected:
            raise RuntimeError("other scores came out of the cache")

    python(case, job, fork=True)
