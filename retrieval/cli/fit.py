"""Fit fusions, cut-offs, exits and rankers.

Each learns from judged queries outside the test set and writes a file that a pipeline or retriever
in YAML reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.options import (
    Allow,
    Command,
    ConfigFile,
    DatasetName,
    Overrides,
    Rebuild,
    allowed,
    argument,
    check_choice,
    option,
    plural,
    refuse_options,
    split_overrides,
)
from sluice.retrieval.cli.terminal.output import echo
from sluice.retrieval.evaluation.table import Table

SHOWN = 15  # features
QUALITY_SIGNALS = ("head", "text", "length", "itn", "unigram", "perplexity", "norm")
of_head = partial(option, panel="Quality head")

Split = Annotated[str, option("SPLIT", "Fit on dev (a tenth of train if there is none) or train.")]
Output = Annotated[Path, option("FILE", "The JSON file to write.")]
Measure = Annotated[str, option("MEASURE", "The measure to maximise.", "-m", "--measure")]
Kind = Annotated[
    str,
    option(
        "KIND",
        "Measure confidence by margin, softmax, top, energy or deviation of the scores, or by the "
        "variance that a Gaussian encoder gives the query.",
    ),
]
Temperature = Annotated[float, option("T", "Divide the scores of softmax and energy by T.")]
Reranking = Annotated[str, argument("NAME", "The pipeline, which ends in a reranker.")]


def fusion(
    config: ConfigFile,
    names: Annotated[
        list[str],
        argument(
            "NAME",
            "Two or more retrievers or pipelines to fuse; KEY.PATH=VALUE words among them "
            "replace values of the file.",
        ),
    ],
    output: Output,
    split: Split = "dev",
    measure: Measure = "nDCG@10",
    method: Annotated[
        list[str] | None,
        option(
            "METHOD",
            "Try this method: weighted, rrf, rank_biased, comb_sum or comb_mnz; may be repeated.",
            default="weighted",
        ),
    ] = None,
    normalise: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Try this normalisation of scores: min-max, z-score, theoretical-min, pyserini, "
            "steep or none; may be repeated.",
            default="steep and z-score",
        ),
    ] = None,
    depth: Annotated[int, option("N", "Hits of each part that are fused.", min=1)] = 1000,
    rebuild: Rebuild = False,
) -> None:
    """Fit the weights and method of a fusion.

    Weights, normalisation and method are chosen by the measure on the dev queries. A pipeline reads
    the file: `fused(bm25, dense, fitted='fusion.json')`.

    Example:
      sluice fit fusion configs/quickstart.yaml bm25 dense --output fusion.json
    """
    from sluice.retrieval.experiments.tuning.depth_fitting import fit_experiment_fusion

    parts, overrides = split_overrides(names)
    if len(parts) < 2:
        raise ConfigError("fit fusion: expected at least two retrievers or pipelines")
    fitted = fit_experiment_fusion(
        config, parts, overrides, rebuild=rebuild, split=split, depth=depth, measure=measure,
        methods=method or ("weighted",), normalise=normalise,
    )  # fmt: skip
    fitted.save(output)
    call = "fused" if fitted.fusion.method.startswith("comb") else fitted.fusion.method
    held_out = "" if fitted.held_out is None else f", {fitted.held_out:.4f} held out"
    alone = ", ".join(
        f"{name} {value:.4f}" for name, value in zip(fitted.names, fitted.single, strict=True)
    )
    queries = plural(fitted.queries, f"{split} query")
    echo(
        f"{output}: {fitted.measure} {fitted.value:.4f} on {queries}"
        f"{held_out}\n"
        f"equal weights {fitted.equal:.4f}; alone {alone}\n"
        f"best: {fitted.expression()}\n"
        f"in a pipeline: {call}({', '.join(parts)}, fitted={str(output)!r})"
    )


def rerank(
    config: ConfigFile,
    pipeline: Reranking,
    output: Output,
    overrides: Overrides = None,
    split: Split = "dev",
    measure: Measure = "nDCG@10",
    depth: Annotated[
        int | None,
        option("N", "Documents that are reranked, at most.", min=1, default="the reranker's own"),
    ] = None,
    rebuild: Rebuild = False,
) -> None:
    """Fit depth and share of a reranker.

    The depth is how many documents it scores, the share how much their earlier scores count. Every
    pair is scored once. A depth of 0, the first stage as it is, is kept unless the queries
    show that the reranker helps. A pipeline reads the file: `hybrid >> cross(fitted='cross.json')`.

    Example:
      sluice fit rerank x.yaml cascade --output cross.json
    """
    from sluice.retrieval.experiments.tuning.depth_fitting import fit_experiment_rerank

    fitted = fit_experiment_rerank(
        config, pipeline, overrides or [], rebuild=rebuild, split=split, depth=depth,
        measure=measure,
    )  # fmt: skip
    fitted.save(output)
    name = fitted.scorer
    call = f"{name[:-1]}, " if name.endswith(")") else f"{name}("
    echo(f"{output}: {fitted.why}\nin a pipeline: {call}fitted={str(output)!r})")


def cut_off(
    config: ConfigFile,
    pipeline: Annotated[str, argument("NAME", "The retriever or pipeline whose hits are cut.")],
    output: Output,
    overrides: Overrides = None,
    split: Split = "dev",
    n: Annotated[int, option("N", "Scores looked at, and the largest depth.", "-n", "--n")] = 25,
    alpha: Annotated[float, option("X", "Strength of the ridge penalty.")] = 1.0,
    extra: Annotated[int, option("N", "Documents added to the predicted depth.")] = 1,
    success: Annotated[
        float | None, option("SHARE", "Choose --extra so that this share succeeds.")
    ] = None,
    depth: Annotated[int, option("N", "Candidates for each query.")] = 100,
    rebuild: Rebuild = False,
) -> None:
    """Fit how deep to rerank, query by query.

    A reranker reads the file: `bm25 >> cross(depth=100, cut_off='cut.json')`.

    Example:
      sluice fit cut-off x.yaml hybrid --output cut.json
    """
    from sluice.retrieval.experiments.tuning.depth_fitting import fit_experiment_cut_off

    rule, report = fit_experiment_cut_off(
        config, pipeline, overrides or [], rebuild=rebuild, split=split, depth=depth,
        n=n, alpha=alpha, extra=extra, success=success,
    )  # fmt: skip
    rule.save(output)
    queries = plural(report.queries, f"{split} query")
    echo(f"{output}: {queries}, mean depth {report.mean_depth:.1f}, success {report.success:.4f}")


def exit_(
    config: ConfigFile,
    pipeline: Reranking,
    output: Output,
    overrides: Overrides = None,
    split: Split = "dev",
    measure: Annotated[
        str, option("MEASURE", "The measure to preserve.", "-m", "--measure")
    ] = "nDCG@10",
    epsilon: Annotated[float, option("X", "Loss of the measure that is allowed.")] = 0.01,
    kind: Kind = "margin",
    temperature: Temperature = 1.0,
    bound: Annotated[
        str,
        option(
            "BOUND", "Keep --epsilon on dev, or as a bound on new queries: expected or hoeffding."
        ),
    ] = "dev",
    rebuild: Rebuild = False,
) -> None:
    """Fit which queries skip the last reranker.

    A reranker reads the file: `bm25 >> cross(depth=100, exit='exit.json')`.

    Example:
      sluice fit exit x.yaml cascade --epsilon 0.005 --output exit.json
    """
    from sluice.retrieval.experiments.tuning.depth_fitting import fit_experiment_exit

    fitted = fit_experiment_exit(
        config, pipeline, overrides or [], rebuild=rebuild, split=split,
        measure=measure, epsilon=epsilon, kind=kind, temperature=temperature, bound=bound,
    )  # fmt: skip
    fitted.save(output)
    queries = plural(fitted.queries, f"{split} query")
    echo(
        f"{output}: {fitted.exited:.1%} of {queries} exit, loss "
        f"{fitted.loss:.4f}; {fitted.measure} {fitted.value:.4f} of {fitted.full:.4f}"
    )


def no_answer(
    config: ConfigFile,
    pipeline: Annotated[str, argument("NAME", "The pipeline or retriever.")],
    output: Output,
    overrides: Overrides = None,
    unanswerable: Annotated[
        str | None,
        option(
            "NAME",
            "Queries without an answer: another dataset, of which the train queries are taken, or "
            "a file (.txt, .jsonl); beside judged queries without a relevant document.",
        ),
    ] = None,
    split: Split = "dev",
    kind: Kind = "energy",
    temperature: Temperature = 1.0,
    refused: Annotated[
        float, option("SHARE", "Answerable queries that may be refused, at most.")
    ] = 0.05,
    rebuild: Rebuild = False,
) -> None:
    """Fit which queries have no answer here.

    They get no hits by a pipeline that reads the file:
    `abstain(dense, fitted='no-answer.json')`.

    Example:
      sluice fit no-answer x.yaml dense --unanswerable scifact --output no-answer.json
    """
    from sluice.retrieval.experiments.tuning.depth_fitting import fit_experiment_abstention

    fitted = fit_experiment_abstention(
        config, pipeline, overrides or [], unanswerable=unanswerable, rebuild=rebuild, split=split,
        kind=kind, temperature=temperature, refused=refused,
    )  # fmt: skip
    fitted.save(output)
    echo(
        f"{output}: {fitted.refused:.1%} of {plural(fitted.answerable, f'{split} query')} with an "
        f"answer get no hits, {fitted.caught:.1%} of {fitted.unanswerable:,} without one"
    )
    shown = sorted(fitted.auroc.items(), key=lambda each: -each[1])
    echo(f"AUROC: {', '.join(f'{name} {value:.3f}' for name, value in shown)}")


def ranker(
    config: ConfigFile,
    overrides: Overrides = None,
    folds: Annotated[
        int | None, option("N", "Cross-validate in N folds of queries; keep no ranker.")
    ] = None,
    rebuild: Rebuild = False,
) -> None:
    """Train a ranker over features (LTR).

    The section `ranker` of the file sets it up. Features are BM25, language models, matches and
    their positions, and the scores of retrievers; the model is LambdaMART (LightGBM) or linear. A
    pipeline uses the folder: `hybrid >> ltr(bm25, dense, model='OUTPUT/ranker', depth=200)`.

    Examples:
      sluice fit ranker configs/ltr.yaml
      sluice fit ranker configs/ltr.yaml --folds 5
    """
    from sluice.retrieval import jobs

    if folds is not None:
        report = jobs.ltr_folds(config, overrides or [], folds=folds, rebuild=rebuild)
        echo(f"{report}\n\n{_first_rows(report.importances)}")
        return
    trained = jobs.ltr(config, overrides or [], rebuild=rebuild)
    echo(str(_first_rows(trained.ranker.importances())))
    echo(
        f"\n{trained.path}: trained on {trained.queries:,} queries; nDCG@10 of "
        f"{trained.dev_queries:,} dev queries {trained.dev:.4f}, before reranking "
        f"{trained.dev_given:.4f}"
    )


def _first_rows(table: Table) -> Table:
    return Table(table.columns, dict(list(table.rows.items())[:SHOWN]))


def quality(
    dataset: DatasetName,
    output: Annotated[Path, option("FILE", "The parquet file of scores to write.")],
    by: Annotated[
        str,
        option(
            "SIGNAL",
            "Score by head (learnt from the train judgements), text (by a model that reads "
            "documents alone), length, itn (information to noise), unigram or perplexity (of a "
            "language model), or norm (of the vectors).",
        ),
    ] = "head",
    model: Annotated[
        str | None,
        option(
            "MODEL",
            "A dense encoder, for norm and --head; a causal or masked language model, for "
            "perplexity; for text a model trained by examples: {type: quality}, or a language "
            "model that answers true or false.",
        ),
    ] = None,
    retriever: Annotated[
        Path | None, of_head("FOLDER", "A dense retriever of this corpus, whose vectors are read.")
    ] = None,
    head: Annotated[
        Path | None,
        of_head(
            "FILE",
            "Use a head that --save-head wrote, instead of fitting one. With --model the "
            "corpus is encoded, and no retriever is needed.",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        of_head(
            "LABELS",
            "A document's target: its share of the queries, or any (relevant to some query).",
            default="share",
        ),
    ] = None,
    loss: Annotated[str | None, of_head("LOSS", "bce or pairwise.", default="bce")] = None,
    l2: Annotated[float | None, of_head("X", "Weight of the L2 penalty.", default="1.0")] = None,
    save_head: Annotated[
        Path | None,
        of_head("FILE", "Save the fitted head as safetensors, for --head.", "--save-head"),
    ] = None,
    allow: Allow = None,
) -> None:
    """Score which documents are worth indexing.

    A retriever leaves out the worst of them: `prune: {scores: quality.parquet, share: 0.3}`. A
    saved head scores another corpus, or documents that are not indexed yet.

    Examples:
      sluice fit quality scifact --retriever R --output quality.parquet --save-head head.safetensors
      sluice fit quality new-corpus --head head.safetensors --model MODEL --output new.parquet
      sluice fit quality scifact --by length --output quality.parquet
      sluice fit quality new-corpus --by text --model runs/quality/model --output new.parquet
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.retrievers.quality.scorers import score_quality

    check_choice(by, "--by", QUALITY_SIGNALS)
    fitting = {"labels": labels, "loss": loss, "l2": l2}
    if by == "head":
        if head is None:
            refuse_options("for a fitted head; give --head too", model=model)
            scores = _scores_by_fit(dataset, retriever, fitting, save_head, allowed(allow))
        else:
            refuse_options("for fitting, not for --head", save_head=save_head, **fitting)
            scores = _scores_by_saved_head(dataset, head, retriever, model, allowed(allow))
    else:
        refuse_options(
            "for --by head",
            retriever=retriever,
            head=head,
            save_head=save_head,
            allow=allow,
            **fitting,
        )
        corpus = load_dataset(dataset, None).corpus
        scores = score_quality(corpus, _signal(by, corpus, model))
    scores.save(output)
    echo(f"{output}: quality of {len(scores):,} documents by {scores.by}")


