"""The sample of thorough tests that scripts/test runs, and the order of files."""

from thorough import sampled, slow_first

MANY = [f"a::many[{n}]" for n in range(1, 12)]
OTHERS = [*(f"b::many[{n}]" for n in range(4)), "b::two[1]", "b::two[2]"]
THOROUGH = ["a::kill", *MANY, "b::first", "b::second", *OTHERS]
NAMES = ["c::one", "a::quick", *THOROUGH, "d::one", "d::two"]
TESTS = [(name, name in THOROUGH) for name in NAMES]


def test_every_tenth_case_and_a_test_of_every_file_are_sampled() -> None:
    chosen = [NAMES[place] for place in sampled(TESTS)]
    assert chosen == ["c::one", "a::quick", MANY[0], MANY[10], "b::first", "b::many[0]",
                      "d::one", "d::two"]  # fmt: skip


def test_files_with_thorough_tests_come_first_then_those_of_most() -> None:
    order = [NAMES[place] for place in slow_first(TESTS)]
    assert order == ["a::quick", *THOROUGH, "d::one", "d::two", "c::one"]
