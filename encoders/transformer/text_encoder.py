"""The base of dense and SPLADE encoders: a prompt and a length for each side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from sluice.encoders.backends.devices import Dtype
from sluice.encoders.encoder import EncoderBase, Side
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.model_files.loading import lengths_of
from sluice.encoders.transformer.model import Features, TransformerModel
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.prompted_texts import look_for_prompts
from sluice.encoders.transformer.tokens import TokenBatch, Tokens, check_texts


class TextEncoder(TransformerModel, EncoderBase):
    """A transformer over single texts, with prompts and lengths per side."""

    expand_to = 0  # tokens that queries are filled up to

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        *,
        query_prompt: str = "",
        document_prompt: str = "",
        query_length: int = 512,
        document_length: int = 512,
        device: str = "auto",
        dtype: Dtype = "float32",
        batch_tokens: int | None = None,
    ) -> None:
        super().__init__(module, tokenizer, device=device, dtype=dtype, batch_tokens=batch_tokens)
        self.prompts: dict[str, str] = {"query": query_prompt, "document": document_prompt}
        self.lengths: dict[str, int] = {"query": query_length, "document": document_length}
        self._prompts_met: set[str] = set()  # sides whose prompt texts were found to bring
        self.prompt_tokens = {side: self._prompt_tokens(side) for side in self.prompts}

    @property
    def state_width(self) -> int:
        """The number of dimensions of a token's state."""
        return int(self.model.config.hidden_size)

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a document; to set it sets the length of queries too."""
        return self.lengths["document"]

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        least = max(4 + max(self.prompt_tokens.values()), self.expand_to)
        most = lengths_of(self.tokenizer, self.model.config)[1]
        length = whole_number(tokens, "max_seq_length", least, most)
        self.lengths = dict.fromkeys(self.lengths, length)

    def _prompt_tokens(self, side: str) -> int:
        """Return how many tokens come before the text, and check that the length has more room."""
        if not self.prompts[side]:
            return 0
        ids = self.tokenized([self.prompts[side]], length=None).ids[0].tolist()
        if len(ids) >= self.lengths[side]:
            raise ConfigError(
                f"{side}_prompt: takes {len(ids)} tokens, but {side}_length is "
                f"{self.lengths[side]}, which leaves no room for the text"
            )
        return len(ids) - (bool(ids) and ids[-1] in self.tokenizer.all_special_ids)

    def take_side(self, side: Side) -> None:
        """Read texts of both sides as those of one, for a tower of that side alone."""
        for settings in (self.prompts, self.lengths, self.prompt_tokens):
            values: dict[str, Any] = settings
            values.update(dict.fromkeys(list(values), values[side]))

    def tokens(self, texts: Sequence[str], side: str) -> Tokens:
        """Return token ids with prompt and special tokens, cut at the side's length."""
        check_texts(texts)
        prompt = self.prompts[side]
        prompted = [prompt + text for text in texts] if prompt else texts
        return self.tokenized(prompted, length=self.lengths[side])

    def map_texts(
        self,
        texts: Sequence[str],
        side: Side,
        store: Callable[[TokenBatch, PackedTransformer | None], None],
    ) -> None:
        """Check and tokenise texts, and pass batches to ``store``, see ``map_batches``."""
        check_texts(texts)
        look_for_prompts(texts, side, self.prompts, self._prompts_met)
        self.map_batches(
            len(texts),
            lambda start, stop: self.tokens(texts[start:stop], side),
            store,
            label=f"encode {side} texts",
            unit="texts",
        )

    def token_ids(self, texts: Sequence[str], side: str) -> list[list[int]]:
        """Return token ids as lists, see ``tokens``."""
        return [ids.tolist() for ids in self.tokens(texts, side).ids]

    def tokenize(self, texts: Sequence[str], side: str) -> Features:
        """Return the padded features of a batch, ready for ``embed``."""
        return self.pad(self.tokens(texts, side).ids)

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        settings = {"kind": self.kind, "prompts": self.prompts, "lengths": self.lengths}
        return settings if self.graph_mark is None else {**settings, "graph": self.graph_mark}

    @property
    def fingerprint(self) -> str:
        """A hash of weights, tokenizer, pooling, prompts and lengths (not of device or dtype)."""
        return fingerprint_of(self.weights_hash(), self.settings())