def _scores_by_fit(
    dataset: str,
    folder: Path | None,
    fitting: dict[str, Any],
    save: Path | None,
    allow: Sequence[str],
) -> Any:
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.retrievers.quality.head import score_retriever, train_quality_head
    from sluice.retrieval.retrievers.retriever import Retriever

    if folder is None:
        raise ConfigError("--by head: needs --retriever, a dense retriever's folder, or --head")
    retriever = Retriever.open(folder, allow=allow)
    train = load_dataset(dataset, "train")
    options = {name: value for name, value in fitting.items() if value is not None}
    fitted = train_quality_head(retriever, train.qrels, **options)
    if save is not None:
        fitted.save(save)
    return score_retriever(retriever, fitted)


def _scores_by_saved_head(
    dataset: str, file: Path, folder: Path | None, model: str | None, allow: Sequence[str]
) -> Any:
    from sluice.retrieval.retrievers.quality.scorers import HeadQuality, score_quality
    from sluice.training.rankers.quality_head import QualityHead

    saved = QualityHead.load(file)
    if (folder is None) == (model is None):
        raise ConfigError(
            "--head: needs --retriever, whose vectors are scored, or --model, which encodes them"
        )
    if folder is not None:
        from sluice.retrieval.retrievers.quality.head import score_retriever
        from sluice.retrieval.retrievers.retriever import Retriever

        return score_retriever(Retriever.open(folder, allow=allow), saved)
    from sluice.encoders.dense.encoder import DenseEncoder
    from sluice.retrieval.datasets.dataset import load_dataset

    encoder = DenseEncoder.from_pretrained(str(model))
    return score_quality(load_dataset(dataset, None).corpus, HeadQuality(encoder, saved))


