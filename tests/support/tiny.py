"""Tiny random encoders with the training face of the real ones; importable by a subprocess."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from sluice.encoders.foundation.tokens import TokenVectors
from sluice.training.protocol import Example, Text

VOCAB = 64


def _bert(seed: int, dropout: float) -> BertModel:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertModel(config, add_pooling_layer=False)


def _features(rows: list[list[int]]) -> dict[str, Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def _ids(text: str) -> list[int]:
    digests = (hashlib.md5(word.encode()).digest()[0] for word in text.split())
    return [1, *(2 + digest % (VOCAB - 2) for digest in digests)][:13]


class Tied(nn.Module):
    """A BERT with a head whose matrix is the word embeddings' own."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert
        self.head = nn.Linear(16, VOCAB)
        self.head.weight = bert.embeddings.word_embeddings.weight

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return self.head(self.bert(**features).last_hidden_state)


class Dense:
    similarity = "cosine"

    def __init__(self, seed: int = 0, dropout: float = 0.1) -> None:
        self.module: nn.Module = _bert(seed, dropout)
        self.seen: list[tuple[torch.dtype, torch.dtype]] = []

    def tokenize(self, texts: Sequence[str], side: str) -> dict[str, Tensor]:
        return _features([_ids(text) for text in texts])

    def embed(self, features: dict[str, Tensor], side: str) -> Tensor:
        states = self.module(**features).last_hidden_state
        mask = features["attention_mask"][..., None]
        probe = self.module.encoder.layer[0].output.dense
        self.seen.append((probe(torch.zeros(1, 32)).dtype, states.dtype))
        return ((states * mask).sum(1) / mask.sum(1)).float()


class Tokens:
    """A vector of length 1 for each token but the first, zeros for padding."""

    kind = "tokens"
    similarity = "max_sim"
    normalize = True
    head_parameters = ("projection.",)

    def __init__(self, seed: int = 0, dropout: float = 0.1, dim: int = 8) -> None:
        self.dim = dim
        bert = _bert(seed, dropout)
        projection = nn.Linear(16, dim, bias=False)
        self.module: nn.Module = nn.ModuleDict({"bert": bert, "projection": projection})

    def tokenize(self, texts: Sequence[str], side: str) -> dict[str, Tensor]:
        return _features([_ids(text) for text in texts])

    def embed(self, features: dict[str, Tensor], side: str) -> Tensor:
        modules: Any = self.module
        vectors = modules["projection"](modules["bert"](**features).last_hidden_state).float()
        kept = features["attention_mask"].clone()
        kept[:, 0] = 0
        return nn.functional.normalize(vectors, dim=2) * kept[..., None]

    def _encoded(self, texts: Sequence[str], side: str) -> TokenVectors:
        self.module.eval()
        with torch.no_grad():
            vectors = self.embed(self.tokenize(texts, side), side).numpy()
        return TokenVectors.of([text[text.any(1)] for text in vectors], self.dim)

    def encode_queries(self, texts: Sequence[str]) -> TokenVectors:
        return self._encoded(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> TokenVectors:
        return self._encoded(texts, "document")


class Splade:
    similarity = "dot"
    head_parameters = ("head.",)

    def __init__(self, seed: int = 0, dropout: float = 0.1) -> None:
        self.module: nn.Module = Tied(_bert(seed, dropout))

    def tokenize(self, texts: Sequence[str], side: str) -> dict[str, Tensor]:
        return _features([_ids(text) for text in texts])

    def embed(self, features: dict[str, Tensor], side: str) -> Tensor:
        weights = torch.log1p(torch.relu(self.module(features).float()))
        return (weights * features["attention_mask"][..., None]).amax(1)

    @property
    def term_bias(self) -> Splade:
        return self

    def raises(self, side: str) -> bool:
        return True

    def raise_bias(self, amount: float) -> None:
        with torch.no_grad():
            self.module.head.bias.add_(amount)  # type: ignore[union-attr, operator]


class Cross:
    def __init__(self, seed: int = 0, dropout: float = 0.1) -> None:
        bert = _bert(seed, dropout)
        self.module: nn.Module = nn.ModuleDict({"bert": bert, "score": nn.Linear(16, 1)})

    def tokenize_pairs(self, pairs: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
        return _features([_ids(query) + _ids(document) for query, document in pairs])

    def logits(self, features: dict[str, Tensor]) -> Tensor:
        modules: Any = self.module
        return modules["score"](modules["bert"](**features).last_hidden_state[:, 0])[:, 0]


def examples(count: int = 24, negatives: int = 1) -> list[Example]:
    """Queries that share a word with their positive; negatives of other topics."""
    made = []
    for i in range(count):
        hard = tuple(Text(f"n{i}-{j}", f"other thing {j} of {i}") for j in range(negatives))
        positive = Text(f"d{i}", f"topic{i} text about matter{i}")
        made.append(
            Example(
                Text(f"q{i}", f"what is topic{i}"), (positive, *hard), relevant=frozenset({f"d{i}"})
            )
        )
    return made


def weights_of(encoder: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in encoder.module.state_dict().items()}


# Two epochs of three batches, checkpoints at steps 2, 4 and 6.
JOB: dict[str, Any] = {
    "trainer": {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "save_steps": 2,
        "logging_steps": 1,
        "save_total_limit": 10,
    },
    "sparsity": {
        "query": {"type": "l1", "weight": 1e-3},
        "document": {"type": "flops", "weight": 1e-3},
        "ramp": 0.9,
    },
}
