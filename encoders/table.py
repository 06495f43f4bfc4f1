"""The built-in encoder types by the names that YAML files and saved folders use.

A new type is a line here: what the house must know of it before it is imported stands in its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from sluice.encoders.foundation.build import Core

Form: TypeAlias = Literal[
    "dense", "sparse", "tokens", "pseudo_queries", "q_net", "ngrams", "identifiers", "parts",
    "scores",
]  # fmt: skip
Model: TypeAlias = Literal["network", "folder", ""]
# What training makes of a text, or of a query and a document. A vector each: ``dense``, ``sparse``
# (of ``words``, or of ``codes`` with the dense vectors below), ``one_way`` where two of one side
# have no score. ``tokens``: a vector for each; ``q_net``: a network for a query; and so on.
Learnt: TypeAlias = Literal[
    "dense", "one_way", "sparse", "words", "codes", "tokens", "pseudo_queries", "q_net", "heads",
    "scores", "rankings", "ngrams", "identifiers",
]  # fmt: skip
Graph: TypeAlias = Literal["last_hidden_state", "head_states", "logits", ""]

# The form of the documents of an encoder whose ``similarity`` is a score of its own.
SCORED: Final[Mapping[str, Form]] = {
    "max_sim": "tokens",
    "attention": "pseudo_queries",
    "q_net": "q_net",
    "ngrams": "ngrams",
    "identifiers": "identifiers",
}
APART: Final = ("dense", "sparse", "tokens", "parts")  # a document's score needs no other document
WRITTEN: Final = ("ngrams", "identifiers")  # documents are token ids, queries what a model writes


@dataclass(frozen=True, slots=True)
class EncoderTraits:
    """A built-in type, and what must be known of it before it is imported.

    ``make`` is the class or classmethod that YAML calls. ``called`` is its name in reports, empty
    for what is never trained, ``task`` the hub's name of what it does. ``form`` is that of its
    documents' vectors: ``q_net`` is a dense one for queries that are networks, ``parts`` is as the
    encoders in it make, ``scores`` a reranker's. ``model`` is what its ``model`` names: a network's
    folder or hub id, another folder of ours, or neither. ``learns_as`` is the type whose losses
    and settings train it, where that is another. ``one_way``: two of its queries, or documents,
    cannot be compared. ``teaches``: it may be a training run's teacher. ``core``: lists of types
    begin with it.

    ``writes`` is the loss by which it learns to write, of an encoder that writes. ``sparsity``:
    penalties may make its vectors sparse. ``projection``: its ``projection`` is checked. ``graph``
    is the output of its exported graph, empty where it has none. ``tunings`` are those it takes,
    where it does not take all, and ``why`` it takes no others. ``opens_alone``: its folders open
    as no other type. ``on_dense``: it starts from a dense encoder, by settings of its own.
    ``layered``: it means token states, which late passages need. ``stays``: it stays in the
    process that opened it. ``varies``: it knows the variance of its queries. ``fitted``: it counts
    a collection, without a model. ``starts``: ``start`` may give it a head. ``sides``: it has an
    encoder of each side, of one of these types. ``heads`` are the types that make a head's
    vectors, of a model with several. ``matches``: it is a head over token vectors.

    ``theirs`` is the class of sentence-transformers that runs its folders, where one does.
    ``module`` is the module by which a folder's ``modules.json`` shows it, and ``folder`` what
    messages call that, where not as reports; ``cached`` what keys of cached vectors call it.
    ``quick``: its folders may open without torch.

    ``learns`` are the forms that a loss gets; none of a type that makes what others make, or that
    is not trained, as ``untrained`` explains. ``untuned`` is why it takes no tuning at all.
    ``experts``: it has some. ``fixed``: its vectors are another's. ``pairs_only``: it makes no
    vector of a text alone. ``no_head``: none learns faster. ``any_text``: what it scores may be a
    document without a query.

    ``variants`` are the arguments of forms, by name, that are made of the same pass of its network.
    ``real`` are published checkpoints that it was measured with here, as ``sluice model get`` names
    them, ``start`` the one that its training runs here begin with. With neither, only models of
    random weights were opened and trained.
    """

    make: str
    called: str = ""
    task: str = ""
    form: Form = "dense"
    model: Model = "network"
    learns_as: str = ""
    one_way: bool = False
    teaches: bool = False
    core: bool = False
    writes: str = ""
    sparsity: bool = False
    projection: bool = False
    graph: Graph = ""
    tunings: tuple[str, ...] = ()
    why: str = ""
    opens_alone: bool = False
    on_dense: bool = False
    layered: bool = False
    stays: bool = False
    varies: bool = False
    fitted: bool = False
    starts: bool = False
    sides: tuple[str, ...] = ()
    heads: Mapping[str, str] = field(default_factory=dict)
    matches: bool = False
    learns: tuple[Learnt, ...] = ()
    untrained: str = ""
    untuned: str = ""
    experts: bool = False
    fixed: bool = False
    pairs_only: bool = False
    no_head: bool = False
    any_text: bool = False
    theirs: str = ""
    module: str = ""
    folder: str = ""
    cached: str = ""
    quick: bool = False
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    real: tuple[str, ...] = ()
    start: str = ""

    @property
    def place(self) -> str:
        """What makes it, with its mark."""
        return Core(self.make) if self.core else self.make

    @property
    def class_name(self) -> str:
        """The name of its class, which ``sluice.encoders`` has."""
        return self.make.partition(":")[2].partition(".")[0]

    @property
    def scores(self) -> bool:
        """Whether it is a reranker, which has no vectors."""
        return self.form == "scores"


def own_form(encoder: Any) -> Form | None:
    """Return the form of the documents of an encoder that compares by a score of its own."""
    from sluice.encoders.encoder import hooks_of  # which loads scipy: verbs' help reads this table

    return SCORED.get(hooks_of(encoder).similarity)


_SIMILAR, _FEATURES, _RANKS = "sentence-similarity", "feature-extraction", "text-ranking"
_DENSE, _LATE = "sluice.encoders.dense", "sluice.encoders.late_interaction"
_OWN = "sluice.encoders.own"

TYPES: Final[Mapping[str, EncoderTraits]] = {
    "bm25": EncoderTraits(
        "sluice.encoders.lexical.bm25:BM25Encoder", form="sparse", model="", teaches=True,
        core=True, fitted=True, cached="BM25Encoder",
        untrained="bm25 counts words; it is fitted, not trained",
    ),
    "concepts": EncoderTraits(
        "sluice.encoders.splade.concepts.encoder:ConceptEncoder.from_pretrained",
        "concept encoder", _FEATURES, "sparse", learns_as="splade", teaches=True, sparsity=True,
        opens_alone=True, on_dense=True, module="Concepts",
        learns=("sparse",),
        start="minilm",
    ),
    "csr": EncoderTraits(
        "sluice.encoders.own.csr:CsrEncoder.from_pretrained",
        "CSR encoder", _FEATURES, "sparse", learns_as="splade", teaches=True, sparsity=True,
        opens_alone=True, theirs="SparseEncoder", module="SparseAutoEncoder",
        learns=("sparse", "codes"),
    ),
    "dense": EncoderTraits(
        f"{_DENSE}.encoder:DenseEncoder.from_pretrained", "dense encoder", _SIMILAR, teaches=True,
        core=True, projection=True, graph="last_hidden_state", layered=True,
        theirs="SentenceTransformer", cached="DenseEncoder", quick=True,
        variants={f"dim-{dim}": {"dim": dim} for dim in (512, 256, 128, 64)},
        learns=("dense",),
        real=("minilm", "mpnet", "e5-small-4bit"), start="minilm",
    ),
    "dsi": EncoderTraits(
        "sluice.encoders.generative.dsi:DsiEncoder.from_pretrained",
        "DSI encoder", "text-generation", "identifiers", writes="identifiers",
        learns=("identifiers",),
    ),
    "experts": EncoderTraits(
        f"{_DENSE}.experts.encoder:ExpertEncoder.from_pretrained",
        "dense encoder with experts", _SIMILAR, learns_as="dense", teaches=True, opens_alone=True,
        on_dense=True, tunings=("experts", "bitfit", "ln_tuning"),
        why="adds parts to layers that exist several times",
        learns=("dense",), experts=True, module="Experts",
        folder="sparse-expert encoder",
        start="minilm",
    ),
    "gaussian": EncoderTraits(
        f"{_OWN}.gaussian.encoder:GaussianEncoder.from_pretrained",
        "Gaussian encoder", _FEATURES, one_way=True, teaches=True, projection=True,
        graph="last_hidden_state", varies=True, module="Gaussian",
        learns=("one_way",),
        start="minilm",
    ),
    "http": EncoderTraits(f"{_DENSE}.remote.encoder:HttpEncoder", model="", stays=True,
        untrained="an http encoder is a server's, which is trained where it runs",
    ),
    "hypencoder": EncoderTraits(
        f"{_OWN}.hypencoder.encoder:Hypencoder.from_pretrained", "Hypencoder", form="q_net",
        learns=("q_net",), module="HyperHead",
        start="minilm",
    ),
    "precomputed": EncoderTraits(
        f"{_DENSE}.precomputed:PrecomputedEncoder.from_pretrained", model="",
        cached="PrecomputedEncoder",
        untrained="precomputed vectors stay as they are; train the encoder that made them",
    ),
    "pseudo_queries": EncoderTraits(
        f"{_OWN}.pseudo_queries:PseudoQueryEncoder.from_pretrained",
        "pseudo-query encoder", form="pseudo_queries", projection=True,
        learns=("pseudo_queries",), module="PseudoQueries",
        start="minilm",
    ),
    "seal": EncoderTraits(
        "sluice.encoders.generative.encoder:SealEncoder.from_pretrained",
        "SEAL encoder", "text-generation", "ngrams", writes="spans",
        learns=("ngrams",),
    ),
    "splade": EncoderTraits(
        "sluice.encoders.splade.encoder:SpladeEncoder.from_pretrained",
        "SPLADE encoder", _FEATURES, "sparse", teaches=True, core=True, sparsity=True,
        graph="head_states", starts=True, theirs="SparseEncoder", module="SpladePooling",
        cached="SpladeEncoder", quick=True,
        variants={"pruned-30": {"prune_quantile": 0.3}, "pruned-50": {"prune_quantile": 0.5}},
        learns=("sparse", "words"),
        real=("splade-tiny",), start="minilm",
    ),
    "static": EncoderTraits(
        f"{_DENSE}.static.encoder:StaticEncoder.from_pretrained",
        "static encoder", _SIMILAR, learns_as="dense", teaches=True,
        learns=("dense",), untuned="a static encoder has no network to tune",
        theirs="SentenceTransformer",
        real=("wordllama", "glove-50d"),
    ),
    "three_heads": EncoderTraits(
        f"{_OWN}.three_heads.encoder:HeadEncoder.from_pretrained",
        "encoder with three heads", form="parts",
        heads={"dense": "dense", "sparse": "splade", "tokens": "tokens"},
        learns=("heads",),
    ),
    "tokens": EncoderTraits(
        f"{_LATE}.encoder:TokenEncoder.from_pretrained",
        "token encoder", _SIMILAR, "tokens", teaches=True, core=True, theirs="MultiVectorEncoder",
        variants={"pooled-2": {"pool_factor": 2}, "pooled-4": {"pool_factor": 4}},
        learns=("tokens",),
        start="minilm",
    ),
    "towers": EncoderTraits(
        "sluice.encoders.towers:TowerEncoder.from_pretrained", form="parts", model="folder",
        sides=("dense", "splade", "static"), cached="TowerEncoder",
        start="minilm",
    ),
    "vocabulary": EncoderTraits(
        "sluice.encoders.lexical.vocabulary:VocabularyEncoder.from_pretrained",
        form="sparse", model="folder", cached="VocabularyEncoder",
        untrained="a vocabulary encoder looks up tokens; nothing of it is trained",
    ),
}  # fmt: skip
ENCODERS: Final[Mapping[str, str]] = {name: each.place for name, each in TYPES.items()}

# What is taken where no type is named: of words, of vectors of a model, of scores of pairs. And
# what a folder with a model of each side is, or with the weights of terms for one of them.
LEXICAL, USUAL, USUAL_RANKER = "bm25", "dense", "cross_encoder"
ROUTED, ROUTED_TERMS = "towers", "splade"

# Those that YAML makes by their constructor, and what opens their folders.
OPENED: Final[Mapping[str, str]] = {
    "bm25": "sluice.encoders.lexical.bm25:BM25Encoder.from_pretrained",
    "http": "sluice.encoders.dense.remote.encoder:HttpEncoder.from_pretrained",
}

FUNCTION: Final = "function"  # is not saved
# Encoders of what a program gave: saved folders name them, YAML does not.
# The three heads are saved as ``three_heads``, with the head's name.
GIVEN: Final[Mapping[str, str]] = {
    "dense_head": ("sluice.encoders.own.three_heads.encoder:DenseHead.from_pretrained"),
    FUNCTION: "sluice.encoders.dense.objects.function:FunctionEncoder.from_pretrained",
    "sparse_head": ("sluice.encoders.own.three_heads.encoder:SparseHead.from_pretrained"),
    "token_head": ("sluice.encoders.own.three_heads.encoder:TokenHead.from_pretrained"),
    "sentence_transformer": (
        "sluice.encoders.dense.objects.sentence_transformer:SentenceTransformerEncoder.from_pretrained"
    ),
}


def _ranker(make: str, called: str, **facts: Any) -> EncoderTraits:
    return EncoderTraits(
        f"sluice.encoders.{make}.from_pretrained", called, _RANKS, "scores", **facts
    )


# Rerankers that are a head over the token vectors of an encoder.
_HEADS: Final[Mapping[str, EncoderTraits]] = {
    name: _ranker(
        f"own.matching.{place}",
        f"{place.partition(':')[2]} ranker",
        learns_as="cross_encoder",
        opens_alone=True,
        matches=True,
        learns=("scores",),
        fixed=True,
        pairs_only=True,
        untuned="is for transformers; the vectors that it reads stay as they are, unless it has "
        "train_vectors: true",
        start="minilm",
    )
    for name, place in {
        "conv_knrm": "interactions:ConvKNRM",
        "drmm": "interactions:DRMM",
        "duet": "interactions:Duet",
        "knrm": "interactions:KNRM",
        "match_pyramid": "interactions:MatchPyramid",
        "pacrr": "interactions:PACRR",
    }.items()
}
RANKERS: Final[Mapping[str, EncoderTraits]] = {
    "cross_encoder": _ranker(
        "rerankers.cross_encoder:CrossEncoder", "cross-encoder", teaches=True, core=True,
        graph="logits", learns=("scores",), any_text=True, theirs="CrossEncoder", quick=True,
        start="minilm",
    ),
    "listwise": EncoderTraits(
        "sluice.encoders.generative.listwise:ListwiseRanker.from_pretrained",
        "listwise ranker", _RANKS, "scores", writes="rankings",
        tunings=("lora", "ia3", "bitfit", "ln_tuning"),
        why="stays beside the weights, and a listwise ranker writes with the weights alone",
        learns=("rankings",),
    ),
    "pyramid": _ranker("rerankers.pyramid:PyramidEncoder", "pyramid ranker",
        learns_as="cross_encoder", opens_alone=True,
        tunings=("adapter", "bitfit", "gated_prefix", "ia3", "ln_tuning", "lora", "prefix"),
        why="connects all layers in one pass, and a pyramid ranker runs the lower ones for each "
        "text alone",
        learns=("scores",),
        start="minilm",
    ),
    "rrra": _ranker("rerankers.rrra:AdaptedScorer", "", teaches=True,
        untrained="an rrra adapter is fitted, by `sluice fit adapter`, or trained beside a dense "
        "encoder by loss: {type: rrra}",
        start="minilm",
    ),  # made by `sluice fit adapter`
    "true_false": EncoderTraits(
        "sluice.encoders.generative.true_false:TrueFalseRanker.from_pretrained",
        "true/false ranker", _RANKS, "scores", learns_as="cross_encoder",
        opens_alone=True, tunings=("ln_tuning",),
        why="is for one stack of blocks, and a true_false ranker is an encoder with a decoder",
        learns=("scores",), pairs_only=True, no_head=True, any_text=True,
    ),
    **_HEADS,
}  # fmt: skip
MATCHING: Final[Mapping[str, str]] = {name: each.make for name, each in _HEADS.items()}
RERANKERS: Final[Mapping[str, str]] = {name: each.place for name, each in RANKERS.items()}
KNOWN: Final[Mapping[str, EncoderTraits]] = {**TYPES, **RANKERS}


def traits_of(thing: Any) -> EncoderTraits | None:
    """Return the traits of a type's name, of a component in YAML, or of an encoder.

    None for a type outside the table: what it takes is its own to say, by its hooks.
    """
    if isinstance(thing, Mapping):
        thing = thing.get("type")
    if isinstance(thing, str):
        return KNOWN.get(thing)
    from sluice.encoders.encoder import hooks_of

    return KNOWN.get(hooks_of(thing).kind)


@dataclass(frozen=True, slots=True)
class TuningTraits:
    """A way of tuning, and what must be known of it before it is imported.

    ``apart``: its parts cannot be merged into the weights. ``moves``: it trains parameters that are
    there, a head's among them. ``spans``: it connects the layers, which are then one pass.
    ``of_experts``: it trains experts alone. ``gated``: what it was called when it had gates.
    """

    place: str
    apart: bool = False
    moves: bool = False
    spans: bool = False
    of_experts: bool = False
    gated: str = ""


_TUNING = "sluice.encoders.tuning"
WAYS: Final[Mapping[str, TuningTraits]] = {
    "adapter": TuningTraits(f"{_TUNING}.adapters:Bottlenecks", apart=True),
    "bitfit": TuningTraits(f"{_TUNING}.tune:Biases", moves=True),
    "experts": TuningTraits("sluice.encoders.dense.experts.encoder:ExpertsAlone", of_experts=True),
    "gated_prefix": TuningTraits(f"{_TUNING}.prefix:GatedPrefix", apart=True),
    "ia3": TuningTraits(f"{_TUNING}.adapters:LearnedScales"),
    "iaa": TuningTraits(f"{_TUNING}.adapters:InsideAndAside", apart=True, spans=True),
    "ln_tuning": TuningTraits(f"{_TUNING}.tune:Norms", moves=True),
    "lora": TuningTraits(Core(f"{_TUNING}.adapters:LowRank")),
    "prefix": TuningTraits(f"{_TUNING}.prefix:Prefix", apart=True, gated="gated_prefix"),
}
TUNINGS: Final[Mapping[str, str]] = {name: each.place for name, each in WAYS.items()}
