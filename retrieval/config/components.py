"""Builds encoders, indexes, losses and scorers from the components of a config; checks them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sluice.encoders.encoder import encodes
from sluice.encoders.foundation.build import build, check
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layout import (
    Layout,
    position_limit,
    read_layout,
    read_object,
    transformer_folder,
)
from sluice.encoders.model_files.locate import local_folder
from sluice.encoders.table import APART, ENCODERS, KNOWN, TYPES, WRITTEN, traits_of
from sluice.indexing.table import DATABASES, INDEXES, SHARDABLE, check_fits, default_spec
from sluice.retrieval.config.other_names import other_index, refuse_other_loss
from sluice.retrieval.config.sections import CachedEncoding, PruneSection, RetrieverSection
from sluice.retrieval.documents.document import Document
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.execution.executor import EXECUTORS, Executor
from sluice.retrieval.execution.group import LAUNCHERS, Group
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.pipelines.table import REMOTE, SCORERS
from sluice.retrieval.retrievers.corpus.late_chunks import check_one_process
from sluice.training.losses import LOSSES
from sluice.training.losses.base import LossBase, as_loss

Allow = Collection[str] | None  # classes of your own that types may name; None is all
LENGTHS = {"query_length": 3, "document_length": 3, "max_length": 5}  # the least of each
START_KEY = "start"  # of a SPLADE encoder to be trained: make a head for an encoder without one

DENSE_ENCODERS = tuple(name for name, each in TYPES.items() if each.form == "dense")
SPARSE_ENCODERS = tuple(name for name, each in TYPES.items() if each.form == "sparse")


def make_encoder(
    spec: Mapping[str, Any], *, where: str, model: Callable[[str], str], reranker: bool = False
) -> Any:
    """Make the encoder or cross-encoder a component describes.

    ``model`` maps the names of models trained in this experiment to their folders; a server has
    its own names. Of a type that both have (``http``) it is the encoder, or the ``reranker``.
    """
    arguments = dict(spec)
    if isinstance(arguments.get("model"), str) and spec.get("type") not in REMOTE:
        arguments["model"] = model(arguments["model"])
    for side, tower in towers_in(arguments).items():
        if isinstance(tower.get("model"), str):
            arguments[side] = {**tower, "model": model(tower["model"])}
    table = {**ENCODERS, **SCORERS} if reranker else {**SCORERS, **ENCODERS}
    made = build(arguments, table, where=where)
    hooks = ScorerHooks(made)
    if not (encodes(made) or hooks.scores_pairs or hooks.scores_lists):
        raise ConfigError(
            f"{where}.type: {spec['type']!r} is neither an encoder nor a reranker: it made a "
            f"{type(made).__name__}; expected encode_queries and encode_documents, or score"
        )
    return made


def towers_in(spec: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the components of separate towers by side; none in another encoder's component."""
    traits = traits_of(spec)
    if traits is None or not traits.sides:
        return {}
    sides = {side: spec.get(side) for side in ("query", "document")}
    return {side: tower for side, tower in sides.items() if isinstance(tower, Mapping)}


def check_towers(spec: Mapping[str, Any], *, where: str) -> None:
    """Check the towers in an encoder's component, if it has any."""
    traits = traits_of(spec)
    known = () if traits is None else traits.sides
    for side, tower in towers_in(spec).items():
        check(tower, {kind: ENCODERS[kind] for kind in known}, where=f"{where}.{side}", allow=())
        check_lengths(tower, where=f"{where}.{side}")


def check_lengths(spec: Mapping[str, Any], *, where: str) -> None:
    """Refuse lengths that a model does not take, where it is on this machine; loads no weights."""
    limit = _most_tokens(local_folder(str(spec.get("model"))))
    for key, least in LENGTHS.items():
        length = spec.get(key)
        if isinstance(length, int) and limit is not None and not least <= length <= limit:
            raise ConfigError(f"{where}.{key}: {length}; the model takes {least} to {limit} tokens")


def _most_tokens(folder: Path | None) -> int | None:
    """Return the tokens that a model's folder says it takes; None where it does not."""
    keys = ("max_position_embeddings", "model_type", "pad_token_id")
    with suppress(ModelError):
        config = {} if folder is None else read_object(transformer_folder(folder) / "config.json")
        return position_limit(*map(config.get, keys))
    return None


def vector_kind(spec: Mapping[str, Any]) -> Any:
    """Return the type of encoder that makes a component's vectors; for towers, the documents'.

    For one head of three it is the type that makes such vectors. None for a saved folder of towers
    or heads, which may not exist yet.
    """
    traits = traits_of(spec)
    if traits is not None and traits.heads:
        return traits.heads.get(str(spec.get("head")))
    if traits is not None and traits.sides:
        return towers_in(spec).get("document", {}).get("type")
    return spec.get("type")


