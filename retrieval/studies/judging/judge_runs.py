"""Labels the documents of run files with a judge, and says where a judge is also a ranker."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.vectors.cache import cache_root
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.expression import names_in
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.candidate_lists import run_on
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.runs.run import Run
from sluice.retrieval.runs.trec_files import read_qrels
from sluice.retrieval.stages.rerankers.score_cache import ScoreCache
from sluice.retrieval.studies.judging.grading import (
    CachedScores,
    GradingJudge,
    ThresholdJudge,
    known_as,
    open_grading_judge,
)
from sluice.retrieval.studies.judging.labelling import (
    Labelled,
    Which,
    check_output,
    filled_scores,
    label_pairs,
    pairs_to_label,
    pairs_with_texts,
    write_labels,
)

if TYPE_CHECKING:
    from sluice.retrieval.evaluation.table import Table


log = logging.getLogger("sluice")

Names = Collection[str]  # fingerprints, folders and names of models


@runtime_checkable
class NamesModels(Protocol):
    """A scorer that names the models it uses, as a ``GradingJudge`` does."""

    @property
    def models(self) -> Names:
        """Their fingerprints, folders or names."""
        ...


def circular(judge: GradingJudge | Names, systems: Mapping[str, Stage | Names]) -> list[str]:
    """Return the systems that also rank with the judge's model, and log a warning for each.

    ``judge`` is a judge or the names of its models, a system a pipeline or the names of its models;
    they are compared by fingerprint, folder and name. An empty list does not prove independence: a
    ranker that was distilled from the judge has another name.
    """
    models = judge if isinstance(judge, Collection) else judge.models
    own = {name for model in models for name in known_as(model)}
    circles = []
    for system, ranker in systems.items():
        names = rankers_in(ranker) if isinstance(ranker, Stage) else set(ranker)
        shared = own & {each for name in names for each in known_as(name)}
        if shared:
            circles.append(system)
            log.warning(
                "circular: %s is ranked by the model that judges it (%s); its score shows how well "
                "that model agrees with itself",
                system,
                min(shared, key=len),
            )
    return circles


def rankers_in(stage: Stage) -> set[str]:
    """Return the fingerprints of the models that a pipeline retrieves and reranks by."""
    models: set[str] = set()
    retriever = None if stage.inner else retriever_of(stage)
    if retriever is not None:
        models.add(str(retriever.head.encoder_fingerprint))
    for scorer in stage.ranking_models:
        models |= set(_fingerprints(scorer))
    return models.union(*(rankers_in(part) for part in stage.inner))


def rankers_of_run(path: Path) -> set[str]:
    """Return the models that produced an experiment's run file, by folder, name and fingerprint.

    Empty for a run from elsewhere, which has no record of its models.
    """
    from sluice.encoders.foundation.disk.files import read_json
    from sluice.retrieval.config.yaml_file import read_yaml
    from sluice.retrieval.experiments.output.folder import SETTINGS

    output = path.resolve().parent.parent
    settings = output / SETTINGS
    if path.resolve().parent.name != "runs" or not settings.is_file():
        return set()
    config = read_yaml(settings)
    system = path.name.removesuffix(".gz").removesuffix(".trec")
    models: set[str] = set()
    for part in _parts(system, config):
        for section in ("rerankers", "retrievers"):
            for model in _models(_section(config, section).get(part)):
                trained = model in _section(config, "train")
                models |= set(known_as(str(output / "models" / model) if trained else model))
    results = output / "results.json"
    for each in _systems(read_json(results)) if results.is_file() else []:
        if each.get("name") == system:
            models |= set(map(str, _section(each, "fingerprints").values()))
    return models


def _fingerprints(scorer: Any) -> Iterator[str]:
    """Yield the fingerprints of a scorer and of the models inside it."""
    hooks = ScorerHooks(scorer)
    if hooks.fingerprint is not None:
        yield hooks.fingerprint
    if isinstance(scorer, NamesModels):
        yield from (model for model in scorer.models if isinstance(model, str))
    for inner in hooks.inside:
        yield from _fingerprints(inner)


def _section(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a mapping in a file that anybody may have written; {} where there is none."""
    inner = value.get(key)
    return inner if isinstance(inner, Mapping) else {}


def _systems(results: Any) -> list[Mapping[str, Any]]:
    listed = results.get("systems") if isinstance(results, Mapping) else None
    systems = listed if isinstance(listed, list) else []
    return [each for each in systems if isinstance(each, Mapping)]


