"""Instructions and examples in prompts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.encoders import DenseEncoder
from sluice.encoders.dense.instructions import TEMPLATE, filled_prompts, with_examples
from sluice.encoders.foundation.errors import ConfigError

TASK = "search the river"
SHOTS = [{"query": "gold", "document": "gold in water"}, {"query": "x", "document": "deep"}]


def opened(folder: Path, **options: Any) -> DenseEncoder:
    return DenseEncoder.from_pretrained(folder, device="cpu", **options)


def test_the_task_is_filled_into_prompts() -> None:
    assert filled_prompts(None, None, None) == {"query_prompt": None, "document_prompt": None}
    assert filled_prompts("query: ", "{", None) == {
        "query_prompt": "query: ",
        "document_prompt": "{",
    }
    assert filled_prompts(None, None, TASK) == {
        "query_prompt": f"Instruct: {TASK}\nQuery: ", "document_prompt": None,
    }  # fmt: skip
    assert filled_prompts("{task}: ", "{task} of ", "a {b} c") == {
        "query_prompt": "a {b} c: ", "document_prompt": "a {b} c of ",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (("{tsak}: ", None, TASK), "query_prompt: unknown field {tsak}.*did you mean 'task'"),
        ((None, "{query}", None), "document_prompt: unknown field {query}; a prompt may contain"),
        (("{task}: ", None, None), "query_prompt: contains {task}; give instruction"),
        (("query: ", None, TASK), "instruction: 'search the river', but no prompt contains {task}"),
    ],
)
def test_templates_that_do_not_fit_are_config_errors(prompts: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        filled_prompts(*prompts)


def test_examples_stand_before_the_prompt() -> None:
    assert with_examples("q: ", []) == "q: "
    assert with_examples("q: ", SHOTS) == (
        "q: gold\nDocument: gold in water\n\nq: x\nDocument: deep\n\nq: "
    )


@pytest.mark.parametrize(
    ("shot", "message"),
    [
        ({"query": "a", "documnet": "b"}, r"few_shot\[0\].documnet: .*did you mean 'document'"),
        ({"query": "a"}, r"few_shot\[0\].document: None; expected a text"),
        ({"query": 3, "document": "b"}, r"few_shot\[0\].query: 3; expected a text"),
        ("a", r"few_shot\[0\]: 'a'; expected"),
    ],
)
def test_bad_examples_are_config_errors(shot: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_examples("", [shot])


def test_an_instruction_is_what_is_encoded_and_saved(bert: Path, tmp_path: Path) -> None:
    encoder = opened(bert, instruction=TASK, few_shot=SHOTS)
    prompt = with_examples(TEMPLATE.replace("{task}", TASK), SHOTS)
    assert encoder.prompts == {"query": prompt, "document": ""}
    plain = opened(bert)
    texts = ["gold river", "a stone"]
    vectors = encoder.encode_queries(texts)
    wanted = plain.encode_queries([prompt + text for text in texts])
    assert np.array_equal(vectors, wanted)
    assert np.array_equal(encoder.encode_documents(texts), plain.encode_documents(texts))
    assert encoder.fingerprint != plain.fingerprint
    encoder.save_pretrained(tmp_path / "m")
    again = opened(tmp_path / "m")
    assert again.prompts == encoder.prompts
    assert again.fingerprint == encoder.fingerprint


def test_sentence_transformers_reads_the_instruction_by_name(bert: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = opened(bert, query_prompt="{task} ? ", instruction=TASK)
    encoder.save_pretrained(tmp_path / "m")
    theirs = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    assert theirs.prompts["query"] == f"{TASK} ? "
    found = theirs.encode(["gold river"], prompt_name="query")
    assert np.abs(found - encoder.encode_queries(["gold river"])).max() < 1e-5


def test_both_sides_of_a_symmetric_task_may_take_it(bert: Path) -> None:
    encoder = opened(bert, query_prompt="{task} q ", document_prompt="{task} d ", instruction="x")
    assert encoder.prompts == {"query": "x q ", "document": "x d "}


def test_examples_use_the_prompt_of_the_folder(bert: Path, tmp_path: Path) -> None:
    opened(bert, query_prompt="query: ").save_pretrained(tmp_path / "m")
    encoder = opened(tmp_path / "m", few_shot=SHOTS[:1])
    assert encoder.prompts["query"] == "query: gold\nDocument: gold in water\n\nquery: "


def test_an_instruction_longer_than_the_text_may_be_is_refused(bert: Path) -> None:
    with pytest.raises(ConfigError, match=r"query_prompt: takes .* tokens"):
        opened(bert, instruction="gold " * 80)


def test_the_shape_of_examples_is_checked_in_yaml() -> None:
    from sluice.encoders.foundation.build import check
    from sluice.encoders.table import ENCODERS

    spec = {"type": "dense", "model": "m", "attention": "bidirectional", "few_shot": SHOTS}
    check(spec, ENCODERS, where="encoder")
    with pytest.raises(ConfigError, match=r"encoder.attention: 'both'"):
        check({**spec, "attention": "both"}, ENCODERS, where="encoder")
    with pytest.raises(ConfigError, match=r"encoder.few_shot: 'x'; expected a list"):
        check({**spec, "few_shot": "x"}, ENCODERS, where="encoder")
