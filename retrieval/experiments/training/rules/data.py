"""Rules of what a training run learns from: datasets, examples, negatives, teacher, dev queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice.encoders.foundation.errors import suggest
from sluice.retrieval.config.file_keys import collection_key
from sluice.retrieval.retrievers.candidate_lists import RANDOM, SELF
from sluice.retrieval.retrievers.folder import HEAD
from sluice.retrieval.training_data.example_sources import example_source
from sluice.retrieval.training_data.refreshing_miner import RefreshSettings
from sluice.retrieval.training_data.teachers.spec import teacher_spec
from sluice.training.losses.base import writes
from sluice.training.rules import Fault, Rule, first_of

if TYPE_CHECKING:
    from sluice.retrieval.experiments.training.rules.facts import RunFacts


def _named_twice(run: RunFacts) -> Fault:
    datasets = run.section.datasets or []
    keys = [collection_key(each) for each in datasets]
    return first_of(
        {"number": number, "dataset": datasets[number]}
        for number, key in enumerate(keys)
        if key in keys[:number]
    )


def _of_the_test(run: RunFacts) -> Fault:
    return first_of(
        {"number": number, "split": each["split"]}
        for number, each in enumerate(run.section.datasets or [])
        if isinstance(each, dict) and each.get("split", "train") != "train"
    )


def _strange_dataset(run: RunFacts) -> Fault:
    return first_of(
        {"name": name, "near": suggest(name, run.datasets)}
        for name in run.section.by_dataset or ()
        if run.datasets and name not in run.datasets
    )


def _unprompted(run: RunFacts) -> Fault:
    prompted = {"dense", "sparse"} & set(run.learns)
    return not prompted and first_of({"name": name} for name in run.section.dataset_prompts or ())


def _of_one_corpus(run: RunFacts) -> Fault:
    """Return a run or a retriever's folder, which has the documents of one dataset of several."""
    searched = [("examples.retriever", run.searched)]
    searched += [("negatives.retriever", each) for each in run.retrievers]
    return run.section.datasets is not None and first_of(
        {"place": place, "file": name}
        for place, name in searched
        if isinstance(name, str) and (Path(name).is_file() or (Path(name) / HEAD).exists())
    )


def _scores_of_one(run: RunFacts) -> Fault:
    """Return a file of scores, which are of the documents of one dataset of several."""

    def named() -> Iterator[dict[str, Any]]:
        for place, spec in (
            ("teacher", run.section.teacher), ("negatives.judge", run.negatives.get("judge")),
        ):  # fmt: skip
            if isinstance(spec, str | dict):
                yield from ({"place": place, "file": name} for name in teacher_spec(spec).sources)

    return run.section.datasets is not None and first_of(
        each for each in named() if Path(each["file"]).is_file()
    )


def _strange_expert(run: RunFacts) -> Fault:
    return first_of(
        {"expert": name, "near": suggest(name, run.datasets)}
        for name in run.experts
        if name not in run.datasets
    )


def _without_expert(run: RunFacts) -> Fault:
    return bool(run.experts) and first_of(
        {"dataset": name} for name in run.datasets if name not in run.experts
    )


def _nothing_to_beat(run: RunFacts) -> Fault:
    """Return why a positive has nothing to be told from; files of examples are read later."""
    section, loss = run.section, run.loss
    if section.negatives is not None or section.examples is not None or "texts_alone" in loss.wants:
        return False
    if "teacher_vectors" in loss.wants:  # which every text has
        return False
    if "scores" in run.learns:
        return {"alone": f"a {run.learnt} learns from each query's own documents"}
    if loss.negatives == "own":
        return {"alone": f"{run.name} compares a positive with the query's own documents only"}
    one = section.trainer.get("per_device_train_batch_size") == 1
    return one and {"alone": "a batch of 1 has no other documents"}


def _idle_scale(run: RunFacts) -> Fault:
    learnt = run.loss.needs_teacher or ":" in run.name
    if run.examples != "corpus" or "scale" not in run.own_examples:
        return False
    if not learnt:
        return {"why": f"which {run.name} does not learn from"}
    return run.teacher and {"why": "that the teacher's replace"}


