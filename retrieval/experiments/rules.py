"""What does not go together in an experiment's retrievers and rerankers, as rules over each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sluice.encoders.dense.experts.names import MEAN, checked_experts
from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.errors import suggest
from sluice.encoders.model_files.locate import is_path
from sluice.encoders.table import KNOWN, MATCHING
from sluice.encoders.tuning.learning import learning_of
from sluice.retrieval.config.components import DENSE_ENCODERS, SPARSE_ENCODERS, vector_kind
from sluice.retrieval.pipelines.table import REMOTE, STORED
from sluice.training.rules import Fault, Rule

if TYPE_CHECKING:
    from sluice.retrieval.config.sections import ExperimentConfig, TrainingSection


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What a retriever or a reranker names, of which ``spec`` is the encoder or the scorer."""

    config: ExperimentConfig
    where: str
    spec: Mapping[str, Any]
    prune: Any = None

    @property
    def component(self) -> str:
        """Where the component is: a reranker is one, a retriever has an encoder."""
        return f"{self.where}.encoder" if self.where.startswith("retrievers.") else self.where

    @property
    def type(self) -> str:
        """Its type."""
        return str(self.spec["type"])

    @property
    def trained(self) -> TrainingSection | None:
        """What trains its model here; None: nothing does."""
        return self.config.train.get(str(self.spec.get("model")))

    @property
    def own(self) -> str:
        """The type that its model is trained as."""
        return "" if self.trained is None else str(self.trained.encoder.get("type"))

    @property
    def apart(self) -> bool:
        """Whether folders of that type open as no other: it learns as another, with own parts."""
        return self.own in KNOWN and KNOWN[self.own].opens_alone

    @property
    def read(self) -> Any:
        """The retriever whose stored vectors a reranker by MaxSim reads; None: none is named."""
        return self.spec.get("retriever") if self.type == STORED else None

    @property
    def kind(self) -> str:
        """The type of that retriever's vectors."""
        named = self.config.retrievers.get(self.read)
        return "" if named is None else str(vector_kind(named.encoder))


def parts_of(config: ExperimentConfig) -> Iterator[PartFacts]:
    """Yield what the rules are about: every reranker and every retriever."""
    for name, spec in config.rerankers.items():
        yield PartFacts(config, f"rerankers.{name}", spec)
    for name, section in config.retrievers.items():
        yield PartFacts(config, f"retrievers.{name}", section.encoder, section.prune)


def _unknown_retriever(part: PartFacts) -> Fault:
    known = part.config.retrievers
    return (part.read is not None and part.read not in known) and {
        "known": ", ".join(known) or "none", "near": suggest(str(part.read), known),
    }  # fmt: skip


def _expert(part: PartFacts) -> Fault:
    """Return what is wrong with the expert that is chosen of a trained encoder's."""
    if part.trained is None or not learning_of(part.own).experts or part.type != part.own:
        return False
    experts, chosen = part.trained.encoder.get("experts"), part.spec.get("expert")
    names = () if experts is None else checked_experts(experts)[0]
    known = [*names, MEAN]
    if not names:
        gated = "has experts that a gate chooses among; leave it out"
        return experts is not None and chosen is not None and {"is": repr(chosen), "why": gated}
    near = f"{', '.join(known)}{suggest(str(chosen), known)}"
    return chosen not in known and {
        "is": "missing" if chosen is None else repr(chosen),
        "why": f"has an expert for each dataset; name the one to search with: {near}",
    }


PARTS: Final = (
    Rule("{where}.train_vectors",
         lambda part: "train_vectors" in part.spec and part.type in MATCHING,
         "is for training; give it to the encoder under train:",
         "rerankers: {k: {type: knrm, model: m, train_vectors: true}}"),
    Rule("{where}",
         lambda part: part.type == STORED and (part.read is None) == ("model" not in part.spec),
         "expected either model, which encodes the candidates, or retriever, whose stored token "
         "vectors are read",
         "rerankers: {m: {type: max_sim}}"),
    Rule("{where}.retriever", _unknown_retriever,
         "no retriever {read!r}; known: {known}{near}",
         "rerankers: {m: {type: max_sim, retriever: bm52}}"),
    Rule("{where}.retriever", lambda part: part.kind in (*DENSE_ENCODERS, *SPARSE_ENCODERS),
         "{read} has a {kind} encoder, which gives no vectors of tokens; expected a retriever "
         "whose encoder is of type tokens",
         "rerankers: {m: {type: max_sim, retriever: bm25}}"),
    Rule("{where}.{key}", lambda part: part.read is not None and len(part.spec) > 2
         and {"key": min(set(part.spec) - {"type", "retriever"})},
         "is of a model, and with retriever the vectors are those of {read}; leave it out",
         "{retrievers: {t: {encoder: {type: tokens, model: m}}}, rerankers: {m: {type: max_sim, "
         "retriever: t, dtype: bfloat16}}}"),
    Rule("{where}.prune.scores", lambda part: part.prune is not None and part.prune.scores
         and not expanded(part.prune.scores).is_file(),
         "no file {prune.scores!r}; sluice fit quality makes one",
         "retrievers: {bm25: {encoder: bm25, prune: {scores: none.parquet, share: 0.1}}}"),
    Rule("{where}.prune.model", lambda part: part.prune is not None
         and part.prune.model in part.config.train
         and (part.config.train[part.prune.model].examples or {}).get("type") != "quality",
         "train.{prune.model} learns from queries, and pruning asks about documents alone; train "
         "one with examples: {{type: quality}}",
         "{train: {t: {encoder: {type: dense, model: m}, loss: info_nce}}, retrievers: {bm25: "
         "{encoder: bm25, prune: {model: t, share: 0.1}}}}"),
    Rule("{where}.prune.model", lambda part: part.prune is not None and part.prune.model
         and part.prune.model not in part.config.train and is_path(part.prune.model)
         and not expanded(part.prune.model).exists(),
         "no model folder {prune.model}",
         "retrievers: {bm25: {encoder: bm25, prune: {model: ./none, share: 0.1}}}"),
    Rule("{component}.type", lambda part: part.apart and part.type not in (part.own, *REMOTE),
         "{type}: {spec[model]} is trained as {own}, and its folder opens as no other type; write "
         "type: {own}",
         "{train: {t: {encoder: {type: csr, model: m}, loss: info_nce}}, retrievers: {a: {encoder: "
         "{type: splade, model: t}}}}"),
    Rule("{component}.expert", _expert,
         "{is}: {spec[model]} {why}",
         "{train: {t: {encoder: {type: experts, model: m, experts: [b, c]}, loss: info_nce, "
         "datasets: [b, c]}}, retrievers: {a: {encoder: {type: experts, model: t}}}}"),
)  # fmt: skip