def trained_kind(spec: Mapping[str, Any]) -> Any:
    """Return the type of encoder that is trained: that of its vectors, but three heads are one.

    Some learn as another type does: static encoders as dense ones, rerankers as cross-encoders.
    """
    traits = traits_of(spec)
    if traits is not None and traits.heads:
        return spec["type"]
    kind = vector_kind(spec)
    known = KNOWN.get(kind)
    return known.learns_as or kind if known else kind


def make_index(spec: Mapping[str, Any] | None, *, where: str) -> Any:
    """Make the empty index a component describes; None: flat for dense, inverted for sparse."""
    return None if spec is None else build(spec, INDEXES, where=where)


def make_executor(spec: Mapping[str, Any]) -> Executor:
    """Make the executor a component describes; nothing is started."""
    made: Executor = build(spec, EXECUTORS, where="executor", allow=())
    return made


def make_launcher(spec: Mapping[str, Any]) -> Group:
    """Make the group of processes a component describes; none is started."""
    made: Group = build(spec, LAUNCHERS, where="launch", allow=())
    return made


def check_index(spec: Any, encoder: Mapping[str, Any], *, where: str, allow: Allow = None) -> None:
    """Check an index, and that it can hold the vectors of a retriever's encoder.

    Types that are not built in are not judged: what vectors they take is theirs to say.
    """
    if spec is None:
        return
    name = str(spec.get("type")) if isinstance(spec, Mapping) else ""
    if name not in INDEXES and other_index(name):
        raise ConfigError(f"{where}.type: unknown type {name!r}; {other_index(name)}")
    check(spec, INDEXES, where=where, allow=allow)
    traits = traits_of(vector_kind(encoder))
    if traits is not None:
        check_fits(traits.form, str(vector_kind(encoder)), spec, where)
    if name in INDEXES:
        index = build(spec, INDEXES, where=where)
        if name in DATABASES and traits is not None and traits.form in ("dense", "sparse"):
            try:
                index.check_vectors(are_sparse=traits.form == "sparse")
            except ConfigError as error:
                raise ConfigError(f"{where}.{error}") from None
        if traits is not None and traits.one_way:
            from sluice.retrieval.retrievers.corpus.fill_index import check_one_way

            check_one_way(index, where)


def pruned(
    section: PruneSection | None,
    corpus: Iterable[Document],
    *,
    model: Callable[[str], str] = str,
    score: bool = True,
) -> Iterable[Document]:
    """Return the corpus without the documents that a ``prune`` section leaves out.

    Its model, which ``model`` maps to a folder, scores the whole corpus now; without ``score`` the
    corpus is returned complete where that takes a model.
    """
    if section is None:
        return corpus
    from sluice.retrieval.retrievers.quality.scores import PrunedCorpus, QualityScores

    if section.scores is not None:
        return PrunedCorpus(corpus, QualityScores.load(section.scores), section.share)
    if not score or section.share == 0:
        return corpus
    from sluice.retrieval.retrievers.quality.scorers import score_quality, text_quality

    scorer = text_quality(model(str(section.model)))
    return PrunedCorpus(corpus, score_quality(corpus, scorer), section.share)


def make_loss(spec: Mapping[str, Any], *, where: str, allow: Allow = None) -> LossBase:
    """Make the loss a component describes."""
    refuse_other_loss(str(spec.get("type", "")), where)
    return as_loss(build(spec, LOSSES, where=where, allow=allow), where)


def check_retriever(section: RetrieverSection, where: str, allow: Allow = None) -> None:
    """Check a retriever's encoder and index; what costs nothing to make is made."""
    if START_KEY in section.encoder and section.encoder.get("type") in ENCODERS:
        raise ConfigError(
            f"{where}.encoder.{START_KEY}: works only under train:, where the started model is "
            "trained; train it there, and give its name as the model here"
        )
    check(section.encoder, ENCODERS, where=f"{where}.encoder", allow=allow)
    check_towers(section.encoder, where=f"{where}.encoder")
    check_lengths(section.encoder, where=f"{where}.encoder")
    traits = traits_of(section.encoder)
    if traits is not None and traits.heads and section.encoder.get("dim") is not None:
        raise ConfigError(
            f"{where}.encoder.dim: draws new heads, which are not trained here; train them under "
            "train: (loss: {type: three_heads}), and give that name as the model here, without dim"
        )
    check_new_heads(section.encoder, f"{where}.encoder")
    if traits is not None and traits.fitted:
        build(section.encoder, ENCODERS, where=f"{where}.encoder")
    check_index(section.index, section.encoder, where=f"{where}.index", allow=allow)
    usual = (None, CachedEncoding(), CachedEncoding(cache=None))
    if section.encoding not in usual and traits is not None and traits.form in WRITTEN:
        raise ConfigError(
            f"{where}.encoding: a {section.encoder['type']} encoder makes token ids of documents, "
            "which are not kept as vectors are; leave it out"
        )
    _check_passages(section, f"{where}.passages")
    if section.sharded:
        _check_shards(section, f"{where}.{'shards' if section.shards else 'shard_size'}")
    if section.search:
        _check_search(section, f"{where}.search")


