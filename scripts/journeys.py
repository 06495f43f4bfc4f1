"""Ten first uses of Sluice, from a clean environment that holds the wheel and nothing else.

    scripts/journeys                          # builds the wheel and the environment, then this
    python scripts/journeys.py --python PYTHON [--model MODEL] [NAME ...]

Each journey is what a new user types, commands and Python alike, and what has to come out. The test
``tests/test_journeys.py`` makes the same journeys in one process with a tiny model. Prints for each
the commands, the lines of Python and YAML, and the seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

MODEL = "all-MiniLM-L6-v2"
NOTES = {
    "install.md": "# Install a package\n\nRun pip install NAME to install a package.\n",
    "remove.md": "# Remove a package\n\nRun pip uninstall NAME to remove it again.\n",
    "mirror.md": "---\nauthor: Ada\n---\n# Mirrors\n\nA mirror is a copy of the index.\n",
    "sub/offline.md": "# Offline\n\n## Without a network\nUse a folder of wheels.\n",
}
TEXTS = ["gold lies in the river", "a sluice washes gravel", "dense and sparse vectors"]
LATE = "a zebra crossing near the station"


class Traveller(Protocol):
    """Who makes the journeys: in an empty folder, with a shell and a Python."""

    folder: Path
    model: str

    def sluice(self, *words: str, code: int = 0) -> str:
        """Run a command and return all it wrote; another exit code is an error."""

    def python(self, lines: str) -> str:
        """Run lines of Python and return what they print."""

    def write(self, name: str, text: str, *, counted: bool = False) -> None:
        """Write a file; ``counted`` is one that the user has to write for Sluice."""


Journey = Callable[[Traveller], None]


def has(text: str, *parts: str) -> None:
    """Fail unless all parts are in a text."""
    for part in parts:
        if part not in text:
            raise AssertionError(f"{part!r} is not in:\n{text}")


def _model(user: Traveller) -> list[str]:
    return [] if user.model == MODEL else ["--model", user.model]


def folder_of_markdown(user: Traveller) -> None:
    """A folder of Markdown becomes a hybrid search."""
    for name, text in NOTES.items():
        user.write(f"notes/{name}", text)
    has(user.sluice("index", "notes", "--output", "my", *_model(user)), "4 files")
    has(user.sluice("search", "my", "how do I install a package", "-k", "1"), "install.md")
    has(user.sluice("search", "my", "copy of the index", "--where", "author=Ada"), "mirror.md")


def csv_with_odd_columns(user: Traveller) -> None:
    """A CSV whose columns have names of their own, and a filter over one of them."""
    rows = ("Nr;Headline;Body;Year", "7;Rivers;gold lies here;1849", "8;Sluices;gold again;2020")
    user.write("docs.csv", "\n".join(rows) + "\n")
    words = ("--id", "Nr", "--title", "Headline", "--text", "Body", "--bm25")
    said = user.sluice("index", "docs.csv", "--output", "my", *words)
    has(said, "id from 'Nr'", "title from 'Headline'", "text from 'Body'", "Year")
    hits = user.sluice("search", "my", "gold", "--where", "Year>=2000", "--json").splitlines()
    found = [json.loads(line) for line in hits if line.startswith("{")]
    assert [hit["doc_id"] for hit in found] == ["8"], found


def frame(user: Traveller) -> None:
    """A pandas frame, and a run of many queries as a frame."""
    printed = user.python("""
        import pandas as pd
        from sluice import Retriever
        docs = pd.DataFrame({"docid": ["a", "b"], "contents": ["gold in the river", "deep water"]})
        retriever = Retriever.build("bm25", docs)
        run = retriever.run(["gold", "water"], k=2).to_pandas()
        print(list(run.columns), run.doc_id.tolist())
    """)
    has(printed, "['query', 'doc_id', 'rank', 'score'] ['a', 'b']")


def list_of_texts(user: Traveller) -> None:
    """A list of strings, searched, saved and opened."""
    printed = user.python(f"""
        from sluice import Retriever
        retriever = Retriever.build({TEXTS!r})
        print(retriever.search("gravel", k=1)[0].text)
        retriever.save("mine")
        print(Retriever.load("mine")["2"].text)
    """)
    has(printed, TEXTS[1], TEXTS[2])


def own_pairs(user: Traveller) -> None:
    """Pairs in a CSV train a model, which sentence-transformers opens too."""
    rows = [f"where is thing {n},thing {n} is in drawer {n}" for n in range(24)]
    user.write("pairs.csv", "\n".join(["query,positive", *rows]) + "\n")
    user.write("mine.yaml", f"""
        output: mine
        encoder: {{type: dense, model: {user.model}}}
        loss: info_nce
        examples: pairs.csv
        trainer: {{max_steps: 2, per_device_train_batch_size: 8, learning_rate: 2.0e-5}}
    """, counted=True)  # fmt: skip
    has(user.sluice("train", "mine.yaml"), "mine/model")
    printed = user.python("""
        import numpy as np
        from sentence_transformers import SentenceTransformer
        from sluice import DenseEncoder, Retriever
        encoder = DenseEncoder.from_pretrained("mine/model")
        vectors = SentenceTransformer("mine/model", device="cpu").encode(["where is thing 3"])
        print(np.allclose(vectors, encoder.encode_queries(["where is thing 3"]), atol=1e-5))
        print(len(Retriever.build(encoder, ["thing 3", "thing 4"]).search("thing 3")))
    """)
    has(printed, "True", "2")


def _judged(user: Traveller, output: str) -> None:
    """Write a CSV of documents, TREC-like topics and judgements, and an experiment over them."""
    words = ["gold", "river", "stone", "water", "gravel", "wheel", "mill", "pan"]
    rows = [f"d{n},{w} {w} of the {words[n - 3]}" for n, w in enumerate(words)]
    user.write("docs.csv", "\n".join(["docno,body", *rows]) + "\n")
    user.write("topics.tsv", "".join(f"q{n}\t{w}\n" for n, w in enumerate(words)))
    user.write("qrels.txt", "".join(f"q{n} 0 d{n} 1\n" for n in range(len(words))))
    user.write("mine.yaml", f"""
        dataset: {{corpus: docs.csv, queries: topics.tsv, qrels: qrels.txt}}
        output: {output}
        retrievers:
          bm25: {{encoder: bm25}}
          dense: {{encoder: {{type: dense, model: {user.model}}}}}
        pipelines: {{bm25: bm25, dense: dense, hybrid: bm25 | dense}}
        evaluate: {{latency_queries: 2}}
    """, counted=True)  # fmt: skip


def own_judgements(user: Traveller) -> None:
    """Own documents, topics and judgements end in a table with tests of significance."""
    _judged(user, "out")
    said = user.sluice("evaluate", "mine.yaml", "evaluate.measures=nDCG@10,R@10")
    has(said, "nDCG@10", "hybrid", "differs from bm25", "8 queries", "out/report.html")
    runs = ("out/runs/bm25.trec.gz", "out/runs/hybrid.trec.gz")
    has(user.sluice("compare", *runs, "--qrels", "qrels.txt", "-m", "AP"), "win/tie/loss")


def added_documents(user: Traveller) -> None:
    """What was added is found by every pipeline, after another evaluation too."""
    _judged(user, "out")
    user.sluice("evaluate", "mine.yaml")
    user.write("new.jsonl", json.dumps({"_id": "late", "text": LATE}) + "\n")
    has(user.sluice("add", "out", "new.jsonl"), "1 added")
    for step in ("before", "after"):
        for pipeline in ("bm25", "dense", "hybrid"):
            found = user.sluice("search", "out", LATE, "--pipeline", pipeline, "-k", "1")
            has(found, "late")
        if step == "before":
            user.sluice("evaluate", "mine.yaml")


def long_document(user: Traveller) -> None:
    """A hit in a long document shows the passage, and where it is."""
    sections = [f"## Part {n}\n\n{f'word{n} and more of it. ' * 12}\n" for n in range(30)]
    sections[20] += "\nThe zebra crosses here.\n"
    user.write("books/long.md", "# A long one\n\n" + "\n".join(sections))
    user.write("books/short.md", "# A short one\n\nNothing of note.\n")
    user.write("mine.yaml", """
        dataset: {corpus: books}
        output: out
        retrievers: {bm25: {encoder: bm25, passages: {length: 40, overlap: 10}}}
    """, counted=True)  # fmt: skip
    user.sluice("index", "mine.yaml")
    has(user.sluice("search", "out", "zebra crosses", "-k", "1"), "long.md", "The zebra crosses")
    line = user.sluice("search", "out", "zebra crosses", "-k", "1", "--json")
    hit = json.loads(next(each for each in line.splitlines() if each.startswith("{")))
    passage = hit["passage"]
    assert "zebra" in passage["text"], passage
    assert hit["text"][passage["start"] : passage["end"]] == passage["text"], passage
    assert len(passage["text"]) < len(hit["text"]) / 5, passage


def own_encoders(user: Traveller) -> None:
    """A SentenceTransformer object and a function of one's own in one hybrid, then a reranker."""
    printed = user.python(f"""
        from sentence_transformers import SentenceTransformer
        from sluice import Rerank, Retriever
        from sluice.encoders.model_files.locate import model_folder  # finds the package's, offline
        texts = {TEXTS!r}
        def embed(texts):
            return [[text.count(letter) for letter in "adeglnorsvw"] for text in texts]
        model = SentenceTransformer(str(model_folder({user.model!r})), device="cpu")
        hybrid = Retriever.build(model, texts) | Retriever.build(embed, texts)
        print(hybrid.search(texts[1], k=1)[0].text)
        def shorter(query, found):
            return [-len(text) for text in found]
        print((hybrid % 3 >> Rerank(shorter, depth=3)).search("gold", k=1)[0].doc_id)
        weighted = 0.3 * Retriever.build(texts) + 0.7 * Retriever.build(model, texts)
        print(weighted.search("gravel", k=1)[0].text)
    """)
    lines = printed.splitlines()
    shortest = min(range(len(TEXTS)), key=lambda place: len(TEXTS[place]))
    assert lines[:2] == [TEXTS[1], str(shortest)], printed


