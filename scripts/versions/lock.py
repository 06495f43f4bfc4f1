"""Write constraints.txt with uv, or check it against pyproject.toml (scripts/lock says how)."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from locked import LOCK, ROOT, Pin, extras, normal, read_pins
from packaging.requirements import Requirement
from table import record

WORK = ROOT / "build" / "lock"
UV = str(Path(sys.executable).parent / "uv")
# One resolution for every system and every Python from 3.11 on, of one version each if possible.
EVERYWHERE = ("--universal", "--python-version", "3.11", "--fork-strategy", "fewest")
# What torch's CUDA builds stand on: torch names these packages itself, by their exact versions.
CUDA = re.compile(r"nvidia-|cuda-|triton$")
HEADER = """\
# Written by scripts/lock: every package that scripts/install may install, and what needs it.
# scripts/install takes versions and hashes from here, through scripts/versions/locked.py.
# torch has no hashes: a local or indexed CPU build (2.13.0+cpu) sorts above the plain release and
# is taken where it is at hand. Its CUDA packages are not listed; no CPU build has them.
"""


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        faults = list(check(LOCK.read_text(encoding="utf-8")))
        print("\n".join(faults) or "constraints.txt and pyproject.toml agree")
        sys.exit(bool(faults))
    WORK.mkdir(parents=True, exist_ok=True)
    text = make(sys.argv[1:])
    if faults := list(check(text)):
        sys.exit("\n".join(["error: constraints.txt is left as it was:", *faults]))
    LOCK.write_text(text, encoding="utf-8")
    record()
    print(f"constraints.txt: {len(list(read_pins(text)))} packages")


def make(options: list[str]) -> str:
    """Return the lock: versions in force are kept, except where uv's options say otherwise."""
    torch = next(pin for pin in read_pins(LOCK.read_text(encoding="utf-8")) if pin.name == "torch")
    (WORK / "torch.txt").write_text(f"{torch}\n", encoding="utf-8")
    system, asked = declared()
    (WORK / "build.txt").write_text("\n".join(map(str, system)), encoding="utf-8")
    (WORK / "all.txt").write_text(LOCK.read_text(encoding="utf-8"), encoding="utf-8")
    every = ["--all-extras", "--generate-hashes", "-c", "torch.txt", "build.txt", *options]
    pins = resolve("all.txt", *EVERYWHERE, *every)
    (WORK / "pins.txt").write_text("\n".join(map(str, pins)), encoding="utf-8")
    needed: dict[str, list[str]] = {}
    for extra in asked:
        words = ["build.txt"] if extra == "base" else ["--extra", extra]
        for pin in resolve(f"{extra}.txt", *EVERYWHERE, *words, "-c", "pins.txt"):
            if needed.get(pin.name) != ["base"]:
                needed.setdefault(pin.name, []).append(extra)
    return HEADER + "".join(entry(pin, needed[pin.name]) for pin in pins)


def resolve(output: str, *words: str) -> list[Pin]:
    """Return what uv resolves, wheels only and without torch's CUDA packages."""
    command = [UV, "pip", "compile", str(ROOT / "pyproject.toml"), "--only-binary", ":all:"]
    plain = ["--no-annotate", "--no-header", "--quiet", "-o", output]
    done = subprocess.run(
        [*command, *plain, *words], cwd=WORK, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    pins = read_pins((WORK / output).read_text(encoding="utf-8"))
    return [pin for pin in pins if not CUDA.match(pin.name)]


def entry(pin: Pin, needed: list[str]) -> str:
    """Return the lines of one package."""
    hashes = [] if pin.name == "torch" else [f"--hash={each}" for each in pin.hashes]
    return " \\\n    ".join([str(pin), *hashes]) + f"\n    # {', '.join(needed)}\n"


def declared() -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """Return what the build needs, and what each extra (``base``: the library) asks for."""
    asked = {extra: [Requirement(line) for line in lines] for extra, lines in extras().items()}
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [Requirement(line) for line in content["build-system"]["requires"]], asked


def check(text: str) -> Iterator[str]:
    """Yield what is wrong with a lock, without a network."""
    pins = list(read_pins(text))
    system, asked = declared()
    for extra, requirements in {**asked, "base": [*asked["base"], *system]}.items():
        for requirement in requirements:
            name = normal(requirement.name)
            found = [pin for pin in pins if pin.name == name]
            if not found:
                yield f"{extra}: {requirement} has no line"
            for pin in found:
                if not requirement.specifier.contains(pin.version, prereleases=True):
                    yield f"{extra}: {requirement} does not allow {pin.version}"
                if not {"base", extra} & set(pin.needed):
                    yield f"{extra}: {requirement} is not marked as needed by it"
    for pin in pins:
        if CUDA.match(pin.name):
            yield f"{pin.name}: belongs to CUDA builds of torch"
        if not pin.hashes and pin.name != "torch":
            yield f"{pin.name}: has no hash"
        if unknown := set(pin.needed) - set(asked):
            yield f"{pin.name}: needed by {min(unknown)}, which pyproject.toml does not have"
    if "://" in text or "/" in re.sub(r"#.*", "", text):
        yield "an address or a path"


if __name__ == "__main__":
    main()
