"""Untrained networks: a BERT with a WordPiece tokenizer of its own, or drawn weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.build import check_arguments
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALPHABET = 500  # letters that pieces are made of, the most frequent
TYPE = "fresh"  # in a training run's encoder.start
DRAWN = {"type": "drawn"}  # there too: the model's tokenizer and shape, and none of its weights


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
    import torch

    from sluice.encoders.model_files.loading import save

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertForMaskedLM(config)
    with replaced_folder(Path(path)) as folder:
        save(model, folder)
        tokenizer.save_pretrained(folder)
    return Path(path)


def draw_weights(network: Any, seed: int) -> None:
    """Draw all weights of a transformers model anew by ``seed``, in place, as its class does."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = type(network)(network.config).state_dict()
    network.load_state_dict({name: drawn[name] for name in network.state_dict()})


def is_fresh(start: Any) -> bool:
    """Return whether ``start`` of an encoder to train asks for an untrained model."""
    return isinstance(start, Mapping) and start.get("type") == TYPE


def is_untrained(start: Any) -> bool:
    """Return whether ``start`` asks for random weights, of a model of its own or in a shape."""
    return start == DRAWN or is_fresh(start)


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
