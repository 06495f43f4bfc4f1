"""``quality``: which documents of a corpus are worth indexing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.encoders.foundation.errors import ConfigError, suggest

WAYS = ("head", "length", "itn", "unigram", "perplexity", "norm")


def quality(
    dataset: Annotated[str, typer.Argument(help="A dataset: folder, ir_datasets id, name.")],
    output: Annotated[Path, typer.Option(help="The scores to write, parquet.")],
    by: Annotated[
        str,
        typer.Option(
            help="head (learnt from train judgements), length, itn (information to noise), "
            "unigram or perplexity (of a language model), norm (of an encoder's vectors)."
        ),
    ] = "head",
    retriever: Annotated[
        Path | None, typer.Option(help="head: a dense retriever over this corpus.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="norm: a dense encoder. perplexity: a causal or masked language model."),
    ] = None,
    labels: Annotated[str, typer.Option(help="head: share or any.")] = "share",
    loss: Annotated[str, typer.Option(help="head: bce or pairwise.")] = "bce",
    l2: Annotated[float, typer.Option(help="head: the weight of its squared weights.")] = 1.0,
    save_head: Annotated[
        Path | None, typer.Option("--save-head", help="head: write it here, safetensors.")
    ] = None,
) -> None:
    """Score the documents of a corpus, for retrievers that leave the worst of them out.

    The scores are named by a retriever in YAML: `prune: {scores: quality.parquet, share: 0.3}`.

    Example:  sluice quality scifact --retriever runs/x/retrievers/dense --output quality.parquet
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.retrievers.quality.scorers import score_quality

    if by not in WAYS:
        raise ConfigError(f"--by: {by!r}; expected one of {', '.join(WAYS)}{suggest(by, WAYS)}")
    if by == "head":
        found = _by_head(dataset, retriever, labels, loss, l2, save_head)
    else:
        corpus = load_dataset(dataset, None).corpus
        found = score_quality(corpus, _scorer(by, corpus, model))
    found.save(output)
    typer.echo(f"{output}: quality of {len(found):,} documents by {found.by}")


def _by_head(
    dataset: str, folder: Path | None, labels: Any, loss: Any, l2: float, save: Path | None
) -> Any:
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.retrievers.quality.head import score_retriever, train_quality_head
    from sluice.retrieval.retrievers.retriever import Retriever

    if folder is None:
        raise ConfigError("--by head: needs --retriever, a dense retriever's folder")
    retriever = Retriever.open(folder)
    train = load_dataset(dataset, "train")
    head = train_quality_head(retriever, train.qrels, labels=labels, loss=loss, l2=l2)
    if save is not None:
        head.save(save)
    return score_retriever(retriever, head)


def _scorer(by: str, corpus: Any, model: str | None) -> Any:
    from sluice.retrieval.retrievers.quality import scorers as passage_quality

    if by in ("norm", "perplexity") and model is None:
        raise ConfigError(f"--by {by}: needs --model, a folder or hub id")
    if by == "norm":
        from sluice.encoders.dense.encoder import DenseEncoder

        return passage_quality.Magnitude(DenseEncoder.from_pretrained(str(model), normalize=False))
    if by == "perplexity":
        from sluice.retrieval.retrievers.quality.perplexity import Perplexity

        return Perplexity.from_pretrained(str(model))
    if by == "unigram":
        return passage_quality.UnigramLikelihood.fit(corpus)
    return passage_quality.Length() if by == "length" else passage_quality.InformationToNoise()


COMMANDS = (quality,)
