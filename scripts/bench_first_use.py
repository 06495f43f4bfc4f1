"""Seconds from files of one's own to the first hit, beside other libraries, by running them.

    python scripts/bench_first_use.py [--files 300] [--folder FOLDER] [--cold] [--json OUT.json]

Each way of doing it is what its own documentation shows: read a folder of text files, embed them
with all-MiniLM-L6-v2 (or index them by BM25), search once. Every step is a fresh process, so that
imports, loading and compiling count. A library that is not installed is listed as such. ``lines``
are those that the user writes, ``commands`` those that the user types; the files exist already.
Beside the seconds stand the processor's, of all threads: the better figure where other work runs.
``--cold`` compiles all of numba's kernels anew, as a new environment does.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

from harness import MODEL, options as parsed, write_record

QUESTION = "how do I copy a directory tree"


class Way(NamedTuple):
    """One way to do it: the packages it needs, and its steps, commands or lines of Python."""

    needs: tuple[str, ...]
    steps: tuple[tuple[str, ...] | str, ...]
    note: str = ""


def ways(folder: Path, model: str) -> dict[str, Way]:
    """Return the ways by name, over a folder of text files and with a model's folder."""
    dense = f"""
        from pathlib import Path
        from sentence_transformers import SentenceTransformer, util
        files = sorted(Path({str(folder)!r}).rglob("*.txt"))
        texts = [file.read_text(encoding="utf-8") for file in files]
        model = SentenceTransformer({model!r})
        vectors = model.encode(texts)
        query = model.encode([{QUESTION!r}])
        for hit in util.semantic_search(query, vectors, top_k=3)[0]:
            print(hit["score"], files[hit["corpus_id"]])
    """
    bm25s = f"""
        from pathlib import Path
        import bm25s
        files = sorted(Path({str(folder)!r}).rglob("*.txt"))
        texts = [file.read_text(encoding="utf-8") for file in files]
        retriever = bm25s.BM25()
        retriever.index(bm25s.tokenize(texts))
        found, scores = retriever.retrieve(bm25s.tokenize([{QUESTION!r}]), k=3)
        for place, score in zip(found[0], scores[0]):
            print(score, files[place])
    """
    llama = f"""
        from llama_index.core import Settings, SimpleDirectoryReader, VectorStoreIndex
        from llama_index.embeddings.huggingface import HuggingFaceEmbedding
        Settings.embed_model = HuggingFaceEmbedding(model_name={model!r})
        documents = SimpleDirectoryReader({str(folder)!r}, recursive=True).load_data()
        index = VectorStoreIndex.from_documents(documents)
        for hit in index.as_retriever(similarity_top_k=3).retrieve({QUESTION!r}):
            print(hit.score, hit.node.metadata["file_path"])
    """
    pyterrier = f"""
        from pathlib import Path
        import pyterrier as pt
        files = sorted(Path({str(folder)!r}).rglob("*.txt"))
        texts = [file.read_text(encoding="utf-8") for file in files]
        rows = [{{"docno": str(n), "text": text}} for n, text in enumerate(texts)]
        reference = pt.IterDictIndexer("./index").index(rows)
        bm25 = pt.terrier.Retriever(reference, wmodel="BM25")
        for row in bm25.search({QUESTION!r}).head(3).itertuples():
            print(row.score, files[int(row.docno)])
    """
    api = f"""
        from sluice import Retriever
        retriever = Retriever.build("bm25", {str(folder)!r}) | Retriever.build({model!r}, {str(folder)!r})
        for hit in retriever.search({QUESTION!r}, k=3):
            print(hit.score, hit.doc_id)
    """  # noqa: E501
    sluice = ("-m", "sluice")
    index = (*sluice, "index", str(folder), "--output", "my")
    search = (*sluice, "search", "my", QUESTION, "-k", "3")
    named = () if model == MODEL else ("--model", model)
    return {
        "sluice, hybrid": Way(("sluice",), ((*index, *named), search), "kept on disk"),
        "sluice, BM25": Way(("sluice",), ((*index, "--bm25"), search), "kept on disk"),
        "sluice in Python, hybrid": Way(("sluice",), (api,), "in memory"),
        "sentence-transformers, dense": Way(("sentence_transformers",), (dense,), "in memory"),
        "bm25s, BM25": Way(("bm25s",), (bm25s,), "in memory"),
        "LlamaIndex, dense": Way(
            ("llama_index.core", "llama_index.embeddings.huggingface"), (llama,), "in memory"
        ),
        "PyTerrier, BM25": Way(("pyterrier",), (pyterrier,), "kept on disk; Java"),
    }


def installed(name: str) -> bool:
    """Return whether a module can be found."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def own_files(folder: Path, count: int) -> Path:
    """Write the docstrings of the standard library's modules into text files."""
    source = Path(sysconfig.get_paths()["stdlib"])
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for file in sorted(source.rglob("*.py")):
        if written == count:
            break
        text = file.read_text(encoding="utf-8", errors="replace")[:4000]
        if len(text) > 500:
            name = "_".join(file.relative_to(source).with_suffix("").parts)
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")
            written += 1
    return folder


def processor_seconds() -> float:
    """Return the processor's seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(way: Way, work: Path, cold: bool) -> dict[str, object]:
    """Run the steps in fresh processes; return seconds, counts and the last output."""
    environment = {**os.environ, "SLUICE_CACHE": str(work / "cache")}
    if cold:
        environment["NUMBA_CACHE_DIR"] = str(work / "kernels")
    used = processor_seconds()
    seconds, commands, lines, output = [], 0, 0, ""
    for step in way.steps:
        if isinstance(step, str):
            text = textwrap.dedent(step).strip()
            lines += len(text.splitlines())
            words = ["-c", text]
        else:
            words = list(step)
        commands += 1
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *words], cwd=work, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        seconds.append(round(time.perf_counter() - start, 2))
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1:]}
        output = done.stdout
    return {
        "seconds": seconds, "total": round(sum(seconds), 2),
        "processor": round(processor_seconds() - used, 2), "commands": commands, "lines": lines,
        "note": way.note, "output": output.strip().splitlines()[:6],
    }  # fmt: skip


def main() -> None:
    options = parsed(__doc__, {
        "--files": 300, "--folder": (Path, "a folder of .txt files in place of made ones"),
        "--json": (Path, "a file for the figures"), "--cold": (False, "with numba's cache empty"),
        "--only": (str, "ways whose name contains this"),
    })  # fmt: skip
    from sluice.encoders.model_files.locate import model_folder

    model = str(model_folder(MODEL))
    with tempfile.TemporaryDirectory() as place:
        folder = (options.folder or own_files(Path(place) / "files", options.files)).absolute()
        results: dict[str, dict[str, object]] = {}
        for name, way in ways(folder, model).items():
            if options.only and options.only not in name:
                continue
            missing = [need for need in way.needs if not installed(need)]
            work = Path(place) / name.replace(" ", "-")
            work.mkdir()
            results[name] = (
                {"failed": [f"not installed: {', '.join(missing)}"]}
                if missing
                else measured(way, work, options.cold)
            )
            facts = results[name]
            if "failed" in facts:
                print(f"{name:<30} {facts['failed']}", flush=True)
            else:
                steps = " + ".join(map(str, facts["seconds"]))  # type: ignore[call-overload]
                print(
                    f"{name:<30} {facts['total']:>7} s ({steps}), "
                    f"processor {facts['processor']} s, commands {facts['commands']}, "
                    f"lines {facts['lines']}, {facts['note']}",
                    flush=True,
                )
    write_record(options.json, results)


if __name__ == "__main__":
    main()
