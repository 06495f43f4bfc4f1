"""Drafts a commented config for a job, filled from what the data behind it is like."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.errors import ConfigError, DataError, listed, suggest
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.config.yaml_file import (
    CORE,
    EDITOR_LINE,
    editor_line,
    recipe_or_file,
    recipes,
)
from sluice.retrieval.datasets.beir import is_beir_folder
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.datasets.source import find_split
from sluice.retrieval.planning.templates import JOBS, MINILM
from sluice.retrieval.training_data.files.columns import read_records
from sluice.retrieval.training_data.files.formats import rows_of

SAMPLE = 2_000  # documents, queries or rows that are read for their lengths
TOKENS_PER_WORD = 1.35  # of English text, in the word pieces of BERT's kin
READ = 256  # tokens that the usual sentence encoders read
_NEGATIVE = re.compile("neg|label|score|grade", re.I).search  # in the name of a column


class Lengths(NamedTuple):
    """Words of texts: the median, and what 95 of 100 do not exceed; 0 where nothing was read."""

    median: int
    most: int

    @classmethod
    def of(cls, texts: Iterable[str]) -> Lengths:
        """Measure texts."""
        words = sorted(len(text.split()) for text in texts)
        if not words:
            return cls(0, 0)
        return cls(words[len(words) // 2], words[min(len(words) - 1, len(words) * 95 // 100)])

    def tokens(self, least: int, most: int) -> int:
        """Return a number of tokens that reads nearly all, in steps of 16, within bounds."""
        needed = round(self.most * TOKENS_PER_WORD) + 2  # with [CLS] and [SEP]
        return max(least, min(most, -(-needed // 16) * 16))


class Facts(NamedTuple):
    """A dataset, or a file of pairs, as far as a config needs to know it.

    ``documents`` is None where counting takes a pass; ``splits`` are those with judgements.
    ``negatives``: whether a file of pairs has negatives or labels.
    """

    name: str
    documents: int | None
    splits: tuple[str, ...]
    text: Lengths
    query: Lengths
    columns: tuple[str, ...] = ()
    negatives: bool = False

    @property
    def cut(self) -> bool:
        """Whether more than a few documents are longer than an encoder reads."""
        return self.text.most * TOKENS_PER_WORD > READ

    @property
    def training(self) -> bool:
        """Whether there is a train split."""
        return find_split("train", self.splits) is not None

    @property
    def evaluated(self) -> str:
        """The split to evaluate on: test, else dev, else any."""
        for name in ("test", "dev"):
            found = find_split(name, self.splits)
            if found is not None:
                return found
        return self.splits[0] if self.splits else "test"


def dataset_facts(dataset: Dataset) -> Facts:
    """Read a sample of a dataset's documents and queries."""
    documents = [d.full_text for d in itertools.islice(dataset.corpus, SAMPLE)]
    size = dataset.corpus.size
    if size is None and len(documents) < SAMPLE:
        size = len(documents)
    splits = dataset.splits
    first = next((s for s in ("train", "test", *splits) if find_split(s, splits)), None)
    queries: list[str] = []
    if first is not None:
        queries = list(itertools.islice(dataset.with_split(first).queries.values(), SAMPLE))
    return Facts(dataset.name, size, tuple(splits), Lengths.of(documents), Lengths.of(queries))


def pair_facts(file: Path) -> Facts:
    """Read a sample of a file of training pairs, as training reads it.

    Where its columns are not guessed, the first one of texts holds the queries. Raises
    ``DataError`` for a file or a row that training refuses too.
    """
    path = expanded(file)
    records = [value for _, value in itertools.islice(read_records(path), SAMPLE)]
    if not records:
        raise DataError(f"{file}: no rows; expected pairs such as query and positive")
    names = tuple(dict.fromkeys(name for value in records for name in value))
    try:
        _, rows = rows_of(path)
    except DataError:  # not guessed: the config's author says it, under columns
        return _unguessed(file, names, records)
    sample = list(itertools.islice(rows, SAMPLE))
    queries = (row.query.text or "" for row in sample)
    documents = (one.document.text or "" for row in sample for one in row.documents)
    negatives = any(row.graded or any(one.label <= 0 for one in row.documents) for row in sample)
    text, query = Lengths.of(documents), Lengths.of(queries)
    return Facts(str(file), None, (), text, query, names, negatives)


def _unguessed(file: Path, names: tuple[str, ...], records: list[dict[str, Any]]) -> Facts:
    lengths = [Lengths.of(str(value.get(name) or "") for value in records) for name in names]
    longest = max(lengths[1:] or [Lengths(0, 0)], key=lambda each: each.most)
    negatives = any(map(_NEGATIVE, names))
    return Facts(str(file), None, (), longest, lengths[0], names, negatives)


