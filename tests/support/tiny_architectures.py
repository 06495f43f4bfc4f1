"""Tiny random models of several architectures, all with the vocabulary of ``tiny_models``."""

from pathlib import Path

from tiny_models import save_tokenizer, vocabulary, write_once

COMMON = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.2,
}  # fmt: skip
ARCHITECTURES = {
    "Bert": {"intermediate_size": 64, "max_position_embeddings": 64},
    "Roberta": {"intermediate_size": 64, "max_position_embeddings": 65, "type_vocab_size": 2},
    "MPNet": {"intermediate_size": 64, "max_position_embeddings": 66},
    "DistilBert": {
        "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64,
    },
    "ModernBert": {
        "intermediate_size": 48, "max_position_embeddings": 64, "local_attention": 8,
        "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3,
        "bos_token_id": 2, "eos_token_id": 3,
    },
}  # fmt: skip
HEADS = {"dense": "Model", "splade": "ForMaskedLM", "cross_encoder": "ForSequenceClassification"}


def save_architecture(folder: Path, architecture: str, kind: str) -> Path:
    """Write a tiny random model of an architecture for a kind of encoder, with its tokenizer."""
    import torch
    import transformers

    settings = {
        "vocab_size": len(vocabulary()), "pad_token_id": 0, **COMMON,
        **ARCHITECTURES[architecture],
    }  # fmt: skip
    if architecture == "DistilBert":
        settings = {key: value for key, value in settings.items() if key not in COMMON}
        settings["initializer_range"] = 0.2
    if kind == "cross_encoder":
        settings["num_labels"] = 1

    def write(place: Path) -> None:
        save_tokenizer(place)
        torch.manual_seed(7)
        config = getattr(transformers, architecture + "Config")(**settings)
        getattr(transformers, architecture + HEADS[kind])(config).save_pretrained(place)

    return write_once(folder, f"{architecture} {kind} {settings}", write)
