"""Rules of training as data: what does not go together, judged from a config or from objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from sluice.encoders.foundation.build import Core, build, resolve, types_listed
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import KNOWN, EncoderTraits
from sluice.encoders.tuning.learning import SCORED, SINGLE, WRITTEN, learning_of, types_that_make
from sluice.training.losses import LOSSES

if TYPE_CHECKING:
    from sluice.training.batches.scoring import TokenScoring
    from sluice.training.losses.base import LossBase

Fault: TypeAlias = bool | Mapping[str, object] | None


class Rule(NamedTuple):
    """One thing that does not go together in a training run, and its message.

    ``when`` returns of the facts whether it is so: false, true, or further words for the message.
    ``key`` is at fault, and ``says`` what is wrong and what helps; both are format strings over
    the attributes of the facts, and over those words. ``example`` is YAML that breaks this rule,
    over the plain training run of the tests.
    """

    key: str
    when: Callable[[Any], object]
    says: str
    example: str


class _Words(dict[str, Any]):
    """The words of a message: a rule's own, then the attributes of the facts; lists with commas."""

    def __init__(self, facts: Any, own: object) -> None:
        super().__init__(own if isinstance(own, Mapping) else {})
        self.facts = facts

    def __missing__(self, name: str) -> Any:
        value = getattr(self.facts, name)
        return (", ".join(value) or "none") if isinstance(value, list | tuple) else value


def first_of(faults: Iterable[Mapping[str, object]]) -> Fault:
    """Return the words of the first fault; None where there is none."""
    return next(iter(faults), None)


def broken(rules: Iterable[Rule], facts: Any) -> Iterator[str]:
    """Yield the message of each rule that the facts break, in the order of the rules."""
    for rule in rules:
        own = rule.when(facts)
        if own:
            yield f"{rule.key}: {rule.says}".format_map(_Words(facts, own))


class BrokenRules(ConfigError):
    """The first of the rules that are broken; ``others`` yields the messages of the rest."""

    def __init__(self, text: str, others: Iterable[str]) -> None:
        super().__init__(text)
        self.others = others


