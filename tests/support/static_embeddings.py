"""A folder of static embeddings as sentence-transformers writes it, over a tiny vocabulary."""

from pathlib import Path
from typing import Any

import numpy as np
from tiny_models import vocabulary
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

DIM = 12
TABLE = np.random.default_rng(3).standard_normal((len(vocabulary()), DIM)).astype(np.float32)


def tokenizer() -> Tokenizer:
    """BERT's, with special tokens around texts, which static embeddings leave out."""
    pieces = {piece: number for number, piece in enumerate(vocabulary())}
    backend = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return backend


def save_static(folder: Path, *further: Any, **options: Any) -> Any:
    """Write a model of a table and further modules; return sentence-transformers' own object."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    unit = any(isinstance(module, Normalize) for module in further)
    model = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer(), embedding_weights=TABLE.copy()), *further],
        device="cpu", similarity_fn_name="cosine" if unit else "dot", **options,
    )  # fmt: skip
    model.save_pretrained(str(folder))
    return model
