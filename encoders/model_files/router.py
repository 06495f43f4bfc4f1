"""Folders whose queries and documents have modules of their own: sentence-transformers' Router.

Ours keep each route as a whole model folder, ``query`` and ``document``, that opens by itself;
sentence-transformers puts one folder a module side by side. Both are read.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from sluice.encoders.encoder import Side
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.foundation.files import read_model_json, write_json

MODULES = "modules.json"
ROUTES = "router_config.json"
PROMPTS = "config_sentence_transformers.json"
SIDES: tuple[Side, Side] = ("query", "document")
STATIC = "SparseStaticEmbedding"  # the module of queries without a network

Route: TypeAlias = list[tuple[str, Path]]  # (type of a module, its folder), in order


def is_router(folder: Path) -> bool:
    """Return whether the first module of a folder is a Router (``Asym`` in old folders)."""
    entries = read_model_json(folder / MODULES)
    return bool(isinstance(entries, list) and entries and _kind(entries[0]) in ("Router", "Asym"))


def read_routes(folder: Path) -> dict[Side, Route]:
    """Return the modules of each side; what follows the Router belongs to both.

    Raises ``ModelError`` for a Router without exactly the routes query and document.
    """
    place = folder / ROUTES
    config = read_model_json(place) or read_model_json(folder / "config.json")
    entries = read_model_json(folder / MODULES)
    try:
        types, structure = config["types"], config["structure"]
        found = {side: [(types[name], folder / name) for name in structure[side]] for side in SIDES}
        behind = [(entry["type"], folder / entry["path"]) for entry in entries[1:]]
        others = set(structure) - set(SIDES)
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{place}: {error}; expected types, and structure with the routes query and document"
        ) from None
    if others:
        raise ModelError(f"{place}: routes {', '.join(sorted(others))}; expected query, document")
    routes = {side: [*route, *behind] for side, route in found.items()}
    for kind, path in (module for route in routes.values() for module in route):
        if not isinstance(kind, str) or not path.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{place}: module {path.name!r} leads out of the folder")
    for side, route in found.items():  # modules without settings may have no folder
        if not route or not route[0][1].is_dir():
            name = route[0][1].name if route else "(none)"
            raise ModelError(f"{place}: the route {side} begins with {name}, which is not there")
    return routes


def is_static(route: Route) -> bool:
    """Return whether a route is a table of term weights, without a network."""
    return [kind.rpartition(".")[2] for kind, _ in route] == [STATIC]


def network_folder(folder: Path) -> Path:
    """Return where the only transformer of a Router's folder lies; two are a ``ModelError``."""
    routes = read_routes(folder)
    if not is_static(routes["query"]):
        raise ModelError(
            f"{folder}: queries and documents have towers of their own; load it with TowerEncoder "
            "(type: towers)"
        )
    return routes["document"][0][1]


@contextlib.contextmanager
def route_folder(folder: Path, side: Side) -> Iterator[Path]:
    """Yield a model folder of one route alone: its own, or one of links that goes afterwards."""
    route = read_routes(folder)[side]
    whole = folder / side
    if route and route[0][1] == whole and (whole / MODULES).exists():
        yield whole
        return
    with tempfile.TemporaryDirectory(prefix="sluice-route-") as made:
        draft = Path(made)
        entries = []
        for number, (kind, place) in enumerate(route):
            path = f"{number}_{place.name}"
            (draft / path).symlink_to(place.resolve())
            entries.append({"idx": number, "name": str(number), "path": path, "type": kind})
        write_json(draft / MODULES, entries)
        if (folder / PROMPTS).exists():
            (draft / PROMPTS).symlink_to((folder / PROMPTS).resolve())
        yield draft


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
    write_json(
        folder / PROMPTS,
        {
            "model_type": model_type,
            "prompts": dict(prompts),
            "default_prompt_name": None,
            "similarity_fn_name": similarity,
        },
    )


def _kind(entry: Any) -> str:
    return str(entry.get("type")).rpartition(".")[2] if isinstance(entry, dict) else ""
