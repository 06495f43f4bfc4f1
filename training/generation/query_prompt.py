"""What a language model reads before it writes a query: examples, a document, learnt vectors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Gt
from numpy.typing import NDArray

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.disk.files import check_version, fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layout import read_object

PROMPT = "Document: {text}\nQuery:"


@dataclass(frozen=True, slots=True)
@checked()
class PromptTuning:
    """``tokens`` vectors, begun as those of ``text``, that make a frozen model write queries.

    The model reads them, then ``shots`` example pairs drawn anew for each pair and epoch, then the
    document in its ``prompt``; what is minimised is the cross-entropy of the query's tokens and the
    end, by Adam with a rate that falls linearly from ``learning_rate``, ``batch`` pairs a step, for
    ``epochs`` or until ``patience`` of them brought no lower loss of the held-out pairs. Then
    ``choices`` groups of examples are drawn, and the one with the lowest loss of the held-out pairs
    is kept. Documents are cut to ``document_length`` tokens (as many as there is room for, at most
    384), queries to ``length``.
    (SPTAR; Peng et al. 2023, "Soft prompt tuning for augmenting dense retrieval with large language
    models", arXiv 2307.08303, sections 3.2 and 3.3.)
    """

    tokens: Annotated[int, Ge(1), "Its vectors."] = 50
    text: Annotated[str, "The text whose embeddings they begin as."] = (
        "please generate a query for this document"
    )
    shots: Annotated[int, Ge(0), "Example pairs shown before each document."] = 2
    choices: Annotated[int, Ge(1), "Groups of examples of which one is chosen."] = 10
    epochs: Annotated[int, Ge(1), "Most epochs over the pairs."] = 100
    learning_rate: Annotated[float, Gt(0), "The learning rate at the start."] = 0.03
    batch: Annotated[int, Ge(1), "Pairs in a step."] = 1
    patience: Annotated[int, Ge(1), "Epochs without a better one before it ends."] = 5
    prompt: str = PROMPT
    document_length: Annotated[int | None, Ge(1), "Most tokens of a document."] = None
    length: Annotated[int, Ge(2), "Most tokens of a query."] = 32  # a token and the end

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise ConfigError(f"text: {self.text!r}; expected the text that the vectors begin as")


class Shot(NamedTuple):
    """A document with a query for it, shown as an example before the document to write for."""

    document: str
    query: str


class QueryPrompt:
    """A text with ``{text}`` where the document goes, cut to ``document_length`` tokens.

    An example is the same text around its own document, then its query and a line break. With
    ``special`` the tokens that the tokenizer puts around a text stand around the whole.
    """

    def __init__(
        self, tokenizer: Any, prompt: str, document_length: int, *, special: bool, end: int
    ) -> None:
        if "{text}" not in prompt:
            raise ConfigError(f"prompt: {prompt!r}; expected {{text}} where the document goes")
        self._tokenizer = tokenizer
        self._length = document_length
        self._special = special
        self._end = end
        before, _, after = prompt.partition("{text}")
        self._before, self._after = self._plain(before), self._plain(after)
        self._line = self._plain("\n")
        self._around = _special(tokenizer) if special else ([], [])

    def fixed(self, shots: int) -> int:
        """Return the tokens that stand around documents and queries, ``shots`` examples with it."""
        around = sum(map(len, self._around))
        return around + (shots + 1) * len(self._before + self._after) + shots * len(self._line)

    def shown(self, shots: Sequence[Shot], query_length: int) -> list[int]:
        """Return the tokens of examples, their queries cut to ``query_length`` tokens."""
        ids: list[int] = []
        for shot in shots:
            own = self._plain(shot.document)[: self._length]
            ids += [*self._before, *own, *self._after]
            ids += [*self._plain(f" {shot.query}")[:query_length], *self._line]
        return ids

    def rows(self, texts: Sequence[str], shown: Sequence[int] = ()) -> list[list[int]]:
        """Return the tokens read for each document, behind those of the examples ``shown``."""
        inner = self._tokenizer(
            list(texts), add_special_tokens=False, truncation=True, max_length=self._length
        )
        first, last = self._around
        return [
            [*first, *shown, *self._before, *own, *self._after, *last] for own in inner["input_ids"]
        ]

    def target(self, query: str, length: int) -> list[int]:
        """Return the tokens to write for a query: at most ``length``, the last one the end."""
        text = query if self._special else f" {query}"
        return [*self._plain(text)[: length - 1], self._end]

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end what a model writes, as its folder says."""
    settings = getattr(model, "generation_config", None)
    for home in (settings, model.config, tokenizer):
        ends = getattr(home, "eos_token_id", None)
        if ends is not None:
            return [int(token) for token in (ends if isinstance(ends, list) else [ends])]
    raise ModelError(f"{type(model).__name__}: has no end token; a generator needs one")


def line_breaks(tokenizer: Any) -> list[int]:
    """Return the tokens that have a line break, alone or behind other characters."""
    written = ("\n", "Ċ", "<0x0A>")  # plainly, in byte-level BPE, as a byte of SentencePiece
    places = tokenizer.get_vocab().items()
    likely = [place for name, place in places if any(each in name for each in written)]
    return sorted(place for place in likely if "\n" in tokenizer.decode([place]))


def _special(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after a text."""
    bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    full = list(tokenizer("a")["input_ids"])
    start = next(n for n in range(len(full)) if full[n : n + len(bare)] == bare)
    return full[:start], full[start + len(bare) :]


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
            return cls(vectors=_vectors(folder / VECTORS), **_arguments(facts))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"{folder / FACTS}: not a soft prompt ({error}); it was edited or damaged: learn "
                "it again"
            ) from None


def _arguments(facts: dict[str, Any]) -> dict[str, Any]:
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
