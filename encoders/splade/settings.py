"""The settings of a SPLADE encoder: their values, and what they must be together."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from sluice.encoders.foundation.errors import ConfigError

Pooling: TypeAlias = Literal["max", "sum"]
Activation: TypeAlias = Literal["relu", "log1p_relu"]
QueryModel: TypeAlias = Literal["shared", "bow", "idf"]
Lexical: TypeAlias = Literal["none", "query", "document", "both"]
_CHOICES = {
    "pooling": get_args(Pooling), "activation": get_args(Activation),
    "query_model": get_args(QueryModel), "lexical": get_args(Lexical),
}  # fmt: skip


def check_choices(**values: str) -> None:
    """Raise ``ConfigError`` for a setting whose value is not among its choices."""
    for name, value in values.items():
        if value not in _CHOICES[name]:
            raise ConfigError(f"{name}: {value!r}; known: {', '.join(_CHOICES[name])}")


def check_pruning(
    query_top_k: int | None,
    document_top_k: int | None,
    prune_quantile: float | None,
    term_floors: Any,
) -> None:
    """Raise ``ConfigError`` for a limit below 1, or a quantile that is not between 0 and 1."""
    for name, limit in (("query_top_k", query_top_k), ("document_top_k", document_top_k)):
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ConfigError(f"{name}: {limit!r}; expected 1 or more, or null for no limit")
    if prune_quantile is not None and not 0 < prune_quantile < 1:
        raise ConfigError(
            f"prune_quantile: {prune_quantile!r}; expected a share of each term's postings, "
            "above 0 and below 1, or null to keep all"
        )
    if term_floors is not None and prune_quantile is None:
        raise ConfigError("term_floors: given without the prune_quantile they belong to")


def check_static(query_model: QueryModel, lexical: str, query_top_k: int | None) -> None:
    """Raise ``ConfigError`` for settings that would change nothing beside a query model."""
    if query_model == "bow" and query_top_k is not None:
        raise ConfigError(
            f"query_top_k: {query_top_k} does nothing: with query_model: bow a query's terms all "
            "weigh 1 and are kept; leave it out, or set query_model: idf"
        )
    if query_model != "shared" and lexical == "query":
        raise ConfigError(
            f"lexical: query does nothing: with query_model: {query_model} a query has no terms "
            "but its own; leave it out"
        )


def check_trained_idf(
    query_model: QueryModel, *, train_idf: bool, learning_rate: float | None
) -> None:
    """Raise ``ConfigError`` for query weights to train that the encoder does not have."""
    if train_idf and query_model != "idf":
        raise ConfigError(f"train_idf: query_model is {query_model!r}; expected 'idf'")
    if learning_rate is not None and not (train_idf and learning_rate > 0):
        raise ConfigError(
            f"idf_learning_rate: {learning_rate!r}; expected a number above 0, with train_idf: true"
        )
