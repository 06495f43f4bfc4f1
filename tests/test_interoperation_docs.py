"""The blocks of the page on interoperation run as they stand, where their packages are."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "interoperation.md").read_text(encoding="utf-8")
BLOCKS = {
    title: re.search(r"```python\n(.*?)```", text, re.S)[1]  # type: ignore[index]
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
}
PACKAGES = {
    "MTEB": "mteb",
    "PyTerrier": "pyterrier",
    "ir_measures": "ir_measures",
    "LangChain": "langchain_core",
    "LlamaIndex": "llama_index.core",
    "Haystack": "haystack",
}


def test_every_package_has_a_block() -> None:
    assert set(BLOCKS) == {*PACKAGES, "ranx"}  # which compiles for a minute: see ranx_conversions


@pytest.fixture(scope="module")
def shared() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(PAGE[PAGE.index("```python\n") + 10 : PAGE.index("```\n\n## ")], names)
    return names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", PACKAGES)
def test_the_block_runs(
    title: str, shared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(PACKAGES[title])
    exec(BLOCKS[title], dict(shared))