def _same_again(run: RunFacts) -> bool:
    """Return whether mining again would find the same negatives."""
    drawn = run.mining is None or run.mining.sampling == "random"
    drawn = drawn or example_source(run.section.examples).changes
    return run.refreshed and not drawn and not {SELF, RANDOM} & set(map(str, run.retrievers))


def _copies_unused(run: RunFacts) -> bool:
    if not run.refreshed or SELF in run.retrievers:
        return False
    return RefreshSettings.read(run.negatives["refresh"], "negatives.refresh").beside


DATA: Final = (
    Rule("examples.type", lambda run: run.examples == "quality" and not run.learning.any_text,
         "quality: documents without a query train a cross_encoder, which reads a text at once, "
         "or true_false, and this is {kind}: encoder: {{type: cross_encoder, ...}}",
         "examples: {type: quality}"),
    Rule("encoder.prompt",
         lambda run: run.examples == "quality" and "{query}" in str(run.encoder.get("prompt")),
         "has {{query}}, and examples of type quality have no query; leave prompt out, or ask "
         "about {{document}} alone",
         "{encoder: {type: true_false, prompt: '{query} {document}'}, loss: bce, examples: "
         "{type: quality}}"),
    Rule("encoder.head",
         lambda run: run.examples == "quality"
         and run.encoder.get("head") not in (None, "classifier"),
         "{encoder[head]}: compares a query with a document, and examples of type quality have no "
         "query; leave head out",
         "{encoder: {type: cross_encoder, head: similarity}, loss: bce, examples: {type: "
         "quality}}"),
    Rule("{key}", lambda run: run.examples == "quality"
         and run.first_set("negatives", "teacher", "answered", "evaluate"),
         "is for examples with queries, and those of type quality have none; leave it out",
         "{encoder: {type: cross_encoder}, loss: bce, examples: {type: quality}, evaluate: {}}"),
    Rule("sampling_temperature",
         lambda run: run.section.sampling_temperature and len(run.datasets) < 2,
         "weighs several datasets; list them under datasets, or leave it out",
         "sampling_temperature: 2"),
    Rule("datasets[{number}]", _named_twice,
         "{dataset!r} is named twice; once is enough",
         "datasets: [a, b, a]"),
    Rule("datasets[{number}].split", _of_the_test,
         "{split!r}: training on the test is refused: leave split out, and the train split is used",
         "datasets: [{name: a, split: test}, b]"),
    Rule("examples",
         lambda run: run.datasets and run.examples and run.examples not in run.of_corpus
         and not run.part,
         "a file does not say which of the datasets its rows are of; write it under "
         "by_dataset.NAME, leave datasets out, or take examples of type {of_corpus}",
         "{datasets: [a, b], examples: PAIRS}"),
    Rule("by_dataset.{name}", _strange_dataset,
         "no dataset of this training has that name; they are {datasets}{near}",
         "{datasets: [a, b], by_dataset: {c: {weight: 2}}}"),
    Rule("by_dataset", lambda run: run.section.by_dataset and len(run.datasets) < 2,
         "says what some of several datasets have of their own; list them under datasets",
         "by_dataset: {a: {loss: info_nce}}"),
    Rule("sampling_temperature",
         lambda run: run.section.sampling_temperature and run.section.dataset_weights,
         "weights under by_dataset say how often each dataset is drawn; leave one of the two out",
         "{datasets: [a, b], sampling_temperature: 2, by_dataset: {a: {weight: 2}}}"),
    Rule("by_dataset.{name}.query_prompt", _unprompted,
         "{kind} encoders have none that a dataset could change; leave it out",
         "{datasets: [a, b], encoder: {type: cross_encoder}, loss: bce, examples: {type: bfs}, "
         "by_dataset: {a: {query_prompt: 'q: '}}}"),
    Rule("examples.buffer", lambda run: run.own_examples.get("buffer")
         and "all_examples" in run.loss.wants,
         "{name} looks at all examples before the first step; leave buffer out",
         "{examples: {file: PAIRS, buffer: 9}, loss: {type: info_nce, logq: true}}"),
    Rule("{key}", lambda run: run.own_examples.get("buffer")
         and run.first_set("negatives", "teacher", "answered"),
         "is for examples in memory, and examples.buffer leaves them on disk; leave one of the two "
         "out, or write negatives and scores into the file (`sluice mine`, `sluice teach distil`)",
         "{examples: {file: PAIRS, buffer: 9}, loss: margin_mse, teacher: m}"),
    Rule("evaluate", lambda run: run.own_examples.get("buffer") and run.section.evaluate
         and (run.section.evaluate.by == "examples" or not run.with_dataset),
         "holds some of the examples out, which those on disk cannot; name a dataset with a dev "
         "split (by: judgements), or leave evaluate or examples.buffer out",
         "{examples: {file: PAIRS, buffer: 9}, evaluate: {by: examples}}"),
    Rule("answered", lambda run: run.datasets and run.section.answered,
         "a file does not say which of the datasets its documents are of; leave it out, and the "
         "judgements of each dataset say what its documents answer, or give one dataset",
         "{datasets: [a, b], loss: clp, answered: PAIRS}"),
    Rule("negatives", lambda run: run.datasets and run.live,
         "live candidates are those of one corpus; mine them, or give one dataset",
         "{datasets: [a, b], negatives: {type: live}}"),
    Rule("{place}", _of_one_corpus,
         "{file} holds the documents of one corpus, and datasets are several; name a retriever of "
         "this file, which is built for each of them, or write {{encoder: ..., index: ...}}",
         "{datasets: [a, b], negatives: {type: mined, retriever: [random, PAIRS]}}"),
    Rule("{place}", _scores_of_one,
         "{file} has scores by the ids of one dataset, and datasets are several; name the model "
         "that gives the scores",
         "{datasets: [a, b], loss: margin_mse, teacher: PAIRS}"),
    Rule("evaluate.by", lambda run: run.section.evaluate and run.section.evaluate.by == "examples"
         and run.examples in ("", "texts"),
         "examples: none has a query; add examples, or leave by out, and the dev split's "
         "judgements are used",
         "evaluate: {by: examples}"),
    Rule("encoder.expert",
         lambda run: run.learning.experts and run.encoder.get("expert") is not None,
         "names the one to search with, and all are trained; give it to the encoder of a "
         "retriever, and leave it out here",
         "encoder: {type: experts, expert: a}"),
    Rule("encoder.experts", lambda run: run.experts and len(run.datasets) < 2,
         "there is an expert for each dataset, {experts}, and datasets names {datasets}; list "
         "them under datasets, or give experts: {count}, among which a gate chooses",
         "{datasets: [a], encoder: {type: experts, experts: [a, b]}}"),
    Rule("encoder.experts", _strange_expert,
         "{expert!r} is not a dataset of this training: {datasets}{near}",
         "{datasets: [a, c], encoder: {type: experts, experts: [a, b]}}"),
    Rule("encoder.experts", _without_expert,
         "none for {dataset!r}, which is under datasets; name it too, or leave that dataset out",
         "{datasets: [a, b, c], encoder: {type: experts, experts: [a, b]}}"),
)  # fmt: skip

