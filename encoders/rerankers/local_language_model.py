"""A language model of transformers weights: a decoder, or an encoder with a decoder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.progress import progress
from sluice.encoders.model_files.loading import lengths_of, load, weights_type
from sluice.encoders.model_files.options import Computing, Dtype, takes_options
from sluice.encoders.model_files.weights.quantised import Weights
from sluice.encoders.rerankers.language_model import Prompt, fitted
from sluice.encoders.rerankers.next_tokens import NextTokens, end_tokens
from sluice.encoders.transformer.model import TransformerModel
from sluice.encoders.transformer.tokens import Ids, TokenBatch, Tokens, token_batches

NO_WRITERS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
SHOWN_FROM = 200  # prompts; fewer show no progress
CHUNK = 2_048  # prompts fitted and sorted together
USUAL_CONTEXT = 4_096  # tokens, for models that could read more


class LocalLanguageModel(TransformerModel):
    """A ``LanguageModel`` of transformers weights.

    A prompt is one user message in the tokenizer's chat template (if it has one and unless ``chat``
    is False), with thinking switched off. Queries and documents are cut to ``document_length``
    tokens each, if set, and further as needed for the prompt and its answer to fit
    ``context_length``. Names of special tokens are removed from them.

    A pass is the model's own, padded (on the left for a decoder). Cost: one pass per prompt for an
    answer, and one per token of a completion.
    """

    kind = "language_model"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        context_length: int | None = None,
        document_length: int | None = None,
        chat: bool | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
        batch_tokens: int | None = None,
    ) -> None:
        super().__init__(model, tokenizer, device=device, dtype=dtype, batch_tokens=batch_tokens)
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        self.chat = tokenizer.chat_template is not None if chat is None else chat
        if self.chat and tokenizer.chat_template is None:
            raise ConfigError("chat: true, but the tokenizer has no chat template")
        usual, longest = lengths_of(tokenizer, model.config)
        bounded = isinstance(getattr(model.config, "max_position_embeddings", None), int)
        self.context_length = min(longest, USUAL_CONTEXT) if bounded else usual
        if context_length is not None:
            if context_length < 8 or (bounded and context_length > longest):
                limit = f" to {longest:,}" if bounded else " or more"
                raise ConfigError(f"context_length: {context_length}; the model takes 8{limit}")
            self.context_length = context_length
        if document_length is not None and document_length < 1:
            raise ConfigError(f"document_length: {document_length}; expected 1 or more tokens")
        self.document_length = document_length
        self._ends = end_tokens(model, tokenizer)
        self._special = _special_names(tokenizer)

    @classmethod
    @takes_options(Computing)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        context_length: int | None = None,
        document_length: int | None = None,
        chat: bool | None = None,
        weights: Weights | None = None,
        **options: Unpack[Computing],
    ) -> LocalLanguageModel:
        """Load a causal or an encoder-decoder model by folder or hub id; only safetensors.

        ``weights`` int8 or int4 keeps the matrices in so many bits, see ``quantised``.
        """
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        from sluice.encoders.model_files.layout import (
            network_config,
            read_object,
            transformer_folder,
        )
        from sluice.encoders.model_files.locate import model_folder

        home = transformer_folder(model_folder(str(model)))
        config = read_object(network_config(home))
        names = config.get("architectures")
        for name in names if isinstance(names, list) else ():
            if str(name).endswith(NO_WRITERS):
                raise ModelError(
                    f"{home / 'config.json'}: a {name} writes no text; take a language model that "
                    "does, or open this one by type: dense, splade or cross_encoder"
                )
        both = bool(config.get("is_encoder_decoder"))
        auto_class = AutoModelForSeq2SeqLM if both else AutoModelForCausalLM
        bits = weights_type(str(model), weights)
        # An encoder that was made of a decoder may note that it reads from both sides.
        network, tokenizer, _, _ = load(
            auto_class, str(model), fresh=lambda key, model: False, weights=bits, is_causal=True
        )
        return cls(
            network,
            tokenizer,
            context_length=context_length,
            document_length=document_length,
            chat=chat,
            **options,
        )

    @property
    def fingerprint(self) -> str:
        """A hash of weights, tokenizer, and the settings that decide which tokens are read."""
        settings = [self.kind, self.context_length, self.document_length, self.chat]
        template = self.tokenizer.chat_template if self.chat else None
        return fingerprint_of(self.weights_hash(), settings, template)

    def answers(self, prompts: Sequence[Prompt], choices: Sequence[str]) -> NDArray[np.floating]:
        """Return log-probabilities ``[prompts, choices]`` of the choices' tokens, normalised.

        They are those of the first token in which the choices differ, in the first prompt's
        context; the tokens before it, common to all, are appended to the prompts. ``ConfigError``
        for choices that begin with the same token.
        """
        answers = np.zeros((len(prompts), len(choices)))
        if not prompts:
            return answers
        before, own = self.choice_tokens(prompts[0], choices)
        for batch in self.batches(prompts, len(before) + 1):
            with self.arithmetic():
                logits = self._read(batch, before, keep=False).logits[:, own]
                answers[batch.rows] = logits.float().log_softmax(dim=-1).cpu().numpy()
        return answers

    def first_token(self, word: str) -> int:
        """Return the first token of a word as it stands; ``ConfigError`` if it has none known."""
        ids = self._plain(word)
        if not ids or ids[0] == self.tokenizer.unk_token_id:
            raise ConfigError(
                f"answers: {word!r} is not in this model's vocabulary; give a word that it writes"
            )
        return ids[0]

    def logits_of(self, prompts: Sequence[Prompt], token: int) -> NDArray[np.float64]:
        """Return the logit of one token as the next after each prompt, float64 ``[n]``."""
        logits = np.zeros(len(prompts))
        for batch in self.batches(prompts, 1):
            with self.arithmetic():
                read = self._read(batch, (), keep=False).logits[:, token]
                logits[batch.rows] = read.float().cpu().numpy()
        return logits

    def completions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[str]:
        """Return the model's answer to each prompt, always taking the most likely token."""
        return self._answered(
            prompts, max_new_tokens, lambda read, rows: read.greedy(max_new_tokens, self._ends)
        )

    def drawn(
        self, prompts: Sequence[Prompt], max_new_tokens: int, temperature: float, seed: int
    ) -> list[str]:
        """Return an answer to each prompt whose tokens are drawn by softmax(logits / temperature).

        The same seed draws the same for a prompt, whichever stand beside it.
        """
        seeds = [
            hashlib.sha256(f"{seed}:{each.text}".encode("utf-8", "surrogatepass")).digest()
            for each in prompts
        ]

        def draw(read: NextTokens, rows: Sequence[int]) -> list[list[int]]:
            own = [np.random.default_rng(int.from_bytes(seeds[row][:16], "little")) for row in rows]
            return read.drawn(max_new_tokens, self._ends, temperature, own)

        return self._answered(prompts, max_new_tokens, draw)

    def _answered(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        write: Callable[[NextTokens, Sequence[int]], list[list[int]]],
    ) -> list[str]:
        answers = [""] * len(prompts)
        for batch in self.batches(prompts, max_new_tokens):
            with self.arithmetic():
                read = self._read(batch, (), keep=True)
                written = write(read, batch.rows.tolist())
            for row, tokens in zip(batch.rows.tolist(), written, strict=True):
                answers[row] = str(self.tokenizer.decode(tokens, skip_special_tokens=True)).strip()
        return answers

    def prompt_tokens(self, prompts: Sequence[Prompt], new_tokens: int = 1) -> list[Ids]:
        """Return the tokens of prompts, each cut to leave room for ``new_tokens`` more."""
        measure = _Tokenized(self)
        room = self.context_length - (0 if self.encoder_decoder else new_tokens)
        clean = [p.having([self._special.sub(" ", slot) for slot in p.slots]) for p in prompts]
        if self.document_length is not None:
            clean = [p.having(measure.cut(p.slots, self.document_length)) for p in clean]
        tokens = self.token_ids([prompt.text for prompt in clean])
        for place, ids in enumerate(tokens):
            if len(ids) > room:
                shorter = fitted(clean[place], room, measure)
                tokens[place] = self.token_ids([shorter.text])[0]
        return tokens

    def token_ids(self, texts: Sequence[str]) -> list[Ids]:
        """Return the tokens of prompts, with those that the template or tokenizer adds."""
        if self.chat:
            texts = [self._message(text) for text in texts]
        plain = self.tokenizer(
            list(texts), add_special_tokens=not self.chat, truncation=False, verbose=False
        )["input_ids"]
        if not self.chat and not self.encoder_decoder:  # a decoder continues the text itself
            special = set(self.tokenizer.all_special_ids)
            plain = [_without_end(ids, special) for ids in plain]
        padding = [int(self.tokenizer.pad_token_id)]
        return [np.asarray(ids or padding, np.int32) for ids in plain]

    def _message(self, text: str) -> str:
        message: str = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,  # read by templates of models that think first
        )
        return message

    def choice_tokens(self, prompt: Prompt, choices: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the tokens that all choices begin with after a prompt, and each's next one.

        ``ConfigError`` for choices that begin with the same token.
        """
        context, space = self._before_answer(prompt)
        tokens = [self._continued(context, space + choice)[0] for choice in choices]
        same = 0
        while len({tuple(ids[: same + 1]) for ids in tokens}) == 1 and same < len(tokens[0]):
            same += 1
        own = [ids[same] if same < len(ids) else -1 for ids in tokens]
        if -1 in own or len(set(own)) < len(own):
            raise ConfigError(
                f"answers: {', '.join(map(repr, choices))} begin with the same token in this "
                "model; give answers that begin differently"
            )
        return tokens[0][:same], own

    def answer_tokens(self, prompt: Prompt, answer: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return an answer's tokens as they follow a prompt, and the characters of each.

        Characters are [start, end) of ``answer``. ``ModelError`` for a tokenizer without them.
        """
        if not self.tokenizer.is_fast:
            raise ModelError(
                f"{type(self.tokenizer).__name__} does not tell where its tokens stand in a text; "
                "take a model with a fast tokenizer (tokenizer.json)"
            )
        context, space = self._before_answer(prompt)
        tokens, ends = self._continued(context, space + answer)
        moved = [(max(0, a - len(space)), max(0, b - len(space))) for a, b in ends]
        return tokens, moved

    def _before_answer(self, prompt: Prompt) -> tuple[str, str]:
        """Return the text that decides an answer's first tokens, and a space where it has one."""
        text = self._message(prompt.text) if self.chat else prompt.text
        last = next(reversed(self._special.findall(text)), None)
        bare = self.encoder_decoder or text[-1:].isspace() or text.endswith(last or "\n")
        return "" if self.encoder_decoder else text[-200:], "" if bare else " "

    def _continued(self, context: str, form: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of a text after another one, and the characters of each in it."""
        alone = self._plain(context)
        together, places = self._placed(context + form)
        if together[: len(alone)] != alone:
            return self._placed(form)
        cut = len(context)
        own = [(max(0, start - cut), max(0, end - cut)) for start, end in places[len(alone) :]]
        return together[len(alone) :], own

    def _placed(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return a text's tokens, and their characters where the tokenizer tells them."""
        fast = bool(self.tokenizer.is_fast)
        encoded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=fast, verbose=False
        )
        places = [(int(a), int(b)) for a, b in encoded["offset_mapping"]] if fast else []
        return list(encoded["input_ids"]), places

    def _plain(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def batches(self, prompts: Sequence[Prompt], new_tokens: int) -> Iterator[TokenBatch]:
        """Yield the tokens of prompts in batches of like length, with room for ``new_tokens``."""
        show = len(prompts) >= SHOWN_FROM
        with progress("ask", len(prompts), "prompts", show=show) as advance:
            for start in range(0, len(prompts), CHUNK):
                ids = self.prompt_tokens(prompts[start : start + CHUNK], new_tokens)
                for batch in token_batches(Tokens(ids, None), self.batch_tokens, padded=True):
                    yield batch._replace(rows=start + batch.rows)
                    advance(len(batch.rows))

    def _read(self, batch: TokenBatch, before: Sequence[int], *, keep: bool) -> NextTokens:
        return NextTokens(
            self.model,
            [ids.tolist() for ids in batch.ids],
            before,
            padding=int(self.tokenizer.pad_token_id),
            device=self.device,
            keep=keep,
        )


class _Tokenized:
    """Lengths of texts by a model's tokenizer: a ``Measure``. Each text is tokenised once."""

    def __init__(self, model: LocalLanguageModel) -> None:
        self._model = model
        self._known: dict[str, Any] = {}

    def whole(self, prompt: Prompt) -> int:
        return len(self._model.token_ids([prompt.text])[0])

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(ends) for ends in self._ends(texts)]

    def cut(self, texts: Sequence[str], length: int) -> list[str]:
        ends = self._ends(texts)
        return [
            text if len(end) <= length else text[: end[length - 1]] if length else ""
            for text, end in zip(texts, ends, strict=True)
        ]

    def _ends(self, texts: Sequence[str]) -> list[Any]:
        """Return the character position at which each token of a text ends."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            tokenizer = self._model.tokenizer
            fast = bool(tokenizer.is_fast)
            encoded = tokenizer(
                new, add_special_tokens=False, return_offsets_mapping=fast, verbose=False
            )
            for place, text in enumerate(new):
                count = len(encoded["input_ids"][place])
                if fast:
                    self._known[text] = [end for _, end in encoded["offset_mapping"][place]]
                else:  # no offsets: assumes tokens of equal length
                    self._known[text] = [len(text) * n // count for n in range(1, count + 1)]
        return [self._known[text] for text in texts]


def _special_names(tokenizer: Any) -> re.Pattern[str]:
    """Return a pattern for the names of a tokenizer's special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    names = {*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}
    longest_first = sorted(filter(str.strip, names), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _without_end(ids: list[int], special: Collection[int]) -> list[int]:
    """Return ids without the special tokens that a tokenizer appends to a text."""
    end = len(ids)
    while end and ids[end - 1] in special:
        end -= 1
    return ids[:end]
