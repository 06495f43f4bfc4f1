"""Rerankers that answer true or false to a prompt: encoders with a decoder, which are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Self, Unpack

import numpy as np
import torch
from torch import Tensor

from sluice.encoders.encoder import EncoderBase
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.model_files.layout import SIDECAR, read_sidecar, write_ranker, write_sidecar
from sluice.encoders.model_files.loading import save
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import Computing, takes_options
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.rerankers.language_model import Prompt, Template
from sluice.encoders.rerankers.local_language_model import LocalLanguageModel
from sluice.encoders.rerankers.next_tokens import first_token_of
from sluice.encoders.rerankers.pairs import check_pairs
from sluice.encoders.transformer.model import Features, TransformerModel
from sluice.encoders.transformer.tokens import Ids

PROMPT: Final = "Query: {query} Document: {document} Relevant:"  # monoT5's
ALONE: Final = "Document: {document} Relevant:"  # of a document without a query, QualT5's
ANSWERS: Final = ("true", "false")  # the first says that it is relevant
SETTINGS: Final = ("prompt", "answers", "max_length")


class TrueFalseRanker(TransformerModel, EncoderBase):
    """An encoder with a decoder whose score is log P(true) - log P(false) of its first word.

    ``prompt`` has {document}, and {query} unless it is of documents alone. Left out, it is monoT5's
    (Nogueira et al. 2020, arXiv 2003.06713), and for a pair with a blank query QualT5's (Chang et
    al. 2024, arXiv 2407.12170). The score is a logit, so that ``bce`` is the cross-entropy of both
    words that these are trained by; any loss of a cross-encoder will do.
    """

    kind = "true_false"

    def __init__(
        self,
        reader: LocalLanguageModel,
        *,
        prompt: str | None = None,
        answers: Sequence[str] = ANSWERS,
    ) -> None:
        if not reader.encoder_decoder:
            raise ModelError(
                f"{type(reader.model).__name__}: a decoder alone; expected an encoder with a "
                "decoder, such as a T5, or use it by type: generative"
            )
        words = [] if isinstance(answers, str) else list(answers)
        if len(words) != 2 or not all(isinstance(word, str) and word.strip() for word in words):
            raise ConfigError(f"answers: {answers!r}; expected two words, the relevant one first")
        super().__init__(
            reader.model, reader.tokenizer, device=str(reader.device), dtype="float32",
            batch_tokens=reader.batch_tokens,
        )  # fmt: skip
        self.dtype = reader.dtype
        self.prompt, self.words = prompt, (words[0], words[1])
        self._reader = reader
        self._template = Template(PROMPT if prompt is None else prompt, ["document"], ["query"])
        self._alone = Template(ALONE, ["document"]) if prompt is None else self._template
        for word in words:
            reader.first_token(word)
        before, self._choice = reader.choice_tokens(Prompt(("",), ()), words)
        self._start = [first_token_of(self.model.config), *before]
        self._tokens([("a", "a")])  # refuses a prompt that leaves texts no room

    @classmethod
    @takes_options(Computing)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        prompt: Annotated[
            str | None,
            "The prompt, with {document} and perhaps {query}; left out, monoT5's, or QualT5's "
            "without a query.",
        ] = None,
        answers: Annotated[
            Sequence[str] | None,
            "The two words, the one for relevant first; left out, true and false.",
        ] = None,
        max_length: Annotated[int | None, "The most tokens of a prompt with its texts."] = None,
        **options: Unpack[Computing],
    ) -> Self:
        """Load a folder, or any encoder with a decoder, such as a T5; only safetensors.

        What is left out is as in the folder, else as above. ``answers`` are the two words, the one
        for relevant first, and ``max_length`` the tokens of a prompt, whose texts are cut to fit.
        """
        folder = model_folder(str(model))
        noted = read_sidecar(folder)
        if noted and noted.get("type") != cls.kind:
            raise ModelError(
                f"{folder}: a model of type {noted.get('type')!r}, which answers no prompt; "
                "expected an encoder with a decoder, such as a T5"
            )
        given = {"prompt": prompt, "answers": answers, "max_length": max_length}
        saved = {key: noted[key] for key in SETTINGS if noted.get(key) is not None}
        chosen = {**saved, **{key: value for key, value in given.items() if value is not None}}
        try:
            length = chosen.get("max_length")
            if length is not None:
                whole_number(length, "max_length", 8)
            reader = LocalLanguageModel.from_pretrained(
                folder, context_length=length, chat=False, **options
            )
            words = chosen.get("answers", ANSWERS)
            return cls(reader, prompt=chosen.get("prompt"), answers=words)
        except ConfigError as error:
            text = str(error).replace("context_length", "max_length")
            if not noted or any(value is not None for value in given.values()):
                raise ConfigError(text) from None
            raise ModelError(f"{folder / SIDECAR}: {text}; take it from its source again") from None

    @property
    def max_length(self) -> int:
        """The most tokens of a prompt with its texts."""
        return self._reader.context_length

    @property
    def lengths(self) -> Mapping[str, int]:
        """The most tokens of a pair."""
        return {"pair": self.max_length}

    @property
    def fingerprint(self) -> str:
        """A hash of weights, tokenizer, prompt, words and length."""
        settings = [self.prompt, *self.words, self.max_length]
        return fingerprint_of(self.weights_hash(), self.kind, settings)

    def _tokens(self, pairs: Sequence[tuple[str, str]]) -> list[Ids]:
        return self._reader.prompt_tokens(self._asked(pairs))

    def _asked(self, pairs: Sequence[tuple[str, str]]) -> list[Prompt]:
        return [
            (self._template if query.strip() else self._alone).fill(
                {"query": query, "document": document}
            )
            for query, document in pairs
        ]

    def tokenize_pairs(self, pairs: Sequence[tuple[str, str]]) -> Features:
        """Return the padded features of (query, document) pairs, ready for ``logits``."""
        check_pairs(pairs)
        return self.pad(self._tokens(pairs))

    def logits(self, features: Features) -> Tensor:
        """Return the log-odds of the first word per pair, float32 ``[n]``, with gradients."""
        count = len(features["input_ids"])
        start = torch.tensor([self._start], device=features["input_ids"].device)
        output = self.model(**features, decoder_input_ids=start.expand(count, -1), use_cache=False)
        both: Tensor = output.logits[:, -1, self._choice].float()
        return both[:, 0] - both[:, 1]

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return the log-odds of the first word per pair, float32 ``[n]``, in input order."""
        check_pairs(pairs)
        scores = np.zeros(len(pairs), np.float32)
        for batch in self._reader.batches(self._asked(pairs), 1):
            with self.arithmetic():
                scores[batch.rows] = self.logits(self.padded(batch)).cpu().numpy()
        return scores

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder that transformers opens too, in one step."""
        with replaced_folder(Path(path)) as folder:
            save(self.model, folder)
            self.tokenizer.save_pretrained(folder)
            prompt = {} if self.prompt is None else {"prompt": self.prompt}
            words = {"answers": list(self.words), "max_length": self.max_length}
            write_sidecar(folder, {"type": self.kind, **prompt, **words})
            write_ranker(folder, "prompt")
            write_probes(folder, self)
