"""The base of dense and SPLADE encoders: a network, prompts and lengths; an untrained BERT."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.backends.backend import Dtype
from sluice.encoders.encoder import EncoderBase, Side
from sluice.encoders.foundation.build import check_arguments
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.model_files.loading import lengths_of
from sluice.encoders.transformer.model import Features, TransformerModel
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.tokens import TokenBatch, Tokens, check_texts


def refuse_two_stacks(network: Any, folder: Path, encoder: str) -> None:
    """Raise ``ModelError`` for a network of an encoder and a decoder."""
    if network.config.is_encoder_decoder:
        raise ModelError(
            f"{folder}: {type(network).__name__} has an encoder and a decoder; a {encoder} needs "
            "one stack of layers"
        )


def with_modules(model: nn.Module, **added: nn.Module | None) -> nn.ModuleDict:
    """Return a network as ``model`` and the modules added to it, None left out.

    A new module is in training mode; all get the network's.
    """
    modules = {name: module for name, module in added.items() if module is not None}
    return nn.ModuleDict({"model": model, **modules}).train(model.training)


LOOKED_AT = 100  # texts of a call, in which prompts are looked for

log = logging.getLogger("sluice")


def look_for_prompts(
    texts: Sequence[str], side: Side, prompts: Mapping[str, str], met: set[str]
) -> None:
    """Log once that texts bring a prompt of their own, or that of the other side.

    ``met`` are the sides whose prompt was found before; it is added to.
    """
    for of, prompt in prompts.items():
        mark = prompt.strip()
        if not mark or of in met:
            continue
        if any(text.startswith(mark) for text in texts[:LOOKED_AT]):
            met.add(of)
            ours = of == side or prompt == prompts[side]
            why = "which is put before it once more" if ours else f"the prompt of a {of}"
            remedy = (
                f"remove it from the texts, or set {side}_prompt: ''"
                if ours
                else "remove it, or encode the texts as what they are"
            )
            log.warning("a %s begins with %r, %s; %s", side, mark, why, remedy)


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


class TokenStates(NamedTuple):
    """Unit vectors of texts' tokens, end to end.

    ``values`` is ``[tokens, hidden]`` on the encoder's device, float32 or bfloat16 as the encoder
    computes; ``bounds`` ``[texts + 1]`` is where each text begins, and the end.
    """

    values: Tensor
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def of(self, text: int) -> Tensor:
        """Return the vectors of one text."""
        return self.values[int(self.bounds[text]) : int(self.bounds[text + 1])]


def token_states(encoder: TextEncoder, texts: Sequence[str], side: Side) -> TokenStates:
    """Return the last layer's states of texts' own tokens, scaled to unit length.

    Special tokens, the prompt's and padding are left out, so a text may have none. Texts are cut at
    the encoder's length for the side. (Khattab and Zaharia, 2020, ColBERT.)
    """
    special = torch.tensor(special_ids(encoder.tokenizer))
    parts: list[Tensor] = [torch.empty(0)] * len(texts)
    prompt = encoder.prompt_tokens[side]

    def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
        states = functional.normalize(encoder.output(batch, network).float(), dim=-1)
        ids = torch.from_numpy(np.concatenate(batch.ids).astype(np.int64))
        own = ~torch.isin(ids, special)
        if prompt:
            own &= torch.cat([torch.arange(length) >= prompt for length in batch.lengths])
        texts_vectors = torch.split(states.to(encoder.dtype), batch.lengths)
        masks = torch.split(own.to(states.device), batch.lengths)
        for row, vectors, mask in zip(batch.rows.tolist(), texts_vectors, masks, strict=True):
            parts[row] = vectors[mask]

    encoder.map_texts(texts, side, store)
    lengths = [len(part) for part in parts]
    filled = [part for part in parts if len(part)]
    hidden = encoder.state_width
    values = torch.cat(filled) if filled else torch.zeros((0, hidden), device=encoder.device)
    return TokenStates(values, np.cumsum([0, *lengths]))


def special_ids(tokenizer: Any) -> list[int]:
    """Return the ids of tokens that are not part of a text; an unknown word is."""
    names = ("bos", "eos", "cls", "sep", "pad", "mask")
    marks = {getattr(tokenizer, f"{name}_token_id", None) for name in names}
    unknown = {tokenizer.unk_token_id} - marks
    return sorted(set(tokenizer.all_special_ids) - unknown)


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALPHABET = 500  # letters that pieces are made of, the most frequent
TYPE = "fresh"  # in a training run's encoder.start


def fresh_model(
    texts: Iterable[str],
    path: str | Path,
    *,
    layers: int = 4,
    hidden: int = 256,
    heads: int | None = None,
    vocabulary: int = 8_192,
    length: int = 256,
    sample: int = 50_000,
    dropout: float = 0.1,
    seed: int = 13,
) -> Path:
    """Write an untrained BERT to the folder ``path`` and return it.

    The vocabulary is learnt from the first ``sample`` texts that are not blank; weights are drawn
    by ``seed``. ``heads`` is ``hidden / 64`` by default, ``length`` the tokens a text may have. The
    folder is an ordinary masked language model in safetensors, which dense, SPLADE and
    cross-encoders are loaded from. Raises ``ModelError`` without texts.
    """
    import torch
    from transformers import BertConfig, BertForMaskedLM

    heads = max(hidden // 64, 1) if heads is None else heads
    numbers = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "length": length,
        "sample": sample,
    }
    for name, number in numbers.items():
        whole_number(number, name, 1)
    if hidden % heads:
        raise ConfigError(f"hidden: {hidden}, expected a multiple of heads: {heads}")
    whole_number(vocabulary, "vocabulary", 64)
    chosen = list(islice((text for text in texts if text.strip()), sample))
    tokenizer = _tokenizer(chosen, vocabulary, length)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=length,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=tokenizer.pad_token_id,
    )
    from sluice.encoders.model_files.loading import save

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertForMaskedLM(config)
    with replaced_folder(Path(path)) as folder:
        save(model, folder)
        tokenizer.save_pretrained(folder)
    return Path(path)


def is_fresh(start: Any) -> bool:
    """Return whether ``start`` of an encoder to train asks for an untrained model."""
    return isinstance(start, Mapping) and start.get("type") == TYPE


def check_fresh(spec: Mapping[str, Any], where: str) -> None:
    """Check an encoder's component that has ``start: {type: fresh, ...}``."""
    if "model" in spec:
        raise ConfigError(
            f"{where}.model: {spec['model']!r} beside start: {{type: fresh}}, which makes a model; "
            "remove one of them"
        )
    given = ("texts", "path", "seed")
    settings = _settings(spec["start"])
    check_arguments(fresh_model, settings, where=f"{where}.start", kind=TYPE, given=given)