EXAMPLES: Final = (
    Rule("negatives.retriever",
         lambda run: run.learns & {"scores", "rankings"} and SELF in run.retrievers,
         "self: a {learnt} cannot retrieve; name a retriever",
         "{encoder: {type: cross_encoder}, loss: bce, negatives: {type: mined, retriever: self}}"),
    Rule("examples.type",
         lambda run: run.examples == "texts" and "texts_alone" not in run.loss.wants,
         "texts are for loss: {{type: masked_language}}; {name} learns from queries",
         "examples: {type: texts}"),
    Rule("{key}",
         lambda run: "texts_alone" in run.loss.wants and run.first_set("negatives", "teacher"),
         "{name} learns from texts alone; leave it out",
         "{encoder: {type: splade}, loss: masked_language, teacher: m}"),
    Rule("sparsity.{key}", lambda run: "texts_alone" in run.loss.wants and run.penalty_of_queries,
         "{name} has no queries; set sparsity.document instead",
         "{encoder: {type: splade}, loss: masked_language, sparsity: {target_query_terms: 4}}"),
    Rule("negatives", _nothing_to_beat,
         "missing: {alone}, so nothing would be learnt without negatives",
         "{loss: {type: info_nce, negatives: own}}"),
    Rule("examples.candidates", lambda run: run.examples == "corpus" and run.loss.needs_teacher
         and not run.teacher and not run.own_examples.get("candidates"),
         "missing: {name} learns from a teacher's scores; give retriever and candidates, which "
         "have those of the list, or name a teacher",
         "{loss: margin_mse, examples: {type: corpus}}"),
    Rule("examples.scale", _idle_scale,
         "is of the list's scores, {why}; leave it out",
         "examples: {type: corpus, retriever: m, candidates: 4, scale: 2}"),
    Rule("examples", lambda run: "negative_queries" in run.loss.wants and run.examples != "file"
         and ":" not in run.examples,
         "{examples_or_missing}; {name} learns from queries that a positive does not answer, "
         "which files have (examples: {{file: FILE}}, rows with negative_queries); `sluice teach "
         "describe` writes them",
         "loss: misfits"),
    Rule("examples.negative_queries", lambda run: "negative_queries" in run.loss.wants
         and run.own_examples.get("negative_queries") == 0,
         "0 leaves out what {name} learns from; leave it out",
         "{loss: misfits, examples: {file: PAIRS, negative_queries: 0}}"),
)  # fmt: skip

