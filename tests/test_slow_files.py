"""The order in which several processes take the files of tests."""

from pathlib import Path

from slow_files import SLOW, slow_first

TESTS = Path(__file__).parent


def test_slow_files_come_first_then_those_of_most_tests() -> None:
    slow = f"tests/{SLOW[0]}::test_it"
    tests = ["tests/b.py::one", "tests/a.py::two", "tests/a.py::one", slow, "tests/c.py::one"]
    assert [tests[place] for place in slow_first(tests)] == [
        slow, "tests/a.py::two", "tests/a.py::one", "tests/b.py::one", "tests/c.py::one",
    ]  # fmt: skip


def test_the_slow_files_exist() -> None:
    assert [file for file in SLOW if not (TESTS / file).is_file()] == []
