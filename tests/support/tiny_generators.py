"""Tiny random models that write text: an encoder with a decoder, and a decoder alone."""

from pathlib import Path

from tiny_models import save_tokenizer

END = 3  # [SEP]


def save_t5(folder: Path, **changes: object) -> Path:
    """Write a T5 of one layer with the vocabulary of ``tiny_models``."""
    import torch
    import transformers

    size = save_tokenizer(folder)
    torch.manual_seed(3)
    settings = {
        "vocab_size": size, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2,
        "eos_token_id": END, "pad_token_id": 0, "decoder_start_token_id": 0, "dropout_rate": 0.1,
        "initializer_factor": 8.0, **changes,
    }  # fmt: skip
    config = transformers.T5Config(**settings)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def save_gpt2(folder: Path, **changes: object) -> Path:
    """Write a GPT-2 of two layers with the vocabulary of ``tiny_models``."""
    import torch
    import transformers

    size = save_tokenizer(folder)
    torch.manual_seed(5)
    settings = {
        "vocab_size": size, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2,
        "eos_token_id": END, "bos_token_id": 2, "pad_token_id": 0, "initializer_range": 1.0,
        **changes,
    }  # fmt: skip
    config = transformers.GPT2Config(**settings)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder
