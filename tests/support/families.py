"""Builds one tiny folder for each family of bi-encoders, as its models are published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from published import (
    DECODER,
    SHAPE,
    T5,
    byte_pairs,
    modules,
    network,
    spaced_pairs,
    unigrams,
    word_pieces,
    write_json,
)

ROBERTA = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>",
           "mask_token": "<mask>", "bos_token": "<s>", "eos_token": "</s>"}  # fmt: skip
WEB = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
GEMMA = {"query": "task: search result | query: ", "document": "title: none | text: "}


def bert(folder: Path, **layout: Any) -> Path:
    size = word_pieces(folder, "[CLS]", "[SEP]", "BertTokenizer")
    network(folder, "BertModel", vocab_size=size, pad_token_id=1, max_position_embeddings=64,
            **SHAPE)  # fmt: skip
    modules(folder, **{"pooling": "mean", **layout})
    return folder


def roberta(folder: Path) -> Path:
    size = byte_pairs(folder, "RobertaTokenizer", single="<s> $A </s>", tokens=ROBERTA)
    network(folder, "RobertaModel", vocab_size=size, pad_token_id=1, bos_token_id=0,
            eos_token_id=2, max_position_embeddings=66, type_vocab_size=1, **SHAPE)  # fmt: skip
    modules(folder, "mean")
    return folder


def mpnet(folder: Path) -> Path:
    size = word_pieces(folder, "<s>", "</s>", "MPNetTokenizer")
    network(folder, "MPNetModel", vocab_size=size, pad_token_id=1, max_position_embeddings=66,
            **SHAPE)  # fmt: skip
    modules(folder, "cls", normalize=False, similarity="dot")
    return folder


def mpnet_mean(folder: Path) -> Path:
    mpnet(folder)
    modules(folder, "mean")
    return folder


def bert_of_many_languages(folder: Path) -> Path:
    """A BERT with XLM-R's words: its positions begin at 0, and padding is a word to it."""
    size = unigrams(folder, "XLMRobertaTokenizer", single="<s> $A </s>", tokens=ROBERTA)
    network(folder, "BertModel", vocab_size=size, pad_token_id=0, max_position_embeddings=64,
            **SHAPE)  # fmt: skip
    modules(folder, "mean")
    return folder


def xlm_roberta(folder: Path) -> Path:
    size = unigrams(folder, "XLMRobertaTokenizer", single="<s> $A </s>", tokens=ROBERTA)
    network(folder, "XLMRobertaModel", vocab_size=size, pad_token_id=1, bos_token_id=0,
            eos_token_id=2, max_position_embeddings=66, type_vocab_size=1, **SHAPE)  # fmt: skip
    modules(folder, "mean", similarity=None)
    return folder


def modern_bert(folder: Path) -> Path:
    tokens = {"cls_token": "[CLS]", "pad_token": "[PAD]", "sep_token": "[SEP]",
              "unk_token": "[UNK]", "mask_token": "[MASK]"}  # fmt: skip
    size = byte_pairs(folder, "PreTrainedTokenizerFast", single="[CLS] $A [SEP]", tokens=tokens)
    network(folder, "ModernBertModel", vocab_size=size, pad_token_id=1, cls_token_id=0,
            sep_token_id=2, bos_token_id=0, eos_token_id=2, max_position_embeddings=64,
            local_attention=8, global_attn_every_n_layers=2, **SHAPE)  # fmt: skip
    modules(folder, "cls", normalize=False)
    return folder


def nomic_bert(folder: Path) -> Path:
    size = word_pieces(folder, "[CLS]", "[SEP]", "BertTokenizer")
    network(folder, "NomicBertModel", vocab_size=size, pad_token_id=1, max_position_embeddings=64,
            **SHAPE)  # fmt: skip
    modules(folder, "mean", normalize=False)
    return folder


def t5_encoder(folder: Path) -> Path:
    tokens = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    size = unigrams(folder, "T5Tokenizer", single="$A </s>", tokens=tokens)
    network(folder, "T5EncoderModel", vocab_size=size + 128, pad_token_id=0, eos_token_id=1, **T5)
    modules(folder, "mean", dense=(24,))
    return folder


