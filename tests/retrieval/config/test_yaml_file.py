"""A file that is not the YAML it should be: the line, what is wrong there, and the remedy."""

from pathlib import Path

import pytest

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.reading import load_values
from sluice.retrieval.config.sections import EvaluateSection, checked


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a:\n\tb: c\n", "not valid YAML, line 2: a tab; indent with spaces"),
        ("a: b: c\n", "not valid YAML, line 1: a second ': ' in the value; put the value in"),
        ("a:\n  b: c\n d: e\n", "not valid YAML, line 3: the indentation does not fit the lines"),
        ("a: {b: c\nd: e\n", "not valid YAML, line 2: "),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", "line 4: the key 'b' again; it is in line 2 already"),
        ("- a\n- b\n", "expected keys and values, found a list; write KEY: VALUE lines"),
        ("a\n", "expected keys and values, found a text"),
        ("# nothing\n", "empty; `sluice config init` writes a first one"),
        ("a: 2020-13-45\n", "put the value in quotes"),
        ("a: " + "[" * 60_000, "line 1: nested too deeply"),
        ("a:\n  " + "- " * 60_000 + "x", "line 2: nested too deeply"),
        (f"a: &a {'[' * 60}{']' * 60}\nb: {'[' * 60}*a{']' * 60}\n", "line 2: nested too deeply"),
        ("dataset: &x\n  corpus: *x\n", "line 2: *x is inside the section &x, which would hold"),
        (b"a: \xff\n", "not text in UTF-8 (byte 3); save it as UTF-8"),
        ('{"_id": "1", "text": "x"}\n{"_id": "2", "text": "y"}\n', "JSON lines, not YAML; `sluice"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as raised:
        load_values(file)
    assert str(raised.value).startswith(f"{file}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a folder, not a YAML file; `sluice index .* --output"):
        load_values(tmp_path)
    (tmp_path / "pairs.csv").write_text("query,positive\na,b\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a table.*init train dense --pairs .*pairs\.csv`"):
        load_values(tmp_path / "pairs.csv")
    (tmp_path / "train.yaml").write_text("a: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tran\.yaml: no such file; did you mean 'train\.yaml'"):
        load_values(tmp_path / "tran.yaml")


def test_merged_keys_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    text = "\ufeffbase: &b {k: 1}\nmore:\n  <<: *b\n  k: 2\n"
    file.write_text(text, encoding="utf-8")
    assert load_values(file) == {"base": {"k": 1}, "more": {"k": 2}}


def test_measures_as_one_text() -> None:
    section = checked({"measures": "ndcg@10, AP(rel=2), RBP(p=0.8,rel=2)"}, EvaluateSection)
    assert section.measures == ["ndcg@10", "AP(rel=2)", "RBP(p=0.8,rel=2)"]
    with pytest.raises(ConfigError, match="measures: 3; expected a list"):
        checked({"measures": 3}, EvaluateSection)