def _parts(system: str, config: Mapping[str, Any]) -> set[str]:
    """Return the retrievers and rerankers in a pipeline, including those of pipelines it names."""
    pipelines = _section(config, "pipelines")
    parts, waiting = set[str](), [system]
    while waiting:
        name = waiting.pop()
        if name in parts:
            continue
        parts.add(name)
        if name in pipelines:
            waiting += names_in(str(pipelines[name]), where=f"pipelines.{name}")
    return parts


def _models(spec: Any) -> Iterator[str]:
    """Yield every ``model:`` inside a component."""
    if isinstance(spec, Mapping):
        for key, value in spec.items():
            if key == "model" and isinstance(value, str):
                yield value
            else:
                yield from _models(value)


CACHE_BYTES = 10**12  # labels cost money: none is evicted
CACHE_FILE = "labels.sqlite"


@dataclass(frozen=True, slots=True)
class JudgedRuns:
    """The result of ``judge_runs``: the labels, how they were made, and their effect on scores."""

    output: Path
    judge: str
    labelled: Labelled
    human: int
    cached: int
    thresholds: tuple[float, ...]
    circular: tuple[str, ...]
    scores: Table | None

    def __str__(self) -> str:
        grades = ", ".join(f"{count:,} of grade {g}" for g, count in self.labelled.grades.items())
        lines = [
            f"{self.output}: {self.labelled.size:,} labels by {self.judge} ({grades or 'none'}) "
            f"for {self.labelled.asked:,} pairs; {self.labelled.unanswered:,} without an answer, "
            f"{self.labelled.textless:,} without a text; {self.cached:,} from the cache",
            f"{self.human:,} human labels, in a file of their own",
        ]
        if self.thresholds:
            cuts = ", ".join(f"{cut:.4g}" for cut in self.thresholds)
            lines.append(f"thresholds of the grades from 1 up: {cuts}")
        if self.circular:
            lines.append(f"circular: the judge also ranks in {', '.join(self.circular)}")
        return "\n".join([*lines, *([str(self.scores)] if self.scores is not None else [])])


def judge_runs(
    runs: Sequence[str | Path],
    dataset: str | Mapping[str, Any],
    judge: str | Path | Mapping[str, Any],
    output: Path,
    *,
    split: Annotated[str, "The dataset's split."] = "test",
    qrels: Annotated[Path | None, "Human labels."] = None,
    k: Annotated[int, Ge(1), "Label the first N documents of each run."] = 10,
    pairs: Annotated[
        Which, "Label holes (no human label yet), judged (those with one), or all."
    ] = "holes",
    queries: Annotated[int | None, Ge(1), "Label a sample of N queries."] = None,
    fit: Annotated[
        int, Ge(0), "Fit the judge's thresholds to the human labels of N other queries."
    ] = 0,
    seed: Annotated[int, "Random seed for the samples."] = 0,
    cache: Annotated[Path | None, "Where labels are cached."] = None,
    measures: Sequence[str] = (),
    rankers: Annotated[
        Sequence[str],
        "MODEL",
        "A model that produced the runs, if sluice did not write them; may be repeated.",
    ] = (),
) -> JudgedRuns:
    """Label pairs of runs with a judge and write the labels; ``pairs_to_label`` says which pairs.

    ``qrels`` are the human labels, by default the dataset's own. ``queries`` is the size of a
    sample of the queries (by ``seed``); ``fit`` is the number of queries whose human labels set a
    cross-encoder's thresholds, which are not in the sample unless only holes are labelled.
    ``measures`` are computed with and without the labels. ``rankers`` names the models of runs that
    no experiment wrote: a judge that is one of them is reported. ``cache`` defaults to a file in
    the user's cache.
    """
    check_output(output)
    parsed_measures = [parse_measure(text) for text in measures]
    data = load_dataset(dataset, split)
    human = data.qrels if qrels is None else _other(qrels, output)
    opened = {str(path): Run.load(path) for path in runs}
    fitting, asked = _drawn(human, queries, fit, seed, pairs)
    asked_qrels = {query: human[query] for query in asked}
    lists = [run_on(run, data) for run in opened.values()]
    wanted = pairs_to_label(lists, asked_qrels, k, pairs)
    if not wanted:
        state = "already judged" if pairs == "holes" else "unjudged"
        if not any(run.get(query) for run in lists for query in asked):
            raise DataError("nothing to label: no run has a hit for a query with judgements")
        raise DataError(f"nothing to label: every document in the top {k} is {state}")
    texts = _Texts(data)
    store = ScoreCache(cache or cache_root().parent / CACHE_FILE, max_bytes=CACHE_BYTES)
    try:
        grader = open_grading_judge(judge, cache=store)
        if fitting:
            grader = _fitted(grader, {query: human[query] for query in fitting}, data, texts)
        before = _hits(grader)
        labelled = label_pairs(grader, wanted, data.queries, texts.of)
        systems = {path: rankers_of_run(Path(path)) | set(rankers) for path in opened}
        circle = circular(grader, systems) if systems else []
    finally:
        store.close()
    thresholds = tuple(grader.thresholds or ()) if isinstance(grader, ThresholdJudge) else ()
    note = {
        "judge": grader.name, "fingerprint": grader.fingerprint, "models": list(grader.models),
        "highest": grader.highest, "thresholds": list(thresholds), "dataset": data.name,
        "split": data.split, "runs": list(opened), "k": k, "pairs": pairs, "seed": seed,
        "queries": len(asked), "fitted_on": fitting, "labels": labelled.size,
        "grades": {str(grade): count for grade, count in labelled.grades.items()},
        "unanswered": labelled.unanswered, "without_text": labelled.textless,
        "human_labels": sum(map(len, human.values())), "circular": circle,
    }  # fmt: skip
    write_labels(output, labelled.labels, note)
    named = dict(zip(_names(opened), lists, strict=True))
    return JudgedRuns(
        output,
        grader.name,
        labelled,
        sum(map(len, human.values())),
        _hits(grader) - before,
        thresholds,
        tuple(circle),
        filled_scores(named, asked_qrels, labelled.labels, parsed_measures) if measures else None,
    )