def _check_shards(section: RetrieverSection, where: str) -> None:
    """Refuse shards of what answers a query from the whole collection only."""
    kind = vector_kind(section.encoder)
    traits = traits_of(kind)
    if traits is not None and traits.form not in (*APART, "scores"):
        raise ConfigError(
            f"{where}: the scores of a {kind} encoder need the whole collection; leave it out"
        )
    if section.index is None:
        return
    index = section.index["type"]
    if index in DATABASES:
        raise ConfigError(
            f"{where}: an index of type {index} lies in a database, which parts it by its own "
            f"means; leave {where.rpartition('.')[2]} out"
        )
    if index in INDEXES and index not in SHARDABLE:
        raise ConfigError(
            f"{where}: an index of type {index} learns from the whole collection, or is chosen by "
            f"it; expected one of {', '.join(SHARDABLE)}, or leave {where.rpartition('.')[2]} out"
        )


def _check_passages(section: RetrieverSection, where: str) -> None:
    """Refuse passages that the encoder does not read whole, or has no means of, as far as known.

    A model's folder that is here says its pooling and length; one that cannot be read is refused
    where it is opened.
    """
    passages = section.passages
    if passages is None:
        return
    of = {**section.encoder, **towers_in(section.encoder).get("document", {})}
    kind, pooling, layout, positions = of["type"], of.get("pooling"), Layout(), None
    traits = traits_of(kind)
    takes = traits is not None and traits.layered
    folder = local_folder(str(of.get("model"))) if takes else None
    if folder is not None:
        with suppress(ModelError):
            layout = read_layout(folder)
            positions = _most_tokens(folder)
    pooling = pooling or layout.pooling or None
    if passages.late:
        whole = takes or (traits is not None and bool(traits.sides))
        if kind in ENCODERS and (not whole or pooling not in (None, "mean")):
            what = f"a {kind} encoder" if pooling is None else f"pooling: {pooling}"
            raise ConfigError(
                f"{where}.late: {what} makes no means of token states; late chunking needs a dense "
                "encoder with pooling: mean: leave late out"
            )
        check_one_process(section.encoding, where.removesuffix("passages"))
    noted = layout.sidecar.get("document_length") or layout.max_length
    lengths = [of.get("document_length") or noted, positions]
    most = min((each for each in lengths if isinstance(each, int)), default=passages.length)
    if passages.length > most:
        raise ConfigError(
            f"{where}.length: {passages.length} tokens; the encoder reads {most} of a document, "
            "special tokens among them: take a smaller length, or a larger document_length if the "
            "model allows it"
        )


def check_new_heads(spec: Mapping[str, Any], where: str) -> None:
    """Raise ``ConfigError`` for a model with three heads whose ``seed`` draws none of them."""
    traits = traits_of(spec)
    if traits is None or not traits.heads or spec.get("dim") is not None:
        return
    if spec.get("seed") is not None:
        raise ConfigError(
            f"{where}.seed: draws new heads, and only dim asks for them; leave it out"
        )


def check_head(spec: Mapping[str, Any], where: str, remedy: str) -> None:
    """Raise ``ConfigError`` for SPLADE from a model on this machine that has no head for it."""
    model = spec.get("model")
    traits = traits_of(spec)
    starts = traits is not None and traits.starts and START_KEY not in spec
    if not starts or not isinstance(model, str):
        return
    from sluice.encoders.model_files.locate import local_folder
    from sluice.encoders.splade.folder import has_mlm_head

    folder = local_folder(model)
    if folder is not None and (folder / "config.json").exists() and not has_mlm_head(folder):
        raise ConfigError(
            f"{where}.model: {model} has no masked-language-model head, which SPLADE needs; "
            f"{remedy}"
        )


def _check_search(section: RetrieverSection, where: str) -> None:
    """Check search parameters by name and value, where the kind of index is known."""
    from sluice.indexing import Index
    from sluice.indexing.wrappers.fan_out import OWN_PARAMETERS, check_patience

    spec: Mapping[str, Any] | None = section.index
    if spec is None:  # as ``Retriever.build`` chooses
        traits = traits_of(vector_kind(section.encoder))
        spec = None if traits is None else default_spec(traits.form)
    known = spec is not None and spec["type"] in INDEXES
    index: Any = build(spec, INDEXES, where=where) if spec is not None and known else None
    if isinstance(index, Index):
        params = dict(section.search)
        try:
            if section.sharded:
                check_patience(params)
                params = {k: v for k, v in params.items() if k not in OWN_PARAMETERS}
            index.check_params(params)
        except ConfigError as error:
            raise ConfigError(f"{where}: {str(error).removeprefix('params: ')}") from None


def check_measures(measures: Iterable[str], where: str) -> None:
    """Raise ``ConfigError`` for a measure that is unknown."""
    for text in measures:
        try:
            parse_measure(text)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