def fresh_from_config(
    spec: Mapping[str, Any], texts: Iterable[str], path: Path, *, where: str, seed: int
) -> dict[str, Any]:
    """Make the model that ``start: {type: fresh}`` asks for, and return the encoder's component.

    That is ``spec`` without ``start`` and with ``path`` as its model.
    """
    check_fresh(spec, where)
    try:
        fresh_model(texts, path, seed=seed, **_settings(spec["start"]))
    except ConfigError as error:
        raise ConfigError(f"{where}.start: {error}") from None
    return {**{key: value for key, value in spec.items() if key != "start"}, "model": str(path)}


def _settings(start: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in start.items() if key != "type"}


def _tokenizer(texts: list[str], size: int, length: int) -> Any:
    """Return a lower-casing WordPiece tokenizer whose pieces are learnt from the texts."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import BertTokenizerFast

    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    letters: Counter[str] = Counter()
    for text in texts:
        letters.update(backend.normalizer.normalize_str(text))
    usual = sorted(letter for letter, _ in letters.most_common(ALPHABET) if not letter.isspace())
    # The trainer numbers the letters inside words in the order of a hash table, and breaks ties by
    # number: as special tokens they have the same numbers each time.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL, *("##" + letter for letter in usual)],
        initial_alphabet=usual,
        limit_alphabet=len(usual),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    pieces = backend.get_vocab()
    if not usual:
        raise ModelError(
            "start: no texts; an untrained model learns its vocabulary from texts of the corpus"
        )
    numbered = {piece: n for n, piece in enumerate(sorted(pieces, key=pieces.__getitem__))}
    return BertTokenizerFast(vocab=numbered, do_lower_case=True, model_max_length=length)
