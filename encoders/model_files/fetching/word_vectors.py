"""Makes a table of static embeddings of word vectors: the words in parquet, the vectors in npy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sluice.encoders.foundation.disk.arrays import map_array
from sluice.encoders.model_files.weights.files import WEIGHTS

UNKNOWN = "[UNK]"  # the last row, of zeros


def convert(source: Path, folder: Path) -> None:
    """Write the tokenizer and the table of the only ``*.parquet`` and ``*.npy`` of ``source``.

    Texts are lower-cased and split at white space and punctuation; a word is a token.
    """
    import pyarrow.parquet as pq
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = pq.read_table(next(source.glob("*.parquet"))).column(0).to_pylist()
    table = map_array(next(source.glob("*.npy"))).astype(np.float32)
    ids = {word: row for row, word in enumerate([*words, UNKNOWN])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False, lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    rows = np.ascontiguousarray(np.concatenate([table, np.zeros_like(table[:1])]))  # by rows
    save_file({"embedding.weight": rows}, folder / WEIGHTS)
