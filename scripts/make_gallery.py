#!/usr/bin/env python
r"""Make docs/gallery.md and its figures in docs/images, from the output of the quickstart.

    sluice run quickstart
    sluice tune quickstart tune.queries=30 tune.timed_queries=10 tune.budget.p95_ms=500 \
        'tune.pipelines=["bm25", "(bm25 | dense) >> cross(depth={d}, interpolate=0.5)"]' \
        'tune.choices={d: [0, 5, 20]}'
    scripts/make_gallery.py [runs/quickstart] [--only-page | --same-figures]

Nothing is trained here; the recall and the times of the indexes are measured over the vectors of
the quickstart's dense retriever. ``--only-page`` writes the page from the figures that are there.

``docs/images/drawn-by.txt`` has a hash of the code that drew the figures, by which a test notices
that they may be stale. ``--same-figures`` writes it anew: for a change of that code that changes no
figure.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import time
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sluice import FaissIndex, FlatIndex, Retriever, load_dataset
from sluice.encoders.foundation.disk.figures import save_figure
from sluice.retrieval.evaluation.plots import Point, draw_tradeoff
from sluice.retrieval.studies.plots import (
    plot_cascades,
    plot_depths,
    plot_differences,
    plot_tradeoff,
    plot_training,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
PAGE, IMAGES = ROOT / "docs" / "gallery.md", ROOT / "docs" / "images"
DRAWN_BY = IMAGES / "drawn-by.txt"
DRAWING = (
    ROOT / "encoders" / "foundation" / "disk" / "figures.py",
    ROOT / "retrieval" / "evaluation" / "plots.py",
    ROOT / "retrieval" / "studies" / "plots.py",
)
RUN = "runs/quickstart"
K, ROUNDS = 10, 5
CELLS, LINKS = (1, 2, 4, 8, 16), (8, 16, 32, 64)  # nprobe, efSearch


class Plate(NamedTuple):
    """A figure of the gallery: what makes it, in Python and as a command, and what it shows."""

    name: str
    title: str
    text: str
    python: str
    command: str
    draw: Callable[[Path], Figure]


PLATES = (
    Plate(
        "training", "Training curves",
        "Loss, dev measures, learning rate and whatever else the runs logged, overlaid. A star "
        "marks the best value of a dev measure. It can be drawn while training still runs.",
        f'plot_training("{RUN}")', f"sluice plot training {RUN}", plot_training,
    ),
    Plate(
        "tradeoff", "Quality against cost",
        "Each system of an evaluation by its latency, or another cost of the table of results. "
        "Retrievers that differ in their search parameters only become one line.",
        f'plot_tradeoff("{RUN}", "nDCG@10")', f"sluice plot tradeoff {RUN} -m nDCG@10",
        lambda folder: plot_tradeoff(folder, "nDCG@10"),
    ),
    Plate(
        "indexes", "Recall against time, several indexes",
        "Values that you measured yourself: a line for each index, a point for each setting. Here "
        "recall is the share of the exact first ten, over the vectors of the quickstart: with a "
        "few thousand documents there is little to gain over exact search.",
        'draw_tradeoff(lines, cost="ms a query", quality="recall of the exact 10")', "",
        lambda folder: draw_tradeoff(
            measured(folder), cost="ms a query, one thread", quality="recall of the exact 10"
        ),
    ),
    Plate(
        "cascades", "How deep to rerank",
        "What `sluice tune` tried, by cost and by depth of the reranker. Nothing that was tried is "
        "both cheaper and better than a pipeline on the stair; the star is what was chosen within "
        "the budget.",
        f'plot_cascades("{RUN}")', f"sluice plot cascades {RUN}", plot_cascades,
    ),
    Plate(
        "differences", "Query by query",
        "One bar for each query, from the largest gain to the largest loss. A mean hides whether "
        "a system is a little better everywhere or much better on few queries; this does not.",
        f'plot_differences("{RUN}", "hybrid", "bm25")',
        f"sluice plot differences {RUN} --system hybrid --baseline bm25",
        lambda folder: plot_differences(folder, "hybrid", "bm25"),
    ),
    Plate(
        "depths", "Recall by depth",
        "What a reranker could still find: the share of the relevant documents among the first so "
        "many. With depth 20 it cannot bring more of them to the top than its first stage has "
        "among the first 20.",
        f'plot_depths("{RUN}")', f"sluice plot depths {RUN}", plot_depths,
    ),
)  # fmt: skip

HEAD = f"""# Gallery

