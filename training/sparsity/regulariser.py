"""Sparsity regularisers: their penalty, rare terms spared, and the head's bias by target."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sluice.encoders.encoder import Side, hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.splade.start import inverse_document_frequency
from sluice.training.protocol import BiEncoder, Example
from sluice.training.sparsity.controller import Control, Penalty, Sparsity

CHUNK = 512  # texts tokenised at a time
SAMPLED = 20_000  # documents that are counted at most


def document_idf(encoder: BiEncoder, examples: Sequence[Example], size: int) -> Tensor:
    """Return the inverse document frequency of tokens in the examples' documents, ``[size]``.

    Each document counts once, by the tokens that the encoder reads of it; of many documents, as
    many as are spread evenly over the examples. Columns of the encoder's vectors are token ids.
    """
    texts = list(dict.fromkeys(doc.text for example in examples for doc in example.documents))
    step = max(1, -(-len(texts) // SAMPLED))
    return inverse_document_frequency(_tokens(encoder, texts[::step]), size).float()


def _tokens(encoder: BiEncoder, texts: Sequence[str]) -> Iterator[NDArray[np.int32]]:
    for start in range(0, len(texts), CHUNK):
        features = encoder.tokenize(texts[start : start + CHUNK], "document")
        masks = features["attention_mask"].bool()
        yield from (
            ids[mask].numpy().astype(np.int32)
            for ids, mask in zip(features["input_ids"], masks, strict=True)
        )


log = logging.getLogger("sluice")

LASTING = 20  # steps in a row without active terms, after which it is reported
DEAREST = 10.0  # how many times the cost of the rarest term a common one has at most, at power 1
POSTING_BYTES = 10  # of an exact InvertedIndex over SPLADE vectors, directories included


def flops(vectors: Tensor) -> Tensor:
    """Return ``sum_j (mean_b |w_bj|)^2`` of vectors ``[B, vocab]`` (Paria et al. 2020, eq. 4).

    It estimates the multiplications of a search and prefers terms used evenly.
    """
    return vectors.abs().mean(0).square().sum()


def l1(vectors: Tensor) -> Tensor:
    """Return ``mean_b sum_j |w_bj|`` of vectors ``[B, vocab]``."""
    return vectors.abs().sum(1).mean()


def anti_zero(vectors: Tensor) -> Tensor:
    """Return ``1 / (sum_bj w_bj)^2`` of vectors ``[B, vocab]``: it grows as terms vanish.

    (The public SPLADE trainer adds it for both sides beside its regularisers.)
    """
    return vectors.abs().sum().square().clamp(min=1e-12).reciprocal()


def active_terms(vectors: Tensor) -> Tensor:
    """Return the mean number of non-zero terms of a vector (L0): a report, it has no gradient."""
    return (vectors != 0).sum(1).float().mean()


def flops_by_rank(vectors: Tensor, owners: Tensor) -> Tensor:
    """Return ``sum_r (n_r / N) flops(documents of rank r)`` of vectors ``[N, vocab]``.

    ``owners`` ``[N]``, ascending, are the queries that documents came with; a document's rank is
    its place among its query's, and ``n_r`` documents have rank r. Positives, first negatives and
    so on are averaged apart, as OpenSearch's trainer does with groups of one size: a term of all
    positives and of no negative is then as dear as one of all documents of one rank.
    """
    ranks = torch.arange(len(owners), device=owners.device) - torch.searchsorted(owners, owners)
    counts = torch.bincount(ranks).to(vectors.dtype)
    sums = vectors.new_zeros(len(counts), vectors.shape[1]).index_add(0, ranks, vectors.abs())
    each = (sums / counts[:, None]).square().sum(1)
    return (each * counts).sum() / len(owners)


def term_costs(idf: Tensor, power: float) -> Tensor:
    """Return ``(max(idf) / idf_j)^power``, by which a penalty multiplies the weights of term j.

    The rarest terms cost 1, common ones up to ``10^power``: what stays active is what tells most.
    (Geng et al. 2024, arXiv 2411.04403v1, bring idf into FLOPS; the form is ours.)
    """
    highest = idf.max()
    return (highest / idf.clamp(min=float(highest) / DEAREST)).pow(power)


REGULARISERS: dict[str, Callable[[Tensor], Tensor]] = {"flops": flops, "l1": l1}


class Regulariser:
    """The penalty at a step of training, counted in optimiser steps whatever the accumulation.

    A side with a target has its weight steered, see ``sluice.training.sparsity.controller``.
    ``state`` is all that decides later steps: saved with every checkpoint, restored on resuming.
    ``idf(size)`` counts the inverse document frequencies ``[size]`` that ``idf_power`` asks for, at
    the first batch.
    """

    def __init__(self, sparsity: Sparsity, idf: Callable[[int], Tensor] | None = None) -> None:
        self.sparsity = sparsity
        self.step = 0
        self.total = 0
        sides = {"query": sparsity.query, "document": sparsity.document}
        self.sides: dict[str, Penalty] = {n: p for n, p in sides.items() if p is not None}
        self.controls = {
            name: Control(penalty.target_terms, penalty.weight)
            for name, penalty in self.sides.items()
            if penalty.target_terms is not None
        }
        self._idf = idf
        self._costs: dict[str, Tensor] = {}
        self._used: dict[str, Tensor] = {}  # how often each term was active since the last line
        self._seen: dict[str, int] = {}
        self._warned: set[str] = set()
        self._empty: dict[str, int] = {}  # steps in a row with almost nothing active

    def begin(self, total: int) -> None:
        """Say how many optimiser steps the training has."""
        self.total = total

    def advance(self, dropout: Mapping[str, float] | None = None) -> None:
        """Count one optimiser step, and steer by what its batches had.

        ``dropout`` holds by side what terms without it are of terms with it, where measured.
        """
        self.step += 1
        for name, control in self.controls.items():
            control.advance(self._progress, (dropout or {}).get(name))
            self._check(name, control)

    @property
    def _progress(self) -> float:
        """The share of the ramp that is done, between 0 and 1."""
        share = self.sparsity.ramp
        steps = share * self.total if share <= 1 else share
        return 1.0 if steps <= 0 else min(self.step / steps, 1.0)

    @property
    def strength(self) -> float:
        """The share ``(t / T)^2`` of the full weights that holds at step t, 1 from T on."""
        return self._progress**2

    def __call__(
        self, queries: Tensor, documents: Tensor, owners: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the weighted penalty of each side that has one.

        ``documents`` holds positives and negatives of the batch in one matrix; ``owners`` are the
        rows of the queries that they came with, in ascending order.
        """
        sides = {"query": queries, "document": documents}
        penalties: dict[str, Tensor] = {}
        for name, vectors in sides.items():
            self._count(name, vectors)
            penalty = self.sides.get(name)
            if penalty is None:
                continue
            if not len(vectors):
                raise ConfigError(f"sparsity.{name}: this training has no {name} vectors")
            value = self._value(name, penalty, vectors, owners)
            control = self.controls.get(name)
            if control is None:
                weight = (penalty.weight or 0.0) * self.strength
            else:
                weights = vectors.detach()
                active = weights[weights != 0]
                height = float(active.expm1().mean()) if len(active) else 0.0
                control.observe(len(active) / len(weights), float(value.detach()), height)
                weight = control.weight
            penalties[name] = value * weight
        if self.sparsity.anti_zero:
            encoded = [vectors for vectors in sides.values() if len(vectors)]
            sums = torch.stack([anti_zero(vectors) for vectors in encoded]).sum()
            penalties["anti_zero"] = sums * self.sparsity.anti_zero
        return penalties

    def _value(self, name: str, penalty: Penalty, vectors: Tensor, owners: Tensor | None) -> Tensor:
        """Return a side's penalty before its weight."""
        penalised = _above(vectors, penalty.threshold)
        if penalty.idf_power is not None:
            if name not in self._costs:
                self._costs[name] = self._counted(name, penalty.idf_power, vectors)
            penalised = penalised * self._costs[name]
        if not penalty.by_rank:
            return REGULARISERS[penalty.type](penalised)
        if owners is None or len(owners) != len(vectors):
            raise ConfigError(f"sparsity.{name}.by_rank: this training has no groups of documents")
        return flops_by_rank(penalised, owners)

    def _counted(self, name: str, power: float, vectors: Tensor) -> Tensor:
        if self._idf is None:
            raise ConfigError(
                f"sparsity.{name}.idf_power: no texts to count terms in; leave it out"
            )
        return term_costs(self._idf(vectors.shape[1]), power).to(vectors)

    def _count(self, name: str, vectors: Tensor) -> None:
        used = (vectors.detach() != 0).sum(0)
        self._used[name] = self._used[name] + used if name in self._used else used
        self._seen[name] = self._seen.get(name, 0) + len(vectors)

    def _check(self, name: str, control: Control) -> None:
        """Warn, once, of vectors in which everything or nothing is active."""
        terms = control.terms
        size = len(self._used[name]) if name in self._used else 0
        if terms is None or not size:
            return
        state = "nothing" if terms < 1 else "everything" if terms > size / 2 else ""
        self._empty[name] = self._empty.get(name, 0) + 1 if state == "nothing" else 0
        late = self._progress >= 1 or self._empty[name] >= LASTING
        if state and late and f"{name} {state}" not in self._warned:
            self._warned.add(f"{name} {state}")
            remedy = (
                "the encoder has collapsed: lower the learning rate, raise the target, or start "
                "from an earlier checkpoint"
                if state == "nothing"
                else "the weight cannot hold it: lower the learning rate, lengthen the training, "
                "or begin with a sparser head (encoder.start)"
            )
            log.warning(
                "sparsity: almost %s is active in a %s: %.0f of %s terms at step %d; %s",
                state, name, terms, f"{size:,}", self.step, remedy,
            )  # fmt: skip

    def notes(self) -> dict[str, float]:
        """Return the regulariser's numbers for the journal since the last call.

        ``postings_cost`` is ``sum_j p_q(j) p_d(j)``: the multiplications that a query and a
        document cost an inverted index on average, over the batches seen;
        ``index_mb_per_million`` is what a million such documents would take.
        """
        notes = {"sparsity_strength": self.strength}
        for name, control in self.controls.items():
            notes[f"sparsity_weight_{name}"] = control.weight
            if control.terms is not None:
                notes[f"steered_terms_{name}"] = control.terms
        seen = {name: count for name, count in self._seen.items() if count}
        shares = {name: self._used[name].float() / count for name, count in seen.items()}
        if "query" in shares and "document" in shares:
            notes["postings_cost"] = float(shares["query"] @ shares["document"])
        if "document" in shares:
            notes["index_mb_per_million"] = float(shares["document"].sum()) * POSTING_BYTES
        self._used, self._seen = {}, {}
        return notes

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep."""
        controls = {name: control.state() for name, control in self.controls.items()}
        return {"step": self.step, "total": self.total, "controls": controls}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state a checkpoint kept."""
        self.step, self.total = int(state["step"]), int(state["total"])
        for name, kept in state.get("controls", {}).items():
            self.controls[name].restore(kept)


