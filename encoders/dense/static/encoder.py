"""Static encoders: a text's vector is the mean of its tokens' vectors, which are in a table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from sluice.encoders.backends.backend import pick_device
from sluice.encoders.dense.pooling import dims_noted
from sluice.encoders.dense.static.folder import read_static, write_static
from sluice.encoders.encoder import Dense, EncoderBase, Side
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.tokens import report_tokens
from sluice.encoders.model_files.identity import state_hash, versions
from sluice.encoders.model_files.layout import length_in, write_sidecar
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.model_files.prompts import look_for_prompts, side_prompts
from sluice.encoders.transformer.projection import chosen_projection, cut_vectors
from sluice.encoders.transformer.tokens import Ids, check_texts, chunks, tokenized, tokenizer_state
from sluice.encoders.transformer.vector_layers import VectorLayer, kinds_of, write_layers
from sluice.familiar import Similarity

PROGRESS_FROM = 20_000  # texts; shorter calls stay silent

log = logging.getLogger("sluice")


class StaticEncoder(EncoderBase):
    """The mean of token vectors, optional layers over vectors, an optional normalisation.

    No network runs: each token of a text costs one read of the table. Tokens are the tokenizer's,
    without special ones. (Tulkens and van Dongen, 2024, model2vec; Aarsen, 2025, static embedding
    models of sentence-transformers.) ``skip`` is a token that means leave out.
    """

    kind = "static"

    def __init__(
        self,
        table: Tensor,
        tokenizer: Any,
        *,
        projection: VectorLayer | None = None,
        normalize: bool = True,
        skip: int | None = None,
        query_prompt: str = "",
        document_prompt: str = "",
        query_length: int | None = None,
        document_length: int | None = None,
        matryoshka_dims: Sequence[int] = (),
        device: str = "auto",
    ) -> None:
        self.device: torch.device = pick_device(device)
        parts = nn.ModuleDict()
        parts["embedding"] = nn.Embedding(table.shape[0], table.shape[1], _weight=table)
        if projection is not None:
            parts["projection"] = projection
        self.module: nn.Module = parts.eval().to(self.device)
        self.projection = projection
        self.normalize: bool = normalize
        self.tokenizer: Any = tokenizer
        self.skip = skip
        self.prompts: dict[str, str] = {"query": query_prompt, "document": document_prompt}
        self._cuts: dict[str, int | None] = {"query": query_length, "document": document_length}
        for side, length in self._cuts.items():
            if length is not None:
                whole_number(length, f"{side}_length", 1)
                self._check_room(self.prompts[side], side, length)
        self.matryoshka_dims = tuple(matryoshka_dims)  # the prefixes it was trained for
        self._prompts_met: set[str] = set()  # sides whose prompt texts were found to bring
        self._hashed: tuple[object, str] = ((), "")

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        projection: int | dict[str, Any] | None = None,
        normalize: bool | None = None,
        dim: Annotated[int | None, "Keeps only so many of the vectors' first dimensions."] = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        query_length: int | None = None,
        document_length: int | None = None,
        device: str = "auto",
        seed: int = 13,
    ) -> StaticEncoder:
        """Load a folder of sentence-transformers' ``StaticEmbedding``, or of model2vec.

        Arguments left at None come from the folder. ``projection`` and ``dim`` are as in
        ``DenseEncoder``. Without ``modules.json`` a folder is read as model2vec reads it: means
        leave out unknown words, and texts are cut at 512 tokens.
        """
        folder = model_folder(str(model))
        found = read_static(folder)
        layout, width = found.layout, int(found.table.shape[1])
        head = chosen_projection(projection, layout.layers, width, seed)
        dim = layout.truncate_dim if dim is None else dim
        head, shortened = cut_vectors(head, width, dim, layout.sidecar)
        prompts = side_prompts(layout, folder)
        given = {"query": query_length, "document": document_length}
        lengths = {
            side: (length_in(layout.sidecar, f"{side}_length", folder) or found.length)
            if length is None else length
            for side, length in given.items()
        }  # fmt: skip
        return cls(
            found.table[:, :shortened].contiguous(),
            found.tokenizer,
            projection=head,
            normalize=layout.normalize if normalize is None else normalize,
            skip=found.skip,
            query_prompt=prompts["query"] if query_prompt is None else query_prompt,
            document_prompt=prompts["document"] if document_prompt is None else document_prompt,
            query_length=lengths["query"],
            document_length=lengths["document"],
            matryoshka_dims=dims_noted(layout.sidecar, folder),
            device=device,
        )

    def _check_room(self, prompt: str, side: str, length: int) -> None:
        ids = tokenized(self.tokenizer, [prompt], length=None).ids[0]
        count = len(ids) if self.skip is None else int((ids != self.skip).sum())
        if count >= length:
            raise ConfigError(
                f"{side}_prompt: takes {count} tokens, but {side}_length is {length}, which leaves "
                "no room for the text"
            )

    def take_side(self, side: Side) -> None:
        """Read texts of both sides as those of one, for a tower of that side alone."""
        self.prompts = dict.fromkeys(self.prompts, self.prompts[side])
        self._cuts = dict.fromkeys(self._cuts, self._cuts[side])

    @property
    def table(self) -> nn.Embedding:
        """The tokens' vectors, ``[vocabulary, width]``."""
        table: Any = self.module.get_submodule("embedding")
        return table  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """The arithmetic type, that of the table."""
        return torch.float32

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return self.table.embedding_dim if self.projection is None else self.projection.outputs

    @property
    def similarity(self) -> Similarity:
        """The similarity the vectors are made for."""
        return Similarity("cosine" if self.normalize else "dot")

    @property
    def lengths(self) -> Mapping[str, int]:
        """The most tokens of a text of each side that is cut at all."""
        return {side: length for side, length in self._cuts.items() if length is not None}

    @property
    def head_parameters(self) -> tuple[str, ...]:
        """How the names of the layers' parameters begin."""
        return ("projection.",)

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides table and tokenizer."""
        return {
            "kind": self.kind, "prompts": self.prompts, "lengths": self._cuts, "skip": self.skip,
            "normalize": self.normalize,
            "layers": None if self.projection is None else self.projection.described,
        }  # fmt: skip

    @property
    def fingerprint(self) -> str:
        """A hash of table, layers, tokenizer, prompts and lengths (not of the device)."""
        state = dict(self.module.state_dict(keep_vars=True))
        now = versions(state.values())
        if self._hashed[0] != now:
            self._hashed = now, state_hash(state)
        return fingerprint_of(self._hashed[1], tokenizer_state(self.tokenizer), self.settings())

    def token_ids(self, texts: Sequence[str], side: Side) -> list[list[int]]:
        """Return the ids of the tokens whose vectors make a text's, with the prompt's."""
        return [ids.tolist() for ids in self._ids(texts, side)]

    def _ids(self, texts: Sequence[str], side: Side) -> list[Ids]:
        check_texts(texts)
        prompt, length = self.prompts[side], self._cuts[side]
        prompted = [prompt + text for text in texts] if prompt else texts
        if self.skip is None:
            tokens = tokenized(self.tokenizer, prompted, length=length)
            report_tokens(tokens.counts)
            return tokens.ids
        ids = tokenized(self.tokenizer, prompted, length=None).ids
        return [text[text != self.skip][:length] for text in ids]

    def tokenize(self, texts: Sequence[str], side: Side) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask`` ``[n, longest]``, ready for ``embed``."""
        rows = self._ids(texts, side)
        ids = np.zeros((len(rows), max([1, *map(len, rows)])), np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(rows):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}

    def embed(self, features: Mapping[str, Tensor], side: Side) -> Tensor:
        """Return the vectors ``[n, dim]`` of tokenised texts, float32, with gradients."""
        weights = features["attention_mask"].float()[:, None]
        total = torch.bmm(weights, self.table(features["input_ids"]))[:, 0]
        return self._finished(total / weights.sum(dim=2).clamp(min=1.0))

    def _finished(self, means: Tensor) -> Tensor:
        vectors = means if self.projection is None else self.projection(means).float()
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def encode_queries(self, texts: Sequence[str]) -> Dense:
        """Return the queries' vectors, float32 ``[n, dim]``, in input order."""
        return self._encoded(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> Dense:
        """Return the documents' vectors, float32 ``[n, dim]``, in input order."""
        return self._encoded(texts, "document")

    def _encoded(self, texts: Sequence[str], side: Side) -> Dense:
        check_texts(texts)
        look_for_prompts(texts, side, self.prompts, self._prompts_met)
        vectors = np.zeros((len(texts), self.dim), np.float32)
        show = len(texts) >= PROGRESS_FROM
        with (
            progress(f"encode {side} texts", len(texts), "texts", show=show) as advance,
            torch.inference_mode(),
        ):
            for start, stop in chunks(len(texts)):
                vectors[start:stop] = self._chunk(self._ids(texts[start:stop], side))
                advance(stop - start)
        return vectors

    def _chunk(self, rows: Sequence[Ids]) -> Dense:
        lengths = torch.tensor([len(ids) for ids in rows])
        ids = torch.from_numpy(np.concatenate(rows).astype(np.int64))
        means = nn.functional.embedding_bag(
            ids.to(self.device),
            self.table.weight,
            (lengths.cumsum(0) - lengths).to(self.device),
            mode="mean",  # zeros for a text without tokens
        )
        found: Dense = self._finished(means).cpu().numpy()
        return found

    def save_pretrained(self, path: str | Path) -> None:
        """Write a sentence-transformers folder, replacing ``path`` in one step.

        It cannot express a token that means leave out, nor a length per side: they are in
        ``sluice.json`` beside it, and the former is logged as a warning.
        """
        lengths = list(self._cuts.values())
        longest = None if None in lengths else max(length for length in lengths if length)
        noted = {f"{side}_length": length for side, length in self.lengths.items()}
        with replaced_folder(Path(path)) as folder:
            places = write_static(
                folder,
                self.table.weight,
                self.tokenizer,
                length=longest,
                layers=kinds_of(self.projection),
                normalize=self.normalize,
                prompts=self.prompts,
                similarity=self.similarity,
            )
            write_layers(self.projection, places)
            skips = {} if self.skip is None else {"skip_unknown": True}
            dims = [dim for dim in self.matryoshka_dims if dim <= self.dim]
            trained = {"matryoshka_dims": dims} if dims else {}
            write_sidecar(folder, {"type": self.kind, **noted, **skips, **trained})
            write_probes(folder, self)
        if self.skip is not None:
            log.warning(
                "%s: its means leave out unknown words, as model2vec's do; sentence-transformers "
                "counts them", path,
            )  # fmt: skip
