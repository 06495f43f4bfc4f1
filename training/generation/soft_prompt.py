"""A soft prompt: virtual tokens, learnt, that a language model reads before it writes queries."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import check_version, fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout import read_object
from sluice.training.generation.query_prompt import Shot

if TYPE_CHECKING:
    pass


FACTS = "soft_prompt.json"


VECTORS = "soft_prompt.safetensors"


NAME = "vectors"


FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class SoftPrompt:
    """Vectors ``[tokens, width]`` that stand before the embeddings of what a model reads.

    ``prompt`` is the text around the document, whose beginning of ``document_length`` tokens is
    read, ``shots`` are the example pairs chosen for it, with queries of up to ``length`` tokens.
    ``model`` is the hash of the weights it was learnt with: it means nothing to others. ``losses``
    are the held-out pairs' mean cross-entropies of a token: ``start``, ``learnt``, ``chosen``.
    (Lester, Al-Rfou and Constant 2021, "The power of scale for parameter-efficient prompt tuning".)
    """

    vectors: NDArray[np.float32]
    prompt: str
    document_length: int
    length: int
    model: str
    shots: tuple[Shot, ...] = ()
    losses: dict[str, float] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides what is written with it."""
        facts = [self.prompt, self.document_length, self.length, self.model, self.shots]
        return fingerprint_of(self.vectors.tobytes().hex(), self.vectors.shape, facts)

    def save(self, path: str | Path) -> None:
        """Write a folder, in one step: the vectors as safetensors, the rest as JSON."""
        from safetensors.numpy import save_file

        facts = {key: value for key, value in asdict(self).items() if key != NAME}
        facts["shots"] = [shot._asdict() for shot in self.shots]
        with replaced_folder(Path(path), (FACTS,)) as folder:
            save_file({NAME: np.ascontiguousarray(self.vectors)}, folder / VECTORS)
            text = json.dumps({"version": FORMAT, **facts}, indent=2, ensure_ascii=False)
            (folder / FACTS).write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> SoftPrompt:
        """Read a folder that ``save`` wrote; ``ModelError`` for anything else."""
        folder = Path(path)
        if not (folder / FACTS).is_file() or not (folder / VECTORS).is_file():
            raise ModelError(
                f"{folder}: no soft prompt; expected a folder that `sluice teach prompt` wrote"
            )
        facts = read_object(folder / FACTS)
        check_version(facts.pop("version", None), FORMAT, folder / FACTS, ModelError)
        try:
            return cls(vectors=_vectors(folder / VECTORS), **_typed(facts))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"{folder / FACTS}: not a soft prompt ({error}); it was edited or damaged: learn "
                "it again"
            ) from None


def _typed(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a file as the arguments of the class; ``ValueError`` for other types."""
    whole = {key: facts[key] for key in ("document_length", "length")}
    texts = {key: facts[key] for key in ("prompt", "model")}
    shots = tuple(Shot(each["document"], each["query"]) for each in facts["shots"])
    if any(type(value) is not int or value < 1 for value in whole.values()):
        raise ValueError(f"lengths {whole}")
    if not all(isinstance(text, str) for text in (*texts.values(), *sum(shots, ()))):
        raise ValueError("texts that are none")
    losses = {str(name): float(value) for name, value in facts["losses"].items()}
    return {**whole, **texts, "shots": shots, "losses": losses}


def _vectors(file: Path) -> NDArray[np.float32]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        vectors: NDArray[np.float32] | None = load_file(file).get(NAME)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: not readable as safetensors ({error})") from None
    if vectors is None or vectors.ndim != 2 or vectors.dtype != np.float32 or not vectors.size:
        raise ModelError(f"{file}: expected one matrix {NAME!r} of float32, [tokens, width]")
    if not np.isfinite(vectors).all():
        raise ModelError(f"{file}: has numbers that are not finite; learn the prompt again")
    return vectors