Every figure on this page is one line of Python or one command, and shows the results of the
quickstart (`sluice run quickstart`). Colour-blind readers can tell the colours apart, and markers
and dashes do the same in a grey print. The page and its figures are made by
`scripts/make_gallery.py`.

The functions return a `matplotlib` figure and need the extra `plots`
(`pip install 'sluice-ir[plots]'`):

```python
from sluice.retrieval.evaluation.plots import save_figure
from sluice.retrieval.studies import plot_training

save_figure(plot_training("{RUN}"), "curves.pdf")
```

`ax=` draws into a part of a figure of your own. Nothing touches `pyplot`: no window opens, and no
setting of yours is changed. Commands write `FOLDER/plots/VERB.svg` unless `--output` names a
`.svg`, `.png` or `.pdf` file. The HTML page of an evaluation, `sluice report {RUN}`, shows the same
values interactively.
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for plate in PLATES:
        lines = [f"## {plate.title}", "", plate.text, ""]
        lines += [f"![{plate.title}](images/{plate.name}.svg)", ""]
        lines += [f"- Python: `{plate.python}`"]
        lines += [f"- Command: `{plate.command}`"] if plate.command else []
        parts.append("\n".join([*lines, ""]))
    return "\n".join(parts)


def code_of(source: str) -> str:
    """Return what Python makes of a module: without comments, docstrings, white space."""
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    kept = [token for token in tokens if token.type not in silent]
    kinds = [tokenize.NEWLINE, *(token.type for token in kept)]
    alone = [tokenize.NEWLINE, tokenize.STRING, tokenize.NEWLINE]  # a docstring
    pieces = [token.string for place, token in enumerate(kept) if kinds[place : place + 3] != alone]
    return "".join("".join(pieces).split())


def drawn_by() -> str:
    """Return a hash of the code that draws the figures."""
    code = "\0".join(code_of(file.read_text(encoding="utf-8")) for file in DRAWING)
    return hashlib.sha256(code.encode()).hexdigest()


def measured(folder: Path) -> dict[str, list[Point]]:
    """Return recall and median time, query by query, of settings of indexes of one set of vectors.

    The rounds go through all settings in turn, so that a busy minute falls on all of them.
    """
    retriever = Retriever.open(folder / "retrievers" / "dense")
    vectors = retriever.index.documents(np.arange(len(retriever.index)))
    texts = list(load_dataset("pydocs", "test").queries.values())
    queries = np.asarray(retriever.encoder.encode_queries(texts), np.float32)
    exact = FlatIndex()
    cells, graph = FaissIndex("IVF64,Flat"), FaissIndex("HNSW16")
    for index in (exact, cells, graph):
        index.add(vectors)
    settings = [("flat, exact", "", exact, {})]
    settings += [("IVF64", f"nprobe {n}", cells, {"nprobe": n}) for n in CELLS]
    settings += [("HNSW16", f"efSearch {n}", graph, {"efSearch": n}) for n in LINKS]
    truth = exact.search(queries, K).rows
    times: dict[tuple[str, str], list[float]] = {}
    recalls: dict[tuple[str, str], float] = {}
    for _ in range(ROUNDS):
        for name, label, index, params in settings:
            shared = 0
            for place, query in enumerate(queries):
                start = time.perf_counter()
                hits = index.search(query[None], K, params=params)
                times.setdefault((name, label), []).append(time.perf_counter() - start)
                shared += len(np.intersect1d(hits.rows[0], truth[place]))
            recalls[name, label] = shared / truth.size
    lines: dict[str, list[Point]] = {}
    for (name, label), recall in recalls.items():
        median = 1000 * float(np.median(times[name, label]))
        lines.setdefault(name, []).append(Point(median, recall, label))
    return lines


def main() -> None:
    """Draw the figures and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", default=RUN, type=Path)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--only-page", action="store_true")
    only.add_argument("--same-figures", action="store_true")
    arguments = parser.parse_args()
    if not (arguments.only_page or arguments.same_figures):
        for plate in PLATES:
            save_figure(plate.draw(arguments.folder), IMAGES / f"{plate.name}.svg")
    if not arguments.only_page:
        DRAWN_BY.write_text(f"{drawn_by()}\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