def _above(vectors: Tensor, threshold: int | None) -> Tensor:
    """Silence the rows that have no more active terms than ``threshold`` (OpenSearch's L0 rule)."""
    if threshold is None:
        return vectors
    full = (vectors.detach() != 0).sum(1, keepdim=True) > threshold
    return vectors * full.to(vectors.dtype)


EVERY = 16  # steps between counts with and without dropout
COUNTED = 32  # texts of a side that are counted, the same ones throughout
PIECE = 16  # of them at a time


class Steering:
    """What the conductor does with a regulariser at the end of each step.

    The texts that are counted are spread evenly over ``examples``; all processes count the same
    ones, so they raise their heads alike. A head that both sides share rises by the larger need.
    """

    def __init__(
        self,
        encoder: BiEncoder,
        regulariser: Regulariser,
        examples: Sequence[Example],
        arithmetic: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.encoder = encoder
        self.regulariser = regulariser
        self.arithmetic = arithmetic
        count = min(COUNTED, len(examples))
        chosen = [examples[i * len(examples) // count] for i in range(count)]
        self.texts: dict[Side, list[str]] = {
            "query": [example.query.text for example in chosen],
            "document": [example.documents[0].text for example in chosen],
        }

    def dropout(self) -> dict[str, float] | None:
        """Return the ratios of ``_dropout`` where it is time to count, every ``EVERY`` steps."""
        return self._dropout() if self.regulariser.step % EVERY == 0 else None

    def _dropout(self) -> dict[str, float]:
        """Return what active terms without dropout are of those with it, by steered side."""
        module = self.encoder.module
        sides = [side for side in self.texts if side in self.regulariser.controls]
        training = [part for part in module.modules() if part.training]
        # The draws of this count are not taken out of the training's own.
        with torch.no_grad(), self.arithmetic(), torch.random.fork_rng(_accelerators(module)):
            dropped = {side: self._terms(side) for side in sides}
            module.eval()
            try:
                return {str(side): self._terms(side) / max(dropped[side], 0.1) for side in sides}
            finally:
                for part in training:
                    part.training = True

    def _terms(self, side: Side) -> float:
        device = next(self.encoder.module.parameters()).device
        texts, terms = self.texts[side], 0.0
        for start in range(0, len(texts), PIECE):
            piece = texts[start : start + PIECE]
            features = self.encoder.tokenize(piece, side)
            placed = {name: values.to(device) for name, values in features.items()}
            terms += float(active_terms(self.encoder.embed(placed, side))) * len(piece)
        return terms / len(texts)

    def raise_heads(self) -> None:
        """Raise the head of a side that is short of terms."""
        towers = hooks_of(self.encoder).towers
        needs: dict[int, tuple[Callable[[float], None], float]] = {}
        for side in self.texts:
            control = self.regulariser.controls.get(side)
            if control is None:
                continue
            head = towers.get(side, self.encoder)
            bias = hooks_of(head).term_bias
            if bias is None or not bias.raises(side):
                continue
            amount = max(control.lift, needs.get(id(head), (None, 0.0))[1])
            needs[id(head)] = bias.raise_bias, amount
            control.lift_by(control.lift)
        for raise_bias, amount in needs.values():
            if amount:
                raise_bias(amount)


def _accelerators(module: nn.Module) -> list[torch.device]:
    """Return the devices besides the CPU whose random state a pass of the module moves."""
    devices = {parameter.device for parameter in module.parameters()}
    return [device for device in devices if device.type == "cuda"]