PAIRS_OF_CORPUS = ("train splade", "train dense", "train reranker")  # jobs that take pairs
COMMENT = 34  # column at which a comment begins, where the value leaves room
LONGEST = 256  # tokens of a document that a draft reads


def jobs(*, core: bool = False) -> dict[str, str]:
    """Return the jobs and the recipes that ``draft`` takes, with one line about each.

    With ``core`` those recipes alone that most people begin with.
    """
    known = {name: line for name, line in recipes().items() if not core or name in CORE}
    return {name: line for name, (line, _) in JOBS.items()} | known


def draft(
    job: str,
    file: Path,
    *,
    dataset: str | None = None,
    documents: str | None = None,
    pairs: str | None = None,
    own: Mapping[str, Any] | None = None,
) -> str:
    """Return the YAML of a job for ``file``, filled from a dataset, documents or pairs.

    ``dataset`` is a name as ``load_dataset`` takes it, ``documents`` a file or folder of one's own,
    to which ``own`` adds ``queries``, ``qrels`` and ``columns`` as in a section ``dataset``;
    ``pairs`` is a file of training pairs; without any of them the job is for pydocs. ``job`` may be
    the name of a config that comes with the package, which is copied. Raises ``ConfigError`` for an
    unknown job, and for data that the job has no use for.
    """
    chosen = " ".join(job.split())
    if chosen not in JOBS:
        return _copied(chosen, file, dataset=dataset, documents=documents, pairs=pairs)
    given = [name for name in (dataset, documents, pairs) if name is not None]
    if len(given) > 1:
        raise ConfigError("give one of --dataset, --documents and --pairs")
    if pairs is not None and chosen not in PAIRS_OF_CORPUS:
        raise ConfigError(f"--pairs: is for training; {chosen} takes --dataset or --documents")
    named: Any = _named(dataset, documents, own or {})
    if pairs is not None:
        facts, named = pair_facts(Path(pairs)), None
    else:
        facts = dataset_facts(load_dataset(named, None))
    _refuse(chosen, facts, pairs)
    return _filled(chosen, file, facts, named, pairs)


def _copied(name: str, file: Path, **data: str | None) -> str:
    known = jobs()
    if name not in known:
        raise ConfigError(
            f"{name or 'config init'}: not a job{suggest(name, known)}; expected one of "
            f"{', '.join(JOBS)}, or a recipe: sluice config init --all"
        )
    for option, value in data.items():
        if value is not None and option != "dataset":
            raise ConfigError(f"--{option}: is for jobs; the recipe {name} is copied as it is")
    lines = recipe_or_file(name).read_text(encoding="utf-8").splitlines()
    rest = [line for line in lines if not line.startswith(EDITOR_LINE)]
    if data["dataset"] is not None:
        rest = [re.sub(r"^dataset: .*", f"dataset: {data['dataset']}", line) for line in rest]
    return "\n".join([editor_line(file), *rest]) + "\n"


def _named(dataset: str | None, documents: str | None, own: Mapping[str, Any]) -> Any:
    """Return what goes into ``dataset:``."""
    if documents is None:
        if own:
            raise ConfigError(
                f"{', '.join(own)}: belong to documents of your own; --documents FILE"
            )
        return dataset or "pydocs"
    path = expanded(documents)
    if not path.exists():
        raise ConfigError(f"--documents: no file or folder {documents}")
    if not own and path.is_dir() and is_beir_folder(path):
        return documents
    return {"corpus": documents, **own}


def _refuse(job: str, facts: Facts, pairs: str | None) -> None:
    """Refuse data without what the job needs."""
    splits = ", ".join(facts.splits) or "none with judgements"
    if job.startswith("train") and pairs is None and not facts.training:
        raise ConfigError(
            f"{job}: {facts.name} has no train split ({splits}); give training pairs: --pairs FILE"
        )
    if job == "train reranker" and pairs is not None and not facts.negatives:
        raise ConfigError(
            f"train reranker: {facts.name} has no negatives (columns: {listed(facts.columns)}), "
            "and a reranker learns from them; add a column negative or label, or mine some: "
            "sluice mine"
        )
    if job == "tune" and not (facts.training or {"dev", "validation"} & {*facts.splits}):
        raise ConfigError(
            f"tune: {facts.name} has no dev or train split ({splits}); for documents of your own, "
            "name one: --queries FILE --qrels dev=FILE"
        )
    if job in ("evaluate", "tune") and not facts.splits:
        raise ConfigError(
            f"{job}: {facts.name} has no judgements; give them (--queries FILE --qrels FILE), or "
            "index it without: sluice config init hybrid"
        )


