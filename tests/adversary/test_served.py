"""What the fuzzer of a service calls wrong; ``scripts/adversary served`` kills one for minutes."""

import pytest
from served import Content, Known

pytestmark = pytest.mark.thorough

NONE: Content = frozenset()
OLD: Content = frozenset({("g1-0", "version1"), ("g1-1", "version1")})
NEW: Content = frozenset({("g1-0", "version2"), ("g1-1", "version2")})
MIXED: Content = frozenset({("g1-0", "version1"), ("g1-1", "version2")})


@pytest.fixture
def known() -> Known:
    """A service to which version 1 was written."""
    known = Known()
    with known.changing(lambda _: OLD) as ended:
        ended(200)
    return known


def test_what_is_acknowledged_is_all_that_may_be_served(known: Known) -> None:
    assert known.disk == {OLD}
    assert known.fault(begun=2, state=2, content=OLD) == ""
    assert "no state that may be" in known.fault(begun=2, state=1, content=NONE)
    assert known.fault(begun=1, state=1, content=NONE) == ""  # asked before it was acknowledged
    with known.changing(lambda _: NEW) as ended:
        for state, content in ((2, OLD), (3, NEW)):
            assert known.fault(begun=3, state=state, content=content) == ""
        assert "no state that may be" in known.fault(begun=3, state=4, content=MIXED)
        ended(200)
    assert "no state that may be" in known.fault(begun=4, state=2, content=OLD)
    assert known.disk == {NEW}


def test_a_change_that_was_cut_off_is_there_or_not(known: Known) -> None:
    with known.changing(lambda _: NEW) as ended:
        ended(0)
    assert known.disk == {OLD, NEW}
    for state, content in ((2, OLD), (3, NEW), (2, OLD)):
        assert known.fault(begun=3, state=state, content=content) == ""
    assert "two contents" in known.fault(begun=3, state=2, content=NEW)
    with known.changing(lambda before: before | {("g2-0", "version3")}) as ended:
        ended(200)
    assert known.fault(begun=5, state=4, content=NEW | {("g2-0", "version3")}) == ""
    assert known.disk == {NEW | {("g2-0", "version3")}}  # which of the two, the answer said
    assert "no state that may be" in known.fault(6, 5, OLD | {("g2-0", "version3")})


def test_what_is_written_and_not_served_yet(known: Known) -> None:
    with known.changing(lambda _: NEW) as ended:
        ended(202)
    assert known.disk == {NEW}
    for state, content in ((2, OLD), (3, NEW)):
        assert known.fault(begun=3, state=state, content=content) == ""
