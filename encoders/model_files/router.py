"""Reads and writes folders with separate modules for queries and documents (a Router).

Sluice saves each route as a complete model folder, ``query`` or ``document``, that opens by itself;
sentence-transformers saves one folder per module, side by side. Both are read.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from sluice.encoders.encoder import Side
from sluice.encoders.foundation.disk.files import read_model_json, write_json
from sluice.encoders.foundation.errors import ModelError

MODULES = "modules.json"
ROUTES = "router_config.json"
PROMPTS = "config_sentence_transformers.json"
SIDES: tuple[Side, Side] = ("query", "document")
STATIC = "SparseStaticEmbedding"  # the module of queries without a network

Route: TypeAlias = list[tuple[str, Path]]  # (type of a module, its folder), in order


def is_router(folder: Path) -> bool:
    """Return whether a module of a folder is a Router (``Asym`` in old folders)."""
    entries = read_model_json(folder / MODULES)
    return isinstance(entries, list) and "Router" in map(_kind, entries)


def read_routes(folder: Path) -> dict[Side, Route]:
    """Return the modules of each side; modules before and after the Router belong to both.

    Raises ``ModelError`` for a Router without exactly the routes query and document.
    """
    entries = read_model_json(folder / MODULES)
    kinds = [_kind(entry) for entry in entries]
    place = folder / ROUTES
    try:
        number = kinds.index("Router")
        home = folder / entries[number]["path"]
        if not _is_inside(home, folder):
            raise ModelError(f"{folder / MODULES}: path {home.name!r} leads out of the folder")
        place = home / ROUTES
        config = read_model_json(place) or read_model_json(home / "config.json")
        types, structure = config["types"], config["structure"]
        own = {side: [(types[name], home / name) for name in structure[side]] for side in SIDES}
        before, after = (
            [(entry["type"], folder / entry["path"]) for entry in part]
            for part in (entries[:number], entries[number + 1 :])
        )
        others = set(structure) - set(SIDES)
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{place}: {error}; expected types, and structure with the routes query and document"
        ) from None
    if others:
        raise ModelError(f"{place}: routes {', '.join(sorted(others))}; expected query, document")
    routes = {side: [*before, *route, *after] for side, route in own.items()}
    for kind, path in (module for route in routes.values() for module in route):
        if not isinstance(kind, str) or not _is_inside(path, folder):
            raise ModelError(f"{place}: module {path.name!r} leads out of the folder")
    for side, route in own.items():  # modules without settings may have no folder
        if not before and (not route or not route[0][1].is_dir()):
            name = route[0][1].name if route else "(none)"
            raise ModelError(f"{place}: the route {side} begins with {name}, which does not exist")
    return routes


def _is_inside(path: Path, folder: Path) -> bool:
    try:
        path.exists()  # raises for a name that is too long
        return path.resolve().is_relative_to(folder.resolve())
    except (ValueError, OSError):  # a name that no file can have
        return False


def is_static(route: Route) -> bool:
    """Return whether a route is a table of term weights instead of a network."""
    return [kind.rpartition(".")[2] for kind, _ in route] == [STATIC]


def network_folder(folder: Path) -> Path:
    """Return the folder of a Router's only transformer; ``ModelError`` if it has two."""
    routes = read_routes(folder)
    if not is_static(routes["query"]):
        raise ModelError(
            f"{folder}: queries and documents have separate towers; load it with TowerEncoder "
            "(type: towers)"
        )
    return routes["document"][0][1]


@contextlib.contextmanager
def route_folder(folder: Path, side: Side) -> Iterator[Path]:
    """Yield a model folder of one route: its own, or a temporary one of links."""
    route = read_routes(folder)[side]
    own = folder / side
    if route and route[0][1] == own and (own / MODULES).exists():
        yield own
        return
    with tempfile.TemporaryDirectory(prefix="sluice-route-") as temporary:
        draft = Path(temporary)
        entries = []
        for number, (kind, place) in enumerate(route):
            path = f"{number}_{place.name}"
            _link(draft / path, place)
            entries.append({"idx": number, "name": str(number), "path": path, "type": kind})
        write_json(draft / MODULES, entries)
        if (folder / PROMPTS).exists():
            _link(draft / PROMPTS, folder / PROMPTS)
        yield draft


def _link(path: Path, target: Path) -> None:
    """Make ``path`` a link to a file or folder; a copy where links need rights (Windows)."""
    try:
        path.symlink_to(target.resolve())
    except OSError:
        copy = shutil.copytree if target.is_dir() else shutil.copy
        copy(target, path)


def whole_route(folder: Path, side: Side) -> list[tuple[str, str]]:
    """Return (type, path below ``folder``) of the modules of a model folder saved as a route."""
    entries = read_model_json(folder / side / MODULES)
    return [(entry["type"], f"{side}/{entry['path']}".rstrip("/")) for entry in entries]


def write_router(
    folder: Path,
    routes: Mapping[Side, Sequence[tuple[str, str]]],
    *,
    model_type: str,
    prompts: Mapping[str, str],
    similarity: str,
) -> None:
    """Write the files that join two routes; ``routes`` hold (type, path) of their modules."""
    router = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}
    write_json(folder / MODULES, [router])
    write_json(
        folder / ROUTES,
        {
            "types": {path: kind for side in SIDES for kind, path in routes[side]},
            "structure": {side: [path for _, path in routes[side]] for side in SIDES},
            "parameters": {"default_route": "document", "allow_empty_key": True},
        },
    )
    write_prompts(folder, model_type, prompts, similarity)


def write_prompts(
    folder: Path, model_type: str, prompts: Mapping[str, str], similarity: str
) -> None:
    """Write the settings that sentence-transformers reads beside ``modules.json``."""
    settings = {
        "model_type": model_type,
        "prompts": dict(prompts),
        "default_prompt_name": None,
        "similarity_fn_name": similarity,
    }
    write_json(folder / PROMPTS, settings)


def _kind(entry: Any) -> str:
    """Return the name of a module's class; a Router's is ``Asym`` in old folders."""
    name = str(entry.get("type")).rpartition(".")[2] if isinstance(entry, dict) else ""
    return "Router" if name == "Asym" else name
