"""Tiny random models, made once: two layers, 32 dimensions, a vocabulary of a few hundred words."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,'-"
WORDS = (
    "the of and to in is a for on with that by this from river gold stone water sluice query "
    "document search index term weight vector model train learn rank score deep dense sparse"
)


def vocabulary() -> list[str]:
    pieces = [*LETTERS, *("##" + letter for letter in LETTERS), *WORDS.split()]
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(pieces)]


_written: dict[str, tuple[Path, object]] = {}


@functools.cache
def _shelf() -> str:
    folder = tempfile.mkdtemp(prefix="sluice-models-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def write_once(folder: Path, what: str, write: Callable[[Path], object]) -> Path:
    """Write into a folder what was written before under the name ``what``, or make it.

    Also torch's random numbers then continue as if it had been made.
    """
    import torch

    if what not in _written:
        place = Path(tempfile.mkdtemp(dir=_shelf()))
        write(place)
        _written[what] = place, torch.get_rng_state()
    place, state = _written[what]
    shutil.copytree(place, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    torch.set_rng_state(state)
    return folder


def save_tokenizer(folder: Path) -> int:
    from transformers import BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary()) + "\n", encoding="utf-8")
    places = {word: place for place, word in enumerate(vocabulary())}
    tokenizer = BertTokenizer(places, model_max_length=64)
    tokenizer.save_pretrained(folder)
    return len(vocabulary())


def save_model(folder: Path, kind: str, **changes: object) -> Path:
    """Write a tiny random BERT of class ``Bert<kind>`` with its tokenizer."""
    import torch
    import transformers

    settings = {
        "vocab_size": len(vocabulary()), "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64,
        "initializer_range": 0.2, **changes,
    }  # fmt: skip

    def write(place: Path) -> None:
        save_tokenizer(place)
        torch.manual_seed(7)
        config = transformers.BertConfig(**settings)
        getattr(transformers, "Bert" + kind)(config).save_pretrained(place)

    return write_once(folder, f"Bert {kind} {settings}", write)
