"""Fixtures of the packed pass's tests."""

from typing import Any

import pytest
import transformers
from tiny_models import save_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)