def _signal(by: str, corpus: Any, model: str | None) -> Any:
    from sluice.retrieval.retrievers.quality import scorers as passage_quality

    if by in ("norm", "perplexity", "text") and model is None:
        raise ConfigError(f"--by {by}: needs --model, a folder or hub id")
    if by == "norm":
        from sluice.encoders.dense.encoder import DenseEncoder

        return passage_quality.Magnitude(DenseEncoder.from_pretrained(str(model), normalize=False))
    if by == "text":
        from sluice.retrieval.retrievers.quality.text_models import text_quality

        return text_quality(str(model))
    if by == "perplexity":
        from sluice.retrieval.retrievers.quality.perplexity import Perplexity

        return Perplexity.from_pretrained(str(model))
    if by == "unigram":
        return passage_quality.UnigramLikelihood.fit(corpus)
    return passage_quality.Length() if by == "length" else passage_quality.InformationToNoise()


def adapter(
    retriever: Annotated[
        Path, argument("RETRIEVER", "The folder of a dense retriever, whose vectors are read.")
    ],
    dataset: DatasetName,
    output: Annotated[Path, option("FOLDER", "The model folder to write.")],
    split: Annotated[str, option("SPLIT", "The split whose judgements are learnt from.")] = "train",
    top: Annotated[
        int, option("N", "Hits of a query that count as what the encoder finds.", min=1)
    ] = 10,
    depth: Annotated[int, option("N", "Hits of a query that are learnt from.", min=1)] = 100,
    steps: Annotated[int, option("N", "Steps of training.", min=1)] = 400,
    hidden: Annotated[
        int | None, option("N", "Units of the hidden layer.", min=1, default="as a vector")
    ] = None,
    learning_rate: Annotated[float, option("X", "The learning rate of AdamW.")] = 1.0e-3,
    seed: Annotated[int, option("N", "Random seed.")] = 13,
    allow: Allow = None,
) -> None:
    """Fit an adapter that finds errors (RRRA).

    It learns from judgements which of a dense retriever's hits are relevant, by their vectors. As
    `judge:` of mined negatives it drops false ones, and as a reranker of `{type: rrra, model:
    FOLDER}` it reorders hits.

    Examples:
      sluice fit adapter runs/x/retrievers/dense nfcorpus --output runs/adapter
      sluice mine runs/x/retrievers/dense nfcorpus --judge runs/adapter --output negatives.jsonl
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.retrievers.retriever import Retriever
    from sluice.retrieval.training_data.false_negatives import fit_adapter

    if split == "test":
        raise ConfigError("--split test: nothing is learnt from test queries; take train or dev")
    if depth < top:
        raise ConfigError(f"--depth {depth}: expected --top, {top}, or more")
    data = load_dataset(dataset, split)
    fitted = fit_adapter(
        Retriever.open(retriever, allow=allowed(allow)), data, top=top, depth=depth, steps=steps,
        hidden=hidden, learning_rate=learning_rate, seed=seed,
    )  # fmt: skip
    fitted.save_pretrained(output)
    echo(
        f"{output}: an adapter of {fitted.adapter.hidden:,} units for vectors of "
        f"{fitted.adapter.dim:,} dimensions, from {plural(len(data.qrels), f'{split} query')}\n"
        f"next: sluice mine {retriever} {dataset} --judge {output} --output FILE"
    )


COMMANDS: dict[str, Command] = {
    "fusion": fusion, "rerank": rerank, "cut-off": cut_off, "exit": exit_, "no-answer": no_answer,
    "ranker": ranker,
    "quality": quality, "adapter": adapter,
}  # fmt: skip
