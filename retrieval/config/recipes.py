"""The configs that come with the package: by name in place of a file, and their JSON schema."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

SCHEMA = "sluice.schema.json"
EDITOR_LINE = "# yaml-language-server: $schema="  # names the schema to editors
# Those that most people begin with; lists show the others on request.
CORE = ("beir", "bm25", "quickstart", "train-cross-encoder", "train-dense", "train-splade")
SUFFIXES = (".yaml", ".yml")


def configs() -> Path:
    """Return the folder of the configs and of their schema, in a checkout or installed."""
    with importlib.resources.as_file(importlib.resources.files("sluice") / "configs") as folder:
        return folder


def recipes() -> dict[str, str]:
    """Return the names of the configs, each with what its first comment says of it."""
    return {file.stem: summary_of(file) for file in sorted(configs().glob("*.yaml"))}


def recipe_or_file(source: str | Path) -> Path:
    """Return the file of a recipe's name; a path that exists or has a suffix is itself."""
    path = Path(source)
    if path.suffix in SUFFIXES or path.exists() or path.name != str(source):
        return path
    recipe = configs() / f"{path.name}.yaml"
    return recipe if recipe.is_file() else path


def shown(file: str | Path) -> str:
    """Return how a command names a config: by the recipe's name, or by its path."""
    path = Path(file)
    return path.stem if path.parent == configs() else str(file)


def summary_of(file: Path) -> str:
    """Return what the first comment of a config says, without the command that follows."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith(EDITOR_LINE):
            return line.removeprefix("# ").partition(": ")[0].rstrip(":")
    return ""


def editor_line(file: Path) -> str:
    """Return the comment by which an editor finds the schema of a config at ``file``.

    The path is relative where the package lies below the config's folder, as in a virtual
    environment of the same project; elsewhere it is absolute, and of use on this machine alone.
    """
    schema = (configs() / SCHEMA).absolute()
    folder = file.parent.absolute()
    if schema.is_relative_to(folder):
        return EDITOR_LINE + schema.relative_to(folder).as_posix()
    return EDITOR_LINE + schema.as_uri()
