"""The verbs that fit small models: a ranker over features, and an adapter that finds errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.messages import echo
from sluice.retrieval.cli.terminal.options import (
    Allow,
    ConfigFile,
    DatasetName,
    Overrides,
    Rebuild,
    allowed,
    plural,
)
from sluice.retrieval.cli.terminal.verbs import Shown, takes
from sluice.retrieval.evaluation.table import Table

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
