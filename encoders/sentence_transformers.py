"""The modules of saved models that sentence-transformers lacks, as classes that it can run.

``modules.json`` names them, and sentence-transformers imports them with ``trust_remote_code=True``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn, Self

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.rerankers import similarity_head
from sluice.encoders.splade.terms import TermFrequency, bags, selections

LIMITS = ("lexical", "query_top_k", "prune_below", "prune_ratio", "document_top_k")


class TermWeights(Module):  # type: ignore[misc]
    """Makes a SPLADE encoder's vectors of the weights that ``SpladePooling`` pooled.

    A query's for the task ``query``, which ``encode_query`` names, else a document's. ``settings``
    are as in ``sluice.json``; ``special`` are the ids of special tokens, which are never terms.
    """

    config_keys = ["settings", "special"]  # noqa: RUF012
    forward_kwargs = {"task"}  # noqa: RUF012

    def __init__(self, settings: dict[str, Any], special: list[int]) -> None:
        super().__init__()
        self.settings, self.special = settings, special
        self._selections = selections(*(settings[name] for name in LIMITS))
        frequency = settings.get("term_frequency")
        self._frequency = TermFrequency(**frequency) if frequency else None

    def forward(self, features: dict[str, Any], task: str | None = None) -> dict[str, Any]:
        """Replace ``sentence_embedding`` ``[n, vocab]`` by the vectors of one side."""
        ids, mask = features["input_ids"], features["attention_mask"]
        vectors: Tensor = features["sentence_embedding"]
        if len(ids) != len(vectors):
            raise ModelError("TermWeights reads padded texts: open the model without unpad_inputs")
        special = torch.tensor(self.special, device=ids.device)
        own = bags(ids, mask, vectors.shape[1]).index_fill(1, special, 0.0)
        side = "query" if task == "query" else "document"
        if side == "query" and self.settings["query_model"] == "bow":
            vectors = own
        elif side == "document" and self._frequency is not None:
            vectors = vectors * self._frequency.of_batch(ids, mask, special, vectors.shape[1])
        features["sentence_embedding"] = self._selections[side].of_batch(vectors, own)
        return features

    def save(self, output_path: str, *args: Any, **options: Any) -> None:
        """Write the settings."""
        self.save_config(output_path)


class SimilarityHead(Module, similarity_head.SimilarityHead):  # type: ignore[misc]
    """Scores pairs by the states of their tokens, ``hidden`` wide.

    ``separators`` are the ids around the texts, ``segments`` whether the tokenizer numbers both.
    """

    config_keys = ["hidden", "separators", "segments"]  # noqa: RUF012

    def __init__(self, hidden: int, separators: list[int], segments: bool) -> None:
        super().__init__(hidden)
        self.hidden, self.separators, self.segments = hidden, separators, segments

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        """Add ``scores`` ``[n, 1]`` of the ``token_embeddings`` ``[n, length, hidden]``."""
        types = features["token_type_ids"] if self.segments else None
        ids, mask = features["input_ids"], features["attention_mask"]
        texts = similarity_head.sides(ids, mask, types, torch.tensor(self.separators))
        scores = similarity_head.SimilarityHead.forward(self, features["token_embeddings"], *texts)
        return {**features, "scores": scores.unsqueeze(1)}

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> Self:
        """Read the head from its folder in a model, on this machine or the hub."""
        names = ("token", "cache_folder", "revision", "local_files_only")
        hub = {name: options[name] for name in names if name in options}
        try:
            module: Self = super().load(model_name_or_path, subfolder=subfolder, **options)
        except TypeError:
            where = Path(model_name_or_path, subfolder)
            raise ModelError(f"{where}: holds no settings of a similarity head") from None
        cls.load_torch_weights(model_name_or_path, subfolder, model=module, **hub)
        return module

    def save(self, output_path: str, *args: Any, **options: Any) -> None:  # type: ignore[override]
        """Write settings and weights."""
        Module.save_config(self, output_path)
        Module.save_torch_weights(self, output_path)


class OnlySluice(Module):  # type: ignore[misc]
    """A part that no other library can run: a model that has it is refused."""

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> NoReturn:
        """Raise ``ModelError``."""
        raise ModelError(
            f"{model_name_or_path}: only Sluice runs its {subfolder.partition('_')[2]}, and without"
            " it all scores would be others; open an encoder with sluice.encoders.as_encoder("
            f"{model_name_or_path!r}), a reranker with as_scorer"
        )


Concepts = Experts = Gaussian = HyperHead = PseudoQueries = TermHead = TopLayers = OnlySluice
