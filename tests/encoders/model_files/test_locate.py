"""Model names: short ones as sentence-transformers users write them, and what is refused."""

from pathlib import Path

import pytest

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files import locate

find = locate.model_folder.__wrapped__  # without its memory


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return the names that the hub was asked for; it has one model."""
    names: list[str] = []

    def downloaded(name: str) -> Path | None:
        names.append(name)
        return tmp_path if name == "sentence-transformers/some-model" else None

    monkeypatch.setattr(locate, "_cached", lambda name: None)
    monkeypatch.setattr(locate, "_downloaded", downloaded)
    return names


def test_a_short_name_is_tried_as_one_of_sentence_transformers(
    asked: list[str], tmp_path: Path
) -> None:
    assert find("some-model") == tmp_path
    assert asked == ["some-model", "sentence-transformers/some-model"]


def test_a_short_name_of_a_cached_model_needs_no_network(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = {"sentence-transformers/other": tmp_path}
    monkeypatch.setattr(locate, "_cached", cached.get)
    assert find("other") == tmp_path
    assert asked == []


def test_a_name_with_an_organisation_is_tried_as_it_is(asked: list[str]) -> None:
    with pytest.raises(ModelError, match="somebody/some-model: model not found"):
        find("somebody/some-model")
    assert asked == ["somebody/some-model"]


def test_the_refusal_of_a_short_name_lists_both(asked: list[str]) -> None:
    with pytest.raises(ModelError, match=r"typo: .* no such model \(nor does sentence-trans"):
        find("typo")