SELDOM: Final = (
    Rule("{key}", lambda run: writes(run.loss) and run.loss.forms != ("rankings",)
         and run.first_set("negatives", "teacher", "gradient_cache", "head_learning_rate",
                           "answered"),
         "{name} learns from positives alone; leave it out",
         "{encoder: {type: seal}, loss: spans, teacher: m}"),
    Rule("teacher", lambda run: run.live and run.teacher,
         "live candidates change at every step, and no teacher has scored them; leave it out, or "
         "mine the negatives",
         "{negatives: {type: live}, teacher: m}"),
    Rule("negatives.folds",
         lambda run: run.negatives.get("folds") and (run.datasets or run.examples or run.alone),
         "parts the train split's queries of an experiment's one dataset, whose first stage is "
         "trained again for each part; leave it out",
         "negatives: {type: mined, retriever: m, folds: 2}"),
    Rule("negatives.refresh", _same_again,
         "would mine the same negatives each time; add self to retriever (the encoder as it is "
         "then), set sampling: random, or leave refresh out",
         "negatives: {type: mined, retriever: m, mode: naive, refresh: epoch}"),
    Rule("negatives.refresh", _copies_unused,
         "another process mines with copies of the encoder, and these lists ask none; add self to "
         "retriever, or write a number of steps: then training mines itself",
         "negatives: {type: mined, retriever: m, sampling: random, refresh: {every: 9, lag: 3}}"),
    Rule("evaluate", lambda run: run.reranks and not (run.negatives or run.searched is not None
         or run.section.evaluate.by == "examples"),
         "a reranker reranks what a retriever finds; give negatives or examples.retriever, or "
         "leave evaluate out",
         "{encoder: {type: cross_encoder}, loss: bce, examples: {type: bfs}, evaluate: {}}"),
    Rule("evaluate", lambda run: run.reranks and run.retrievers == [RANDOM],
         "a reranker reranks what the negatives' retriever finds, and random finds nothing; add a "
         "retriever (retriever: [bm25, random]), or leave evaluate out",
         "{encoder: {type: cross_encoder}, loss: bce, evaluate: {}, negatives: {type: mined, "
         "retriever: random}}"),
    Rule("{key}", lambda run: run.examples and run.of_judgements,
         "is for examples made from the dataset's judgements; those under examples have their "
         "own: leave {key} out",
         "{examples: {type: bfs}, positives: 2}"),
    Rule("teacher", lambda run: run.teacher and not (run.loss.needs_teacher or run.by_batch
         or ":" in run.name),
         "{name} learns nothing from a teacher's scores; add a loss that does (loss: {{type: sum, "
         "losses: [{{type: kl_div}}, ...]}}), or leave teacher out",
         "teacher: m"),
    Rule("answered", lambda run: run.section.answered and "answered" not in run.loss.wants,
         "{name} looks at no queries that negatives answer; use the loss clp, or leave answered "
         "out",
         "answered: PAIRS"),
)  # fmt: skip