def mistakes(user: Traveller) -> None:
    """A mistake ends in a few lines that say what to do."""
    user.write("notes/a.md", NOTES["install.md"])
    for words, remedy in (
        (("serach", "my", "gold"), "did you mean search"),
        (("search", "my", "how do I"), "no such folder"),
        (("run", "nope.yaml"), "no such file"),
        (("run", "notes"), "sluice index notes"),
        (("index", "notes", "--output", "notes/a.md", "--bm25"), "a file"),
        (("score", "notes/a.md", "notes/a.md"), "expected"),
    ):
        said = user.sluice(*words, code=2)
        has(said, "error: ", remedy)
        assert "Traceback" not in said, said


JOURNEYS: dict[str, Journey] = {
    each.__name__: each
    for each in (
        folder_of_markdown, csv_with_odd_columns, frame, list_of_texts, own_pairs,
        own_judgements, added_documents, long_document, own_encoders, mistakes,
    )
}  # fmt: skip


class Fresh:
    """Makes journeys with the programs of an environment, each step in a process of its own."""

    def __init__(self, python: Path, folder: Path, model: str) -> None:
        self.executable, self.folder, self.model = python, folder, model
        self.commands = self.lines = 0

    def sluice(self, *words: str, code: int = 0) -> str:
        """Run ``python -m sluice`` with the words."""
        self.commands += 1
        return self._run("-m", "sluice", *words, code=code)

    def python(self, lines: str) -> str:
        """Run ``python -c`` with the lines."""
        text = textwrap.dedent(lines).strip()
        self.lines += len(text.splitlines())
        return self._run("-c", text)

    def write(self, name: str, text: str, *, counted: bool = False) -> None:
        """Write a file below the folder."""
        text = textwrap.dedent(text) if counted else text
        self.lines += len(text.strip().splitlines()) * counted
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [self.executable, *words], cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode != code:
            raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout + done.stderr


def main() -> None:
    """Make the journeys that are named, or all, and print what each took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(JOURNEYS))
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--model", default=MODEL)
    options = parser.parse_args()
    failed = []
    print(f"{'journey':<22}{'commands':>9}{'lines':>7}{'seconds':>9}")
    for name in options.names or JOURNEYS:
        with tempfile.TemporaryDirectory() as folder:
            user = Fresh(options.python.absolute(), Path(folder), options.model)
            start = time.perf_counter()
            try:
                JOURNEYS[name](user)
            except AssertionError as error:
                failed.append(name)
                print(f"{name}: {error}", file=sys.stderr)
            seconds = time.perf_counter() - start
        state = "  failed" if name in failed else ""
        print(f"{name:<22}{user.commands:>9}{user.lines:>7}{seconds:>9.1f}{state}")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
