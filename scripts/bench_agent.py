#!/usr/bin/env python
"""Compares what a coding agent may search with: grep and reading, BM25, dense, late, hybrid.

    python scripts/bench_agent.py --work FOLDER [--questions 1000] [--late] [--cosqa]

The code is the interpreter's standard library and ten installed packages, copied to ``--work``
without a docstring in them (as CodeSearchNet has it; Husain et al., 2019). A question is the first
sentence of a function's docstring; it is answered when the agent is shown the line that defines
this function. Each tool shows text in its own order until it is found or the budget is spent:

* grep: the files' lines are searched for the stems of the question's words (as substrings, any
  case). Windows of ``--window`` lines around the hits of the five rarest are read, those with most
  of the question's words first (by their rarity), then by path and line. What grep itself prints
  is not charged.
* bm25, dense, hybrid, late: whole functions, at most ``--window`` lines of each, in rank order; and
  the first ``--head`` lines of each. ``sluice index --code`` makes the first three; late is MaxSim
  over the same model's token states, untrained, among the 100 best of the hybrid.

A token is a run of letters and digits, or another sign that is no space. Questions are drawn by
``--seed``; everything else is deterministic, for one version of the packages (printed). ``--share``
keeps so much of the files, by a hash of their names. With ``--cosqa`` the same over the documents
of CoSQA ($SLUICE_DATA/cosqa, test queries): there are no files, so grep reads documents.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import shutil
import statistics
import sys
import sysconfig
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from harness import MODEL, options, write_record

from sluice.encoders.lexical.analyzer import analyzer

PACKAGES = "click rich httpx networkx requests jinja2 starlette more_itertools packaging werkzeug"
SKIPPED = {
    "idlelib", "idle_test", "test", "tests", "testing", "turtledemo", "__phello__", "__pycache__",
    "site-packages", "lib2to3", "pydoc_data",
}  # fmt: skip
BUDGETS = (250, 500, 1000, 2000, 4000, 8000)
RAREST = 5
DEPTH = 100
LENGTH = 64  # tokens of a function that the models read


class Place(NamedTuple):
    """Some lines of a file, from the first to the last."""

    path: str
    first: int
    last: int


Shown = Iterator[tuple[int, bool]]  # tokens of what is read next, and whether it is the answer
Tool = Callable[..., Shown]  # of a question and the document that answers it


def main() -> None:
    args = options(__doc__, {
        "--work": Path("runs/agent"), "--questions": 1000, "--seed": 13, "--window": 40,
        "--head": 12, "--share": 1.0, "--no-models": False, "--late": False, "--cosqa": False,
        "--output": Path("agent.json"),
    })  # fmt: skip
    world: Any = Cosqa(args) if args.cosqa else Library(args)
    print(f"{len(world.questions):,} questions, {world.described}", flush=True)
    print("tokens           " + "".join(f"{budget:>8,}" for budget in BUDGETS))
    table = dict[str, dict[str, Any]]()
    for name, tool in tools(world):
        spent = spent_by(tool, world.questions)
        found = [sum(each <= budget for each in spent) / len(spent) for budget in BUDGETS]
        first = table["grep"]["found"] if table else found
        table[name] = {"found": found, "tokens as grep": tokens_for(spent, first)}
        print(f"{name:<17}" + "".join(f"{rate:8.3f}" for rate in found), flush=True)
    print("tokens that find as many as grep does with the budgets above")
    for name, row in table.items():
        shown = ("-" if each is None else f"{each:,}" for each in row["tokens as grep"])
        print(f"{name:<17}" + "".join(f"{each:>8}" for each in shown))
    print(", ".join(f"{name} {value:.1f}" for name, value in world.times.items()))
    write_record(
        args.output, {"described": world.described, "budgets": BUDGETS, **table, **world.times}
    )


def tools(world: Any) -> Iterator[tuple[str, Tool]]:
    """Yield what the agent may search with, each by whole functions and by their heads."""
    yield "grep", world.grep
    for name, rank in ranked_by(world):
        yield name, lambda text, wanted, rank=rank: world.read(rank[text], wanted)
        yield (
            f"{name}, heads",
            lambda text, wanted, rank=rank: world.read(rank[text], wanted, head=world.args.head),
        )
        if name == "bm25":
            yield f"{name}, budget", budgeted(world.systems[name])


def budgeted(system: Any) -> Tool:
    """Return what asks for each budget anew: names, and the parts with most of the words."""

    def tool(text: str, wanted: str) -> Shown:
        for before, budget in zip((0, *BUDGETS), BUDGETS, strict=False):
            hits = system.search(text, budget_tokens=budget)
            yield budget - before, any(hit.doc_id == wanted for hit in hits)

    return tool


def spent_by(tool: Tool, questions: Mapping[str, str]) -> list[float]:
    """Return the tokens shown until each question is answered, infinite where it is not."""
    spent = []
    for wanted, text in questions.items():
        total, cost = 0, float("inf")
        for tokens, answers in tool(text, wanted):
            total += tokens
            if answers:
                cost = total
            if answers or total > max(BUDGETS):
                break
        spent.append(cost)
    return spent


def tokens_for(spent: Sequence[float], rates: Sequence[float]) -> list[int | None]:
    """Return the least budgets with which these shares of the questions are answered."""
    ordered = sorted(spent)
    least = [ordered[max(0, round(rate * len(spent)) - 1)] for rate in rates]
    return [None if each > max(BUDGETS) else int(each) for each in least]


TOKEN = re.compile(r"[^\W_]+|[^\w\s]|_")


def tokens(text: str) -> int:
    return len(TOKEN.findall(text))


def stems(question: str) -> list[str]:
    """Return what an agent greps for: stems of the words of three letters or more."""
    english = analyzer("en")
    return sorted({term for term in english(question) if len(term) > 2 and term.isalnum()})


def fit(lines: Sequence[str], most: int) -> str:
    """Return what is shown of a function."""
    return "\n".join(lines[:most])


# The standard library and ten packages.


class Library:
    """Sources without docstrings, the questions that these were, and the tools over them."""

    def __init__(self, args: Any) -> None:
        self.args, self.times = args, dict[str, float]()
        self.systems = dict[str, Any]()
        self.folder = args.work / "sources"
        shutil.rmtree(self.folder, ignore_errors=True)
        candidates = dict[str, str]()
        for root, files in sources():
            for file in files:
                if int(digest(file.name)[:8], 16) >= args.share * 16**8:
                    continue
                candidates |= hidden(file, self.folder / root / file.relative_to(files.root))
        from sluice.retrieval.documents.readers import as_documents

        self.documents = {each.id: each for each in as_documents(self.folder, code=True)}
        self.lines = {
            str(file.relative_to(self.folder)): file.read_text(encoding="utf-8").split("\n")
            for file in sorted(self.folder.rglob("*.py"))
        }
        self.text = "\n".join("\n".join(lines) for lines in self.lines.values()).lower()
        known = {id: text for id, text in candidates.items() if id in self.documents}
        times = dict[str, int]()
        for text in known.values():
            times[text.casefold()] = times.get(text.casefold(), 0) + 1
        order = sorted(known, key=lambda id: digest(f"{args.seed} {id}"))
        alone = (id for id in order if times[known[id].casefold()] == 1 and self._unseen(known[id]))
        self.questions = {id: known[id] for id in sorted(islice(alone, args.questions))}
        self._starts = [0, *(m.end() for m in re.finditer("\n", self.text))]
        self._files = list(self.lines)
        ends = [len(lines) for lines in self.lines.values()]
        self._firsts = [sum(ends[:place]) for place in range(len(ends))]

    @property
    def described(self) -> str:
        """Say what is searched, by its sizes, a hash of the questions, and versions."""
        kinds = [each.metadata["kind"] for each in self.documents.values()]
        functions = sum(kind in ("function", "method") for kind in kinds)
        asked = hashlib.sha256(json.dumps(self.questions).encode()).hexdigest()[:12]
        return (
            f"sha256 {asked}; {len(self.lines):,} files, {sum(map(len, self.lines.values())):,} "
            f"lines, {len(kinds):,} documents, {functions:,} functions; {versions()}"
        )

    def _unseen(self, question: str) -> bool:
        return question.lower() not in self.text

    def grep(self, question: str, wanted: str) -> Shown:
        """Read windows around the hits of the rarest words."""
        counts = {word: self._count(word) for word in stems(question)}
        rarest = sorted((count, word) for word, count in counts.items() if count)[:RAREST]
        hits = [(place, word) for _, word in rarest for place in self._hits(word)]
        weight = {word: 1 / (1 + count) ** 0.5 for count, word in rarest}
        by_file = dict[str, list[tuple[int, str]]]()
        for (path, line), word in hits:
            by_file.setdefault(path, []).append((line, word))
        half, ranked = self.args.window // 2, list[tuple[float, str, int]]()
        for path, found in by_file.items():
            found.sort()
            lines = [line for line, _ in found]
            for line in dict.fromkeys(lines):
                inside = found[
                    bisect_right(lines, line - half - 1) : bisect_right(lines, line + half)
                ]
                ranked.append((-sum(weight[word] for word in {w for _, w in inside}), path, line))
        target = self.documents[wanted].metadata
        definition = self._definition(wanted)
        read = dict[str, list[range]]()
        for _, path, line in sorted(ranked):
            if any(line in part for part in read.get(path, ())):
                continue  # seen already
            window = range(max(1, line - half), min(len(self.lines[path]), line + half - 1) + 1)
            read.setdefault(path, []).append(window)
            text = "\n".join(self.lines[path][window.start - 1 : window.stop - 1])
            yield (
                tokens(f"{path}:{window.start}\n{text}"),
                (path == target["path"] and definition in window),
            )

    def _definition(self, id: str) -> int:
        """Return the line of ``def``, behind decorators."""
        facts = self.documents[id].metadata
        lines = self.lines[str(facts["path"])]
        first = int(facts["line"])  # type: ignore[call-overload]
        return next(n for n in range(first, len(lines) + 1) if "def " in lines[n - 1])

    @cache  # noqa: B019
    def _count(self, word: str) -> int:
        return self.text.count(word)

    @cache  # noqa: B019
    def _hits(self, word: str) -> list[tuple[str, int]]:
        """Return the lines that hold a word, the first 2,000 of them."""
        found, place = list[tuple[str, int]](), self.text.find(word)
        while place >= 0 and len(found) < 2000:
            row = bisect_right(self._starts, place) - 1
            file = bisect_right(self._firsts, row) - 1
            found.append((self._files[file], row - self._firsts[file] + 1))
            place = (
                self.text.find(word, self._starts[row + 1]) if row + 1 < len(self._starts) else -1
            )
        return found

    def read(self, ranked: Sequence[str], wanted: str, *, head: int | None = None) -> Shown:
        """Read functions in their order, of each the first lines."""
        for id in ranked:
            document = self.documents[id]
            text = fit(document.text.split("\n"), head or self.args.window)
            line = f"{document.metadata['path']}:{document.metadata['line']} {document.title}"
            yield tokens(f"{line}\n{text}"), id == wanted


class Tree(list[Path]):
    """Files below a root."""

    root: Path


def sources() -> Iterator[tuple[str, Tree]]:
    """Yield a name and the Python files of the standard library, and of each package."""
    roots = {"stdlib": Path(sysconfig.get_path("stdlib"))}
    for name in PACKAGES.split():
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            sys.exit(f"{name}: not installed; pip install {name}")
        roots[name] = Path(spec.origin).parent
    for name, root in roots.items():
        files = Tree(
            file
            for file in sorted(root.rglob("*.py"))
            if all(
                part.isidentifier() and part not in SKIPPED
                for part in file.relative_to(root).with_suffix("").parts
            )
        )
        files.root = root
        yield name, files


def hidden(file: Path, copy: Path) -> dict[str, str]:
    """Copy a source without its docstrings; return the questions that its functions make, by id."""
    try:
        text = file.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    lines, asked = text.split("\n"), dict[str, str]()
    top = next(parent for parent in copy.parents if parent.name == "sources")
    path = copy.relative_to(top).as_posix()
    gone = set[int]()
    stack: list[tuple[ast.AST, str, bool]] = [(tree, "", False)]
    while stack:
        node, name, inside = stack.pop()
        own = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        if own and (said := ast.get_docstring(node)):  # type: ignore[arg-type]
            body = node.body  # type: ignore[attr-defined]
            first, last = body[0].lineno, body[0].end_lineno
            if len(body) == 1 or body[0].lineno == getattr(node, "lineno", 0):
                stays = " " * body[0].col_offset + "..."
                lines[first - 1] = lines[first - 1][: body[0].col_offset] + stays.strip()
                gone |= set(range(first + 1, last + 1))
            else:
                gone |= set(range(first, last + 1))
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if function and not inside and len(body) > 2 and (sentence := question(said)):
                asked[f"{path}::{name}"] = sentence
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            longer = f"{name}.{child.name}".lstrip(".") if named else name  # type: ignore[attr-defined]
            stack.append((child, longer, inside or function))
    kept = [line for number, line in enumerate(lines, 1) if number not in gone]
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text("\n".join(kept), encoding="utf-8")
    return asked


def question(docstring: str) -> str | None:
    """Return the first sentence of a docstring, if it is one of 5 to 30 words."""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?]) ", paragraph)[0]
    words = [word for word in sentence.split() if re.search(r"[A-Za-z]{2}", word)]
    plain = len(words) in range(5, 31) and sentence.isascii() and "(" not in sentence[:20]
    return sentence if plain and not re.search(r">>>|::|\|\||:param|@", sentence) else None


# The documents of CoSQA.


class Cosqa:
    """Documents without files: what grep reads are documents."""

    def __init__(self, args: Any) -> None:
        from sluice import load_dataset

        self.args, self.times = args, dict[str, float]()
        self.systems = dict[str, Any]()
        dataset = load_dataset("cosqa", split="test")
        self.documents = {each.id: each for each in dataset.corpus}
        self.lower = {id: each.text.lower() for id, each in self.documents.items()}
        wanted = {query: next(iter(grades)) for query, grades in dataset.qrels.items()}
        self.questions = {wanted[query]: text for query, text in dataset.queries.items()}
        self.described = f"{len(self.documents):,} documents of CoSQA; {versions()}"

    def grep(self, question: str, wanted: str) -> Shown:
        """Read the documents with most of the question's rarest words."""
        found = {word: [id for id, text in self.lower.items() if word in text]
                 for word in stems(question)}  # fmt: skip
        rarest = sorted((len(ids), word) for word, ids in found.items() if ids)[:RAREST]
        score = dict[str, float]()
        for count, word in rarest:
            for id in found[word]:
                score[id] = score.get(id, 0.0) - 1 / (1 + count) ** 0.5
        yield from self.read(sorted(score, key=lambda id: (score[id], id)), wanted)

    def read(self, ranked: Sequence[str], wanted: str, *, head: int | None = None) -> Shown:
        """Read documents in their order, of each the first lines."""
        for id in ranked:
            text = fit(self.documents[id].text.split("\n"), head or self.args.window)
            yield tokens(text), id == wanted


