"""An encoder of a ``SentenceTransformer`` object, whatever its modules are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from sluice.encoders.encoder import Dense, EncoderBase, Side
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, DataError, needed_package
from sluice.encoders.model_files.identity import versions
from sluice.encoders.model_files.layout import write_sidecar
from sluice.encoders.model_files.loading import as_model_error, quiet_transformers
from sluice.encoders.model_files.remote_code import refuse_own_modules


class SentenceTransformerEncoder(EncoderBase):
    """Dense vectors as a ``SentenceTransformer`` encodes queries and documents.

    They are those of its ``encode_query`` and ``encode_document``, with its prompts and lengths, on
    its device. Where the model's similarity is the cosine, vectors have length 1. It is saved as
    sentence-transformers saves it, and opened with that package. ``DenseEncoder.from_pretrained``
    reads most such folders too, and encodes faster.
    """

    kind = "sentence_transformer"

    def __init__(self, model: Any, *, batch_size: int = 32) -> None:
        similarity: Any = getattr(model, "similarity_fn_name", None) or "cosine"
        if similarity not in ("cosine", "dot"):
            raise ConfigError(
                f"SentenceTransformer: its similarity is {similarity!r}; expected cosine or dot: "
                "set model.similarity_fn_name"
            )
        self.model = model
        self.batch_size = batch_size
        self.similarity: Literal["cosine", "dot"] = similarity
        self._hashed: tuple[object, str] = ((), "")

    @property
    def normalize(self) -> bool:
        """Whether all vectors have length 1."""
        return self.similarity == "cosine"

    @property
    def dim(self) -> int | None:
        """The number of dimensions."""
        named = ("get_embedding_dimension", "get_sentence_embedding_dimension")
        width = next(getattr(self.model, name) for name in named if hasattr(self.model, name))()
        return None if width is None else int(width)

    @property
    def device(self) -> Any:
        """Where the model is."""
        return self.model.device

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        tokenizer = getattr(self.model, "tokenizer", None)
        return tokenizer if hasattr(tokenizer, "convert_ids_to_tokens") else None

    @property
    def prompts(self) -> Mapping[str, str]:
        """What is put before a text of each side."""
        return {"query": self._prompt("query"), "document": self._prompt("document", "passage")}

    @property
    def lengths(self) -> Mapping[str, int]:
        """The most tokens of a text, if the model has a limit."""
        length = getattr(self.model, "max_seq_length", None)
        return {} if length is None else {"query": int(length), "document": int(length)}

    @property
    def fingerprint(self) -> str:
        """A hash of weights, modules, prompts, length and similarity."""
        state = self.model.state_dict()
        now = versions(state.values())
        if self._hashed[0] != now:
            digest = hashlib.sha256()
            for name, tensor in sorted(state.items()):
                plain = tensor.detach().cpu().contiguous().reshape(-1)
                digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                digest.update(memoryview(plain.view(torch.uint8).numpy()))
            self._hashed = now, digest.hexdigest()
        modules = [type(module).__name__ for module in self.model.children()]
        settings = (self.prompts, self.lengths, getattr(self.model, "truncate_dim", None))
        return fingerprint_of(
            "sluice.sentence_transformer", self._hashed[1], modules, *settings, self.similarity
        )

    def encode_queries(self, texts: Sequence[str]) -> Dense:
        """Return the queries' vectors, float32 ``[n, dim]``, in input order."""
        return self._encoded(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> Dense:
        """Return the documents' vectors, float32 ``[n, dim]``, in input order."""
        return self._encoded(texts, "document")

    def _encoded(self, texts: Sequence[str], side: Side) -> Dense:
        if isinstance(texts, str):
            raise DataError("texts: a single str; expected several texts: put it into a list")
        if not len(texts):
            return np.zeros((0, int(self.dim or 0)), np.float32)
        options: dict[str, Any] = {
            "batch_size": self.batch_size, "show_progress_bar": False, "convert_to_numpy": True,
            "normalize_embeddings": self.normalize,
        }  # fmt: skip
        encode = getattr(self.model, f"encode_{side}", None)
        if encode is None:  # before sentence-transformers 5
            encode, options["prompt"] = self.model.encode, self.prompts[side] or None
        return np.asarray(encode(list(texts), **options), np.float32)

    def _prompt(self, *names: str) -> str:
        prompts = dict(getattr(self.model, "prompts", None) or {})
        default = prompts.get(getattr(self.model, "default_prompt_name", None) or "", "")
        return next((prompts[name] for name in names if prompts.get(name)), default or "")

    def save_pretrained(self, path: str | Path) -> None:
        """Write the model's own folder, replacing ``path`` in one step."""
        with replaced_folder(Path(path)) as folder, quiet_transformers():
            self.model.save_pretrained(str(folder), create_model_card=False)
            write_sidecar(folder, {"type": self.kind})

    @classmethod
    def from_pretrained(
        cls, model: str | Path, *, device: str = "auto"
    ) -> SentenceTransformerEncoder:
        """Load a sentence-transformers folder, with that package; no code of the folder runs.

        ``ModelError`` for a module that is not the package's own, or an activation not torch's:
        versions before 6 import those of a local folder.
        """
        refuse_own_modules(Path(model))
        with needed_package(
            "sentence-transformers", "sentence-transformers", f"{model}: a SentenceTransformer"
        ):
            from sentence_transformers import SentenceTransformer
        with as_model_error(Path(model), "a SentenceTransformer"):
            opened = SentenceTransformer(
                str(model),
                device=None if device == "auto" else device,
                trust_remote_code=False,
                local_files_only=True,
            )
        return cls(opened)

    def __repr__(self) -> str:
        modules = ", ".join(type(module).__name__ for module in self.model.children())
        return f"SentenceTransformerEncoder({modules}, dim={self.dim})"