def judge(rules: Iterable[Rule], facts: Any, prefix: str = "") -> None:
    """Raise ``BrokenRules`` if any is broken; ``prefix`` is put before the keys."""
    texts = (f"{prefix}{text}" for text in broken(rules, facts))
    for text in texts:
        raise BrokenRules(text, texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """What is trained by what: known of a config before any work, of objects when training begins.

    ``kind`` is the encoder's type, and ``learning`` how that is trained. ``live`` candidates,
    ``sparse`` penalties and a ``teacher`` are there or not.
    ``scoring`` is as it was chosen, and None where it was not; ``unit`` says whether token vectors
    have length 1.
    """

    kind: str
    learning: EncoderTraits
    loss: LossBase
    name: str
    live: bool
    sparse: bool
    teacher: bool
    scoring: TokenScoring | None
    unit: bool = True

    @property
    def by_batch(self) -> bool:
        """Whether the loss asks its teacher about whole batches."""
        from sluice.training.losses.base import taught_by_batch

        return taught_by_batch(self.loss)

    @property
    def learns(self) -> frozenset[str]:
        """What training makes of texts; empty for a type of one's own, which no rule is about."""
        return frozenset(self.learning.learns)

    @property
    def apart_missing(self) -> bool:
        """Whether a batch has no vectors of documents: live candidates, or scores of pairs."""
        return self.live or "scores" in self.learns

    @property
    def learnt(self) -> str:
        """The type that it is trained as: another's, or its own."""
        known = KNOWN.get(self.kind)
        return (known.learns_as if known else "") or self.kind

    @property
    def called(self) -> str:
        """What the encoder is called."""
        known = KNOWN.get(self.kind)
        return (known.called if known else "") or f"{self.kind} encoder"

    @property
    def similarity(self) -> str:
        """The similarity that the loss fixes."""
        return self.loss.similarity

    @property
    def scored(self) -> str:
        """How token vectors are scored."""
        return "max_sim" if self.scoring is None else self.scoring.name

    @property
    def single(self) -> list[str]:
        """The types that make one vector of each text."""
        return types_that_make(SINGLE)

    @property
    def terms(self) -> list[str]:
        """The types that make vectors of terms."""
        return types_that_make(["sparse"])


def losses_for(kind: str) -> dict[str, str]:
    """Return the losses that train a type of encoder, by name.

    Those that train a type alone, where it is not core, are marked, so that a list begins with
    them.
    """
    learns, fitting = set(learning_of(kind).learns or SCORED), {}
    for name, place in LOSSES.items():
        forms = _forms(name)
        if learns & set(forms):
            own = kind in KNOWN and not KNOWN[kind].core and types_that_make(forms) == [kind]
            fitting[name] = Core(place) if own else place
    return fitting


def _forms(name: str) -> tuple[str, ...]:
    """Return what a loss with its defaults trains."""
    forms = resolve(LOSSES[name]).forms
    if isinstance(forms, property):  # follows from the settings
        try:
            forms = build({"type": name}, LOSSES, where=name).forms
        except ConfigError:  # made of other losses, which decide
            return SCORED
    trained: tuple[str, ...] = forms
    return trained


_OWN: Final = {"codes", "heads", *WRITTEN}  # what a type of one's own does not make


def _misfit(facts: TrainingFacts) -> Fault:
    """Return which types a loss trains instead of this one, and which losses train it."""
    forms = set(facts.loss.forms)
    if forms & facts.learns or not (facts.learns or forms <= _OWN):
        return False
    own = facts.kind == facts.learnt
    return {
        "types": ", ".join(types_that_make(facts.loss.forms)),
        "trained": f"{facts.kind} encoder" + ("" if own else f", trained as {facts.learnt},"),
        "losses": types_listed(losses_for(facts.kind)),
    }


# Why two texts of one side have no score, by what training makes of texts.
_APART: Final[Mapping[str, str]] = {
    "one_way": "this encoder's vectors of queries and of documents are of two kinds, and two "
    "queries have no score",
    "q_net": "it compares queries with queries, and these are networks, which score documents "
    "alone",
    "pseudo_queries": "it compares queries with queries, and these are single vectors, which "
    "attend to documents of several",
    "tokens": "a MaxSim between two documents sums over far more tokens than one of a query, so "
    "the two cannot be compared",
}


def _apart(facts: TrainingFacts) -> Fault:
    """Return why the queries that a loss compares with queries cannot be."""
    return facts.loss.same_side and first_of(
        {"why": why} for learnt, why in _APART.items() if learnt in facts.learns
    )


RULES: Final = (
    Rule("loss", _misfit,
         "{name} trains {types}; a {trained} takes {losses}",
         "loss: bce"),
    Rule("teacher", lambda facts: facts.by_batch and not facts.teacher,
         "missing: {name} asks a teacher batch by batch; name an encoder (dense, splade, tokens, "
         "bm25)",
         "loss: alignment"),
    Rule("sparsity", lambda facts: facts.sparse and facts.learns and "sparse" not in facts.learns,
         "is for {terms}; a {learnt} encoder has no terms",
         "{encoder: {type: tokens}, sparsity: {target_doc_terms: 9}}"),
    Rule("negatives", lambda facts: facts.live and facts.learns and not facts.learns & set(SINGLE),
         "live candidates are for encoders of single vectors: {single}; mine them: {{type: mined, "
         "retriever: ..., refresh: 100}}",
         "{encoder: {type: tokens}, negatives: {type: live}}"),
    Rule("loss", lambda facts: (facts.live or facts.sparse) and facts.loss.forms == ("codes",),
         "{name} reconstructs the dense vectors of both sides: live candidates are frozen codes, "
         "and penalties are for terms; mine the negatives and leave sparsity out, or take a loss "
         "over scores, such as adore",
         "{encoder: {type: csr}, loss: csr, negatives: {type: live}}"),
    Rule("loss", lambda facts: facts.by_batch and facts.teacher and facts.apart_missing,
         "{name} learns from a teacher batch by batch, which is for a bi-encoder and the "
         "documents of the examples; leave negatives: {{type: live}} out, or train a bi-encoder",
         "{loss: alignment, teacher: m, negatives: {type: live}}"),
    Rule("loss", lambda facts: "negative_queries" in facts.loss.wants and facts.apart_missing,
         "{name} learns from queries that documents of the batch do not answer; live candidates "
         "have none, and a cross-encoder has no vectors of them: leave negatives: {{type: live}} "
         "out, or train a dense or splade encoder",
         "{loss: misfits, negatives: {type: live}, examples: PAIRS}"),
    Rule("loss", lambda facts: facts.loss.similarity == "cosine" and "one_way" in facts.learns,
         "{name} compares vectors by cosine, and those of this encoder's queries and documents "
         "have inner products alone; leave similarity out, or take another loss",
         "{encoder: {type: gaussian}, loss: {type: info_nce, similarity: cosine}}"),
    Rule("loss.same_side", _apart,
         "true: {why}; leave it out",
         "{encoder: {type: tokens}, loss: {type: info_nce, same_side: true}}"),
    Rule("loss.similarity", lambda facts: facts.loss.similarity != "auto"
         and facts.learns & {"q_net", "pseudo_queries"},
         "{similarity}, and a {called}'s scores are its own, without bounds; leave similarity "
         "out, or take another loss than {name}",
         "{encoder: {type: hypencoder}, loss: psl}"),
    Rule("loss.similarity", lambda facts: "tokens" in facts.learns
         and facts.loss.similarity in ("dot", "cosine" if facts.scored == "max_sim" else "dot"),
         "{similarity}, and scoring is {scored}: the scores of token vectors are what scoring "
         "says; leave similarity out, or for psl, which needs scores from -1 to 1, set scoring: "
         "mean_max_sim",
         "{encoder: {type: tokens}, loss: psl}"),
    Rule("loss", lambda facts: "tokens" in facts.learns and facts.loss.similarity == "cosine"
         and not facts.unit,
         "{name} needs scores from -1 to 1, and these token vectors have any length; leave "
         "normalize: false out of encoder, or take another loss",
         "{encoder: {type: tokens, normalize: false}, loss: psl, scoring: mean_max_sim}"),
    Rule("scoring",
         lambda facts: facts.scoring is not None and facts.learns and "tokens" not in facts.learns,
         "{scored}: is for encoders of token vectors (encoder: {{type: tokens}}), and this one is "
         "{kind}; leave it out",
         "scoring: xtr"),
)  # fmt: skip