class _Texts:
    """Texts of a dataset's documents, read in one pass over the corpus for those not read yet."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._known: dict[str, str] = {}

    def of(self, documents: Sequence[str]) -> Mapping[str, str]:
        missing = {document for document in documents if document not in self._known}
        if missing:
            corpus = self._dataset.corpus
            self._known |= {d.id: d.full_text for d in corpus if d.id in missing}
        return self._known


def _other(qrels: Path, output: Path) -> dict[str, dict[str, int]]:
    if qrels.resolve() == output.resolve():
        raise ConfigError(f"{output}: is the file of human labels; give another output")
    return read_qrels(qrels)


def _drawn(
    human: Qrels, size: int | None, fit: int, seed: int, pairs: Which
) -> tuple[list[str], list[str]]:
    """Return the queries to fit on and those to label, in the qrels' order.

    If judged pairs are labelled, no query is in both: the thresholds would be fitted on them.
    """
    names = [query for query, grades in human.items() if grades]
    left = len(names) - (0 if pairs == "holes" else fit)
    count = left if size is None else size
    if fit < 0 or fit > len(names) or not 1 <= count <= left:
        raise ConfigError(
            f"{'all' if size is None else size} queries to label and {fit} to fit on; the qrels "
            f"have {len(names):,} queries with judgements"
        )
    drawn = random.Random(seed).sample(names, len(names))
    fitting, asked = set(drawn[:fit]), set(drawn[len(drawn) - count :])
    return [q for q in names if q in fitting], [q for q in names if q in asked]


def _fitted(judge: GradingJudge, human: Qrels, data: Dataset, texts: _Texts) -> GradingJudge:
    if not isinstance(judge, ThresholdJudge):
        raise ConfigError(
            f"fit: judge {judge.name} has no thresholds to fit; expected a cross-encoder"
        )
    wanted = {query: list(grades) for query, grades in human.items()}
    pairs = pairs_with_texts(wanted, data.queries, texts.of)
    return judge.fitted(pairs, [human[pair.query_id][pair.document_id] for pair in pairs])


def _hits(judge: GradingJudge) -> int:
    inner = judge.teacher if isinstance(judge, ThresholdJudge) else judge
    return inner.hits if isinstance(inner, CachedScores) else 0


def _names(runs: Mapping[str, Run]) -> list[str]:
    names = [run.name for run in runs.values()]
    return [n if names.count(n) == 1 else path for n, path in zip(names, runs, strict=True)]
