"""The verb that scores which documents are worth indexing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.messages import echo
from sluice.retrieval.cli.terminal.options import Allow, DatasetName, allowed, refuse_options
from sluice.retrieval.cli.terminal.verbs import Shown

QualitySignal = Literal["head", "text", "length", "itn", "unigram", "perplexity", "norm"]


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
        Shown(panel="Quality head"),
    ] = None,
    head: Annotated[
        Path | None,
        "Use a head that --save-head wrote, instead of fitting one. With --model the "
        "corpus is encoded, and no retriever is needed.",
        Shown(panel="Quality head"),
    ] = None,
    labels: Annotated[
        str | None,
        "A document's target: its share of the queries, or any (relevant to some query).",
        Shown("share", panel="Quality head"),
    ] = None,
    loss: Annotated[str | None, "bce or pairwise.", Shown("bce", panel="Quality head")] = None,
    l2: Annotated[
        float | None, "Weight of the L2 penalty.", Shown("1.0", panel="Quality head")
    ] = None,
    save_head: Annotated[
        Path | None, "Save the fitted head as safetensors, for --head.", Shown(panel="Quality head")
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
    from sluice.retrieval.retrievers.quality.scores import score_retriever, train_quality_head
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