def qwen3(folder: Path) -> Path:
    size = byte_pairs(
        folder, "Qwen2Tokenizer", single="$A <|endoftext|>",
        tokens={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        further=("<|im_start|>",), padding_side="left",
    )  # fmt: skip
    network(folder, "Qwen3ForCausalLM", vocab_size=size, pad_token_id=1, bos_token_id=1,
            eos_token_id=1, tie_word_embeddings=True, **DECODER)  # fmt: skip
    modules(folder, "lasttoken", prompts={"query": WEB, "document": ""})
    return folder


def mistral(folder: Path) -> Path:
    tokens = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    size = spaced_pairs(folder, "LlamaTokenizer", single="<s> $A </s>", tokens=tokens,
                        add_bos_token=True, add_eos_token=True, padding_side="right")  # fmt: skip
    network(folder, "MistralModel", vocab_size=size, bos_token_id=1, eos_token_id=2,
            sliding_window=32, **DECODER)  # fmt: skip
    modules(folder, "lasttoken", prompts={"web_search_query": WEB + " "})
    return folder


def gemma(folder: Path) -> Path:
    tokens = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>",
              "unk_token": "<unk>", "mask_token": "<mask>"}  # fmt: skip
    size = spaced_pairs(folder, "GemmaTokenizer", single="<bos> $A <eos>", tokens=tokens,
                        add_bos_token=True, add_eos_token=True)  # fmt: skip
    network(folder, "Gemma3TextModel", vocab_size=size, pad_token_id=0, bos_token_id=2,
            eos_token_id=1, use_bidirectional_attention=True, sliding_window=8,
            layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8,
            **DECODER)  # fmt: skip
    modules(folder, "mean", dense=(48, 32), prompts=GEMMA)
    return folder


def t5_whole(folder: Path) -> Path:
    """A T5 with its decoder, as pretrained: no modules, no pooling."""
    tokens = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    size = unigrams(folder, "T5Tokenizer", single="$A </s>", tokens=tokens)
    network(folder, "T5ForConditionalGeneration", vocab_size=size + 128, pad_token_id=0,
            eos_token_id=1, decoder_start_token_id=0, **T5)  # fmt: skip
    return folder


def bare_decoder(folder: Path) -> Path:
    """A language model as pretrained: Qwen3 without modules.json, texts without an end."""
    size = byte_pairs(
        folder, "Qwen2Tokenizer", single=None,
        tokens={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    )  # fmt: skip
    network(folder, "Qwen3ForCausalLM", vocab_size=size, pad_token_id=1, bos_token_id=1,
            eos_token_id=0, tie_word_embeddings=True, **DECODER)  # fmt: skip
    return folder


def bert_cls(folder: Path) -> Path:
    return bert(folder, pooling="cls")


def xlm_roberta_cls(folder: Path) -> Path:
    xlm_roberta(folder)
    modules(folder, "cls", prompts={"query": "query: "})
    return folder


def modern_bert_mean(folder: Path) -> Path:
    modern_bert(folder)
    modules(folder, "mean")
    return folder


FAMILIES: dict[str, Callable[[Path], Path]] = {
    "BERT": bert, "BERT, cls": bert_cls, "XLM-R, cls": xlm_roberta_cls,
    "ModernBERT, mean": modern_bert_mean, "MPNet, mean": mpnet_mean,
    "BERT, XLM-R's words": bert_of_many_languages,
    "RoBERTa": roberta, "MPNet": mpnet, "XLM-R": xlm_roberta, "ModernBERT": modern_bert,
    "NomicBERT": nomic_bert, "T5 encoder": t5_encoder, "Qwen3": qwen3, "Mistral": mistral,
    "Gemma 3": gemma,
}  # fmt: skip
__all__ = ["FAMILIES", "bare_decoder", "bert", "t5_whole", "write_json"]
