"""Tiny random models in the folder layout of published ones: files, keys, tokenizer, modules."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TRAINING = [
    "gold in the river", "a sluice is a water search for gold, stone and gold", "deep water",
    "dense and sparse vectors", "Rank the DOCUMENT by score; learn to rank.",
    "query: passage: Instruct: Given a web search query, retrieve relevant passages\nQuery: task",
]  # fmt: skip
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 48, "initializer_range": 0.2}  # fmt: skip
DECODER = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
      "initializer_factor": 1.0}  # fmt: skip


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps(value, indent=2))


def word_pieces(folder: Path, cls: str, sep: str, tokenizer_class: str) -> int:
    """BERT's kind of tokenizer, with its own names of special tokens (MPNet has ``<s>``)."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    pad, unknown, mask = ("[PAD]", "[UNK]", "[MASK]") if cls == "[CLS]" else (
        "<pad>", "[UNK]", "<mask>")  # fmt: skip
    backend = Tokenizer(models.WordPiece(unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [cls, pad, sep, unknown, mask]
    backend.train_from_iterator(TRAINING, trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=special, show_progress=False))  # fmt: skip
    return _saved(backend, folder, tokenizer_class, single=f"{cls} $A {sep}", tokens={
        "cls_token": cls, "sep_token": sep, "pad_token": pad, "unk_token": unknown,
        "mask_token": mask, **({"bos_token": cls, "eos_token": sep} if cls == "<s>" else {}),
    })  # fmt: skip


def byte_pairs(
    folder: Path, tokenizer_class: str, *, single: str | None, tokens: dict[str, str],
    further: tuple[str, ...] = (), words: Sequence[str] = (), **config: Any,
) -> int:  # fmt: skip
    """Byte-level BPE: RoBERTa, ModernBERT, Qwen."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator([*TRAINING, *words], trainers.BpeTrainer(
        vocab_size=340, special_tokens=[*dict.fromkeys([*tokens.values(), *further])],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    ))  # fmt: skip
    return _saved(backend, folder, tokenizer_class, single=single, tokens=tokens, **config)


def spaced_pairs(
    folder: Path, tokenizer_class: str, *, single: str, tokens: dict[str, str], **config: Any
) -> int:
    """BPE over ``▁`` with bytes to fall back on: Llama, Mistral, Gemma."""
    from tokenizers import Tokenizer, models, normalizers, trainers

    backend = Tokenizer(
        models.BPE(unk_token=tokens["unk_token"], byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    special = [*tokens.values(), *(f"<0x{byte:02X}>" for byte in range(256))]
    backend.train_from_iterator(TRAINING, trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, show_progress=False))  # fmt: skip
    return _saved(backend, folder, tokenizer_class, single=single, tokens=tokens, **config)


def unigrams(
    folder: Path, tokenizer_class: str, *, single: str, tokens: dict[str, str],
    words: Sequence[str] = (),
) -> int:  # fmt: skip
    """SentencePiece's unigram model: XLM-R, T5; ``words`` are pieces of their own."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    # No trainer: its pieces are others in each process.
    counts = Counter(f"▁{word}" for text in TRAINING for word in text.split())
    counts += Counter(
        word[at : at + size]
        for word in counts.elements() for size in (1, 2) for at in range(len(word) - size + 1)
    )  # fmt: skip
    pieces = sorted(counts, key=lambda piece: (-counts[piece], piece))[:120]
    vocabulary = [(token, 0.0) for token in tokens.values()]
    unknown = vocabulary.index((tokens["unk_token"], 0.0))
    vocabulary += [(piece, math.log(counts[piece] / counts.total())) for piece in pieces]
    vocabulary += [(f"▁{word}", -1.0) for word in words]
    backend = Tokenizer(models.Unigram(vocabulary, unknown))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.add_special_tokens([*tokens.values()])
    return _saved(backend, folder, tokenizer_class, single=single, tokens=tokens)


def _saved(
    backend: Any, folder: Path, tokenizer_class: str, *, single: str | None,
    tokens: dict[str, str], **config: Any,
) -> int:  # fmt: skip
    from tokenizers.processors import TemplateProcessing

    folder.mkdir(parents=True, exist_ok=True)
    if single is not None:
        named = [(token, backend.token_to_id(token)) for token in tokens.values()]
        backend.post_processor = TemplateProcessing(
            single=single, pair=f"{single} $B:1", special_tokens=named
        )
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": tokenizer_class, "model_max_length": 64, **tokens, **config,
    })  # fmt: skip
    write_json(folder / "special_tokens_map.json", tokens)
    return int(backend.get_vocab_size())


def network(folder: Path, architecture: str, **settings: Any) -> None:
    """Write random weights of an architecture of transformers, with its config.json."""
    import torch
    import transformers

    cls = getattr(transformers, architecture)
    torch.manual_seed(11)
    cls(cls.config_class(**settings)).save_pretrained(folder)


def modules(
    folder: Path, pooling: str, *, normalize: bool = True, dense: tuple[int, ...] = (),
    prompts: dict[str, str] | None = None, similarity: str | None = "cosine", hidden: int = 32,
) -> None:  # fmt: skip
    """Write the files of sentence-transformers in the layout that models are published in."""
    import torch
    from safetensors.torch import save_file

    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalize]
    places = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    write_json(folder / "modules.json", [
        {"idx": number, "name": str(number), "path": place,
         "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, place) in enumerate(zip(kinds, places, strict=True))
    ])  # fmt: skip
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    write_json(folder / "1_Pooling" / "config.json", {
        "word_embedding_dimension": hidden,
        **{f"pooling_mode_{name}": name.partition("_")[0] == pooling for name in names},
    })  # fmt: skip
    if pooling == "mean":  # begins as mean_sqrt_len_tokens does
        facts = json.loads((folder / "1_Pooling" / "config.json").read_text())
        facts["pooling_mode_mean_sqrt_len_tokens"] = False
        write_json(folder / "1_Pooling" / "config.json", facts)
    drawn = torch.Generator().manual_seed(5)
    for number, width in enumerate(dense):
        place = folder / f"{2 + number}_Dense"
        before = [hidden, *dense][number]
        write_json(place / "config.json", {
            "in_features": before, "out_features": width, "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        })  # fmt: skip
        weight = torch.randn(width, before, generator=drawn) / before**0.5
        save_file({"linear.weight": weight}, place / "model.safetensors")
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    write_json(folder / "config_sentence_transformers.json", {
        "__version__": {"sentence_transformers": "2.7.0"}, "prompts": prompts or {},
        "default_prompt_name": None, "similarity_fn_name": similarity,
    })  # fmt: skip
