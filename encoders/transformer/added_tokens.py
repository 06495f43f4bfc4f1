"""Makes single tokens of texts that mark something, such as the side of a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def make_tokens(model: Any, tokenizer: Any, texts: Iterable[str], seed: int) -> None:
    """Let each text be one token, new ones with embeddings drawn by ``seed``; empty ones none."""
    from transformers import AddedToken

    new = [text for text in dict.fromkeys(texts) if text]
    known = tokenizer.get_vocab()
    tokens = [AddedToken(each, normalized=False, special=True) for each in new]
    tokenizer.add_tokens(tokens, special_tokens=True)
    if any(text not in known for text in new):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # Not drawn around the mean of all, whose covariance takes minutes to compute.
            size = max(len(tokenizer), model.get_input_embeddings().num_embeddings)
            model.resize_token_embeddings(size, mean_resizing=False)
