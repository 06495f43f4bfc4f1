"""The verbs that fit small models: rankers over features, judges of documents and of errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import (
    Allow,
    ConfigFile,
    DatasetName,
    Overrides,
    Rebuild,
    Shown,
    allowed,
    plural,
    refuse_options,
    takes,
)
from sluice.retrieval.evaluation.table import Table

QualitySignal = Literal["head", "text", "length", "itn", "unigram", "perplexity", "norm"]


@takes(
    "sluice.retrieval.retrievers.quality.scores:train_quality_head",
    panels={"Quality head": "retriever head labels loss l2 save_head"},
)
def quality(
    dataset: DatasetName,
    *,
    output: Annotated[Path, "The parquet file of scores to write."],
    by: Annotated[
        QualitySignal,
        "SIGNAL",
        "Score by head (learnt from the train judgements), text (by a model that reads "
        "documents alone), length, itn (information to noise), unigram or perplexity (of "
        "a language model), or norm (of the vectors).",
    ] = "head",
    model: Annotated[
        str | None,
        "A dense encoder, for norm and --head; a causal or masked language model, for "
        "perplexity; for text a model trained by examples: {type: quality}, or a "
        "language model that answers true or false.",
    ] = None,
    retriever: Annotated[
        Path | None,
        "FOLDER",
        "A dense retriever of this corpus, whose vectors are read.",
    ] = None,
    head: Annotated[
        Path | None,
        "Use a head that --save-head wrote, instead of fitting one. With --model the "
        "corpus is encoded, and no retriever is needed.",
    ] = None,
    save_head: Annotated[Path | None, "Save the fitted head as safetensors, for --head."] = None,
    allow: Allow = None,
    **fitting: Any,
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
    from sluice.retrieval.retrievers.quality.scores import score_retriever, train_quality_head
    from sluice.retrieval.retrievers.retriever import Retriever

    if folder is None:
        raise ConfigError("--by head: needs --retriever, a dense retriever's folder, or --head")
    retriever = Retriever.open(folder, allow=allow)
    train = load_dataset(dataset, "train")
    fitted = train_quality_head(retriever, train.qrels, **fitting)
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
        from sluice.retrieval.retrievers.quality.scores import score_retriever
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
        from sluice.retrieval.retrievers.quality.scorers import text_quality

        return text_quality(str(model))
    if by == "perplexity":
        from sluice.retrieval.retrievers.quality.perplexity import Perplexity

        return Perplexity.from_pretrained(str(model))
    if by == "unigram":
        return passage_quality.UnigramLikelihood.fit(corpus)
    return passage_quality.Length() if by == "length" else passage_quality.InformationToNoise()


SHOWN = 15  # features


def ranker(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    folds: Annotated[int | None, "Cross-validate in N folds of queries; keep no ranker."] = None,
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


@takes(
    "sluice.retrieval.training_data.false_negatives:fit_adapter",
    "sluice.training.rankers.error_adapter:fit_error_adapter",
    hidden=Shown("as a vector"),
)
def adapter(
    retriever: Annotated[
        Path, "RETRIEVER", "The folder of a dense retriever, whose vectors are read."
    ],
    dataset: DatasetName,
    *,
    output: Annotated[Path, "FOLDER", "The model folder to write."],
    split: Annotated[str, "The split whose judgements are learnt from."] = "train",
    allow: Allow = None,
    **values: Any,
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
    data = load_dataset(dataset, split)
    fitted = fit_adapter(Retriever.open(retriever, allow=allowed(allow)), data, **values)
    fitted.save_pretrained(output)
    echo(
        f"{output}: an adapter of {fitted.adapter.hidden:,} units for vectors of "
        f"{fitted.adapter.dim:,} dimensions, from {plural(len(data.qrels), f'{split} query')}\n"
        f"next: sluice mine {retriever} {dataset} --judge {output} --output FILE"
    )