# Rankings, and what they cost.


Ranked = dict[str, list[str]]  # by question, best first


def ranked_by(world: Any) -> Iterator[tuple[str, Ranked]]:
    """Yield each system's documents for each question."""
    from sluice import BM25Encoder, DenseEncoder, Retriever
    from sluice.indexing import FlatIndex
    from sluice.retrieval.documents.readers.code.folder import FIELDS

    code, documents = isinstance(world, Library), list(world.documents.values())

    def built(name: str, encoder: Any, index: Any = None) -> Any:
        start = time.process_time()
        made = Retriever.build(encoder, documents, index=index, path=world.args.work / name)
        world.times[f"{name} index, processor s"] = time.process_time() - start
        return made

    bm25 = built("bm25", BM25Encoder(language="code", fields=FIELDS if code else None))
    yield "bm25", ranking(world, "bm25", bm25)
    if world.args.no_models:
        return
    dense = built("dense", DenseEncoder.from_pretrained(
        MODEL, dtype="auto", document_length=LENGTH
    ), FlatIndex())  # fmt: skip
    yield "dense", ranking(world, "dense", dense)
    yield "hybrid", ranking(world, "hybrid", bm25 | dense)
    if world.args.late:
        late = late_interaction(built, (bm25 | dense) % DEPTH)
        yield "late", ranking(world, "late", late)