def _filled(job: str, file: Path, facts: Facts, named: Any, pairs: str | None) -> str:
    query, document = facts.query.tokens(16, 128), facts.text.tokens(64, LONGEST)
    output = f"runs/{_slug(job.split()[-1])}-{_slug(facts.name)}"
    values = {
        "data": facts.name,
        "file": str(file),
        "output": output,
        "dataset": _dataset_lines(facts, named, pairs),
        "model": MINILM,
        "query_length": query,
        "document_length": document,
        "pair_length": min(512, query + document),
        "query_words": facts.query.median,
        "document_words": facts.text.median,
        "examples": _example_lines(facts, pairs),
        "negatives": _negative_lines(job, pairs),
        "evaluate": _dev_lines(facts, pairs),
        "passages": _passage_lines(facts),
        "evaluation": _evaluation_lines(facts),
        "split": facts.evaluated,
    }
    text = JOBS[job][1].format_map(values)
    lines = [_aligned(line) for line in text.splitlines()]
    kept = [line for place, line in enumerate(lines) if line or lines[place - 1]]
    return "\n".join([editor_line(file), *kept]).rstrip() + "\n"


def _aligned(line: str) -> str:
    """Put a comment behind a value at its column, one space behind a long value."""
    value, mark, comment = line.partition("  # ")
    if not mark or not value.strip():
        return line.rstrip()
    return f"{value.rstrip().ljust(COMMENT - 2)}  # {comment.strip()}"


def _dataset_lines(facts: Facts, named: Any, pairs: str | None) -> str:
    if pairs is not None:
        return "# dataset: NAME                 # not needed: the pairs bring their own texts"
    count = "" if facts.documents is None else f"{plural(facts.documents, 'document')}; "
    splits = f"splits: {', '.join(facts.splits)}" if facts.splits else "no judgements"
    if isinstance(named, Mapping):
        unsaid = {
            "columns": "{id: ..., text: ..., title: ..., metadata: [...]}  # else guessed",
            "queries": "topics.tsv",
            "qrels": "qrels.txt",
        }
        return "\n".join([
            f"dataset:                        # {count}{splits}",
            f"  corpus: {_scalar(named['corpus'])}",
            *(
                f"  {key}: {_scalar(named[key])}" if key in named else f"  # {key}: {text}"
                for key, text in unsaid.items()
            ),
        ])  # fmt: skip
    return f"dataset: {_scalar(named)}  # {count}{splits}"


def _example_lines(facts: Facts, pairs: str | None) -> str:
    if pairs is None:
        return "# examples: pairs.csv           # pairs of your own, in place of the train split"
    return (
        f"examples:                       # columns: {', '.join(facts.columns)}\n"
        f"  file: {_scalar(pairs)}\n"
        "  # columns: {query: ..., positive: ..., negative: ...}   # where they are not guessed"
    )


def _negative_lines(job: str, pairs: str | None) -> str:
    count = 7 if job == "train reranker" else 1
    if pairs is not None:
        return "# negatives are the file's own, and the others of a batch"
    return (
        "negatives:                      # documents that look relevant and are not\n"
        "  type: mined\n"
        "  retriever: {encoder: bm25, index: inverted}\n"
        f"  per_query: {count}\n"
        "  max_positive_ratio: 0.95  # leaves out what scores nearly as well as the positive"
    )


def _dev_lines(facts: Facts, pairs: str | None) -> str:
    if pairs is not None:
        return "# evaluate: {measures: [nDCG@10], every: 100}   # on a part of the pairs"
    split = "the dev split" if find_dev(facts) else "a tenth of train, held out"
    return (
        f"evaluate:                       # while training, on {split}\n"
        "  measures: [nDCG@10]\n"
        "  every: 100                      # steps"
    )


def find_dev(facts: Facts) -> bool:
    """Return whether a dataset has a dev split of its own."""
    return bool({"dev", "validation", "valid"} & set(facts.splits))


def _passage_lines(facts: Facts) -> str:
    if not facts.cut:
        return "    # passages: {length: 200, overlap: 50}   # not needed: the documents are short"
    return (
        "    passages:                     # long documents are cut, so that all of them is read\n"
        "      length: 200                 # tokens\n"
        "      overlap: 50"
    )


def _evaluation_lines(facts: Facts) -> str:
    if not facts.splits:
        return "# evaluate: needs queries and judgements under dataset"
    return (
        "\nevaluate:\n"
        "  measures: [nDCG@10, R@100]      # others: sluice config list measures\n"
        "  baseline: bm25                  # what differences are tested against\n"
        f"  split: {facts.evaluated}"
    )


def _scalar(value: Any) -> str:
    """Return a value as YAML writes it on one line."""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    )


def _slug(name: str) -> str:
    """Return a name as a part of a folder's name."""
    last = Path(name.rstrip("/")).stem if "/" in name or "." in name else name
    return re.sub(r"[^\w-]+", "-", last.rpartition(":")[2]).strip("-") or "data"
