"""Tiny random models, made once: two layers, 32 dimensions, a vocabulary of a few hundred words."""

from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,'-"
WORDS = (
    "the of and to in is a for on with that by this from river gold stone water sluice query "
    "document search index term weight vector model train learn rank score deep dense sparse"
)


def vocabulary() -> list[str]:
    pieces = [*LETTERS, *("##" + letter for letter in LETTERS), *WORDS.split()]
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(pieces)]


def save_tokenizer(folder: Path) -> int:
    from transformers import BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary()) + "\n", encoding="utf-8")
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), model_max_length=64)
    tokenizer.save_pretrained(folder)
    return len(vocabulary())


def save_model(folder: Path, kind: str, **changes: object) -> Path:
    """Write a tiny random BERT of class ``Bert<kind>`` with its tokenizer."""
    import torch
    import transformers

    size = save_tokenizer(folder)
    settings = {
        "vocab_size": size, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 64, "initializer_range": 0.2,
        **changes,
    }  # fmt: skip
    torch.manual_seed(7)
    config = transformers.BertConfig(**settings)
    getattr(transformers, "Bert" + kind)(config).save_pretrained(folder)
    return folder