def ranking(world: Any, name: str, system: Any) -> Ranked:
    """Search for every question; then time sixty, one at a time, the first ten to warm up."""
    world.systems[name] = system
    run = (system % DEPTH).run({text: text for text in world.questions.values()})
    taken = list[tuple[float, float]]()
    for text in [*run][:60]:
        start = time.perf_counter(), time.process_time()
        system.search(text, 10)
        taken.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    wall, processor = (1000 * statistics.median(each) for each in zip(*taken[10:], strict=True))
    world.times |= {f"{name} p50 ms": wall, f"{name} p50 processor ms": processor}
    return {text: list(run[text].doc_ids) for text in run}


def late_interaction(built: Callable[..., Any], first: Any) -> Any:
    """Return MaxSim over MiniLM's token states, of the first stage's best."""
    from sluice.encoders.late_interaction import TokenEncoder
    from sluice.indexing import TokenIndex
    from sluice.retrieval import Rerank
    from sluice.retrieval.stages.rerankers.stored_vectors import StoredMaxSim

    encoder = TokenEncoder.from_pretrained(
        MODEL, projection=False, query_marker="", document_marker="", expand_queries=False,
        document_length=LENGTH, dtype="auto",
    )  # fmt: skip
    tokens = built("late", encoder, TokenIndex(store="int8"))
    return first >> Rerank(StoredMaxSim(tokens), depth=DEPTH)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def versions() -> str:
    names = [f"Python {sys.version.split()[0]}"]
    for name in PACKAGES.split():
        distribution = name.replace("_", "-")
        names.append(f"{name} {importlib.metadata.version(distribution)}")
    return ", ".join(names)


if __name__ == "__main__":
    main()
