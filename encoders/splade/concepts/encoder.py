"""Concept encoders: sparse vectors whose columns are concepts that a user names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Unpack

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.dense.pooling import Pooling
from sluice.encoders.encoder import Side
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layout import SIDECAR, read_layout, read_modules
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import TextOptions, takes_options
from sluice.encoders.model_files.probes import DOCUMENTS, add_module, write_probes
from sluice.encoders.splade.concepts.head import ConceptHead, Read, checked_settings
from sluice.encoders.splade.concepts.names import checked_concepts, read_concepts
from sluice.encoders.splade.terms import heaviest, sparse_rows
from sluice.encoders.transformer.model import Features
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder, with_modules
from sluice.encoders.transformer.tokens import TokenBatch

MODULE = "Concepts"
KEY = "concepts"  # of sluice.json
NAMES = "concepts.txt"
log = logging.getLogger("sluice")


class Concept(NamedTuple):
    """A concept of a text, and its weight there."""

    name: str
    weight: float


class _Reader(DenseEncoder):
    """The dense encoder below the head."""

    own_module = MODULE


class ConceptEncoder(TextEncoder):
    """A dense encoder and a head with one output for each of a user's concepts, 0 or more.

    Vectors are float32 ``csr_array [n, C]``, served by an inverted index; the similarity is the
    dot product, and its terms have the concepts' names. A new head is made of the dense vectors of
    the names, so that a text has the concepts that it is near to. (After SESA, a head over named
    skills, with SPLADE's activation: Formal et al., 2021, arXiv 2109.10086.)
    """

    kind = "concepts"
    similarity: Literal["dot"] = "dot"
    head_parameters = ("concepts.",)

    def __init__(
        self, dense: DenseEncoder, head: ConceptHead, names: Sequence[str], read: Read
    ) -> None:
        parts = with_modules(dense.model, concepts=head, projection=dense.projection)
        super().__init__(
            parts, dense.tokenizer,
            query_prompt=dense.prompts["query"], document_prompt=dense.prompts["document"],
            query_length=dense.lengths["query"], document_length=dense.lengths["document"],
            device=str(dense.device), batch_tokens=dense.batch_tokens,
        )  # fmt: skip
        self.dtype = dense.dtype
        self.model = dense.model
        self.dense = dense
        self.head = head
        self.names = tuple(names)
        self.read: Read = read
        self._said = False  # that most documents have no concept

    @classmethod
    @takes_options(TextOptions)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        vocabulary: Annotated[str | None, "A text file that names a concept a line."] = None,
        read: Annotated[
            Read | None, "What the head sees: the text's vector, or the states of its tokens."
        ] = None,
        scale: Annotated[
            float | None, "What cosines with names are multiplied by at the start, 20."
        ] = None,
        threshold: Annotated[
            float | None, "The cosine with its name above which a text has a concept."
        ] = None,
        pooling: Pooling | None = None,
        projection: int | dict[str, Any] | None = None,
        seed: int = 13,
        **options: Unpack[TextOptions],
    ) -> ConceptEncoder:
        """Load a concept encoder's folder, or start one from a dense encoder: train it.

        ``vocabulary`` is a text file that names a concept a line, for a start; a folder has its
        own. ``read`` says what the head sees: the ``text``'s vector, or the states of its
        ``tokens``, of which each concept takes the largest. At the start a concept's weight is
        ``log(1 + scale (cosine with its name - threshold))``, or 0 below the threshold; ``scale``
        is 20, and the ``threshold`` that nine tenths of the cosines between names are below. The
        other arguments are a dense encoder's.
        """
        folder = model_folder(str(model))
        layout = read_layout(folder)
        saved = MODULE in layout.modules
        new = {"vocabulary": vocabulary, "read": read, "scale": scale, "threshold": threshold}
        for name, value in new.items() if saved else ():
            if value is not None:
                raise ConfigError(
                    f"{name}: {value!r}; {folder} has concepts of its own; leave it out, or start "
                    "from a dense encoder"
                )
        dense = _Reader.from_pretrained(
            model, pooling=pooling, projection=projection, normalize=True, weights="float32",
            backend="torch", seed=seed, **options,
        )  # fmt: skip
        if saved:
            return cls._opened(dense, folder, layout.sidecar)
        if vocabulary is None:
            raise ConfigError(
                f"vocabulary: missing: {folder} has no concepts; name a text file, one a line"
            )
        chosen, size, least = checked_settings(read, scale, threshold)
        names = read_concepts(vocabulary)
        _check_read(dense, chosen)
        rows = torch.from_numpy(dense.encode_documents(names)).to(dense.device)
        head = ConceptHead.of_names(rows, scale=size, threshold=least)
        return cls(dense, head, names, chosen)

    @classmethod
    def _opened(cls, dense: DenseEncoder, folder: Path, facts: Mapping[str, Any]) -> ConceptEncoder:
        place = dict(read_modules(folder))[MODULE]
        file = place / NAMES
        noted = facts[KEY].get("read") if isinstance(facts[KEY], dict) else None
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
            names = checked_concepts(lines, str(file))
            if noted is None:
                raise ConfigError("expected read: text or tokens")
            read, _, _ = checked_settings(noted, None, None)
            _check_read(dense, read)
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise ModelError(f"{folder / SIDECAR}: {KEY} is {facts[KEY]!r}: {error}") from None
        head = ConceptHead.read(place, len(names), dense.dim).to(dense.device)
        return cls(dense, head, names, read)

    @property
    def dim(self) -> int:
        """The number of concepts."""
        return len(self.names)

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        return {**self.dense.settings(), **super().settings(),
                "concepts": fingerprint_of(list(self.names)), "read": self.read}  # fmt: skip

    def terms(self, columns: Sequence[int]) -> list[str]:
        """Return the concepts of columns."""
        return [self.names[int(column)] for column in columns]

    def top_concepts(self, texts: Sequence[str], k: int = 5) -> list[list[Concept]]:
        """Return the heaviest ``k`` concepts of documents, those of weight 0 left out."""
        matrix = self.encode_documents(texts)
        found = []
        for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
            terms, weights = heaviest(matrix.indices[start:stop], matrix.data[start:stop], k)
            order = np.lexsort((terms, -weights))
            found.append([Concept(self.names[terms[i]], float(weights[i])) for i in order])
        return found

    @property
    def term_bias(self) -> ConceptEncoder:
        """The encoder itself, whose head has a bias of each concept."""
        return self

    def raises(self, side: Side) -> bool:
        """Whether ``raise_bias`` changes how many concepts are active on a side."""
        return self.head.bias.requires_grad

    def raise_bias(self, amount: float) -> None:
        """Add ``amount`` to the logits of all concepts: more of them are active."""
        self.head.bias.detach().add_(amount)

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return the weights ``[n, C]`` of tokenised texts, float32, with gradients."""
        if self.read == "text":
            vectors = self.dense.embed(features, side)
            real = features["attention_mask"].any(dim=1, keepdim=True)
            weights: Tensor = self.head(vectors.unsqueeze(1), real.long())
            return weights.masked_fill(~real, 0.0)
        mask = features["attention_mask"]
        return self._of_states(self.dense.hidden(features), mask)

    def _of_states(self, states: Tensor, mask: Tensor) -> Tensor:
        unit = nn.functional.normalize(states.float(), dim=-1)
        weights: Tensor = self.head(unit, mask)
        return weights.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)

    def encode_queries(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the queries' weights, float32 ``csr_array [n, C]``, in input order."""
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the documents' weights, float32 ``csr_array [n, C]``, in input order."""
        return self._encode(texts, "document")

    def _encode(self, texts: Sequence[str], side: Side) -> sp.csr_array:
        def weights(batch: TokenBatch, network: PackedTransformer | None) -> Tensor:
            parts = list[Tensor]()
            for alike, mask in self.dense.states_by_length(batch, network):
                if self.read == "text":
                    alike = self.dense.vectors_of(alike, mask, side).unsqueeze(1)
                    parts.append(self.head(alike, mask[:, :1]))
                else:
                    parts.append(self._of_states(alike, mask))
            return torch.cat(parts)

        vectors = sparse_rows(self, texts, side, weights)
        bare = int((np.diff(vectors.indptr) == 0).sum())
        scarce = side == "document" and bare > len(texts) / 2
        if scarce and not self._said and tuple(texts) != DOCUMENTS:  # probes are of no subject
            self._said = True
            log.warning(
                "%s of %s documents have none of the %s concepts, and no search finds them; give a "
                "lower threshold where the training starts, or less sparsity",
                f"{bare:,}", f"{len(texts):,}", f"{self.dim:,}",
            )  # fmt: skip
        return vectors

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder in sentence-transformers' layout, replacing ``path`` in one step.

        That package refuses it: it has no module that makes concepts.
        """
        with replaced_folder(Path(path)) as folder:
            self.dense.save_pretrained(folder)
            place = add_module(folder, MODULE, {"type": self.kind, KEY: {"read": self.read}})
            (place / NAMES).write_text("".join(f"{name}\n" for name in self.names), "utf-8")
            self.head.write(place)
            write_probes(folder, self)


def _check_read(dense: DenseEncoder, read: Read) -> None:
    if read == "tokens" and dense.dim != dense.state_width:
        raise ConfigError(
            f"read: tokens: tokens have {dense.state_width} dimensions and the vectors of names "
            f"{dense.dim}; leave projection out, or read: text"
        )
