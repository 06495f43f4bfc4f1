"""The rule for folders that somebody else may have written: what they name needs the reader's word.

``allow`` is that word, a collection of texts: ``module:Class`` lets a folder import that class,
``https://host/v1`` reach that server (``http``: any server), ``https://host/v1=VARIABLE`` also send
it the key in that environment variable (``=@FILE``: in that file), ``hub`` fetch models and
datasets, and a path read links to it and write below it. The address of a database, as the folder
names it, lets an index search and change what it has there. ``None`` stands for the user's own YAML
file, which needs no word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sluice.encoders.foundation.errors import ConfigError

Allow = Collection[str] | None

HTTP = "http"
HUB = "hub"
_WITH_KEY = re.compile(r"(?P<url>https?://[^=]+)=(?P<variable>[A-Za-z_]\w*|@.+)")


def refuse_class(name: str, where: str, allow: Allow) -> None:
    """Raise ``ConfigError`` for a class, or a function, that is not built in and not allowed."""
    if allow is not None and name not in allow:
        raise _refusal(f"{where}: {name!r} is not built in", "never runs code that it names", name)


def refuse_server(url: str, where: str, allow: Allow) -> str | None:
    """Return where the key is that the reader sends to ``url``, see ``key_of``; None for no key.

    Raises ``ConfigError`` for a server that is not allowed.
    """
    if allow is None:
        return None
    for entry in allow:
        given = _WITH_KEY.fullmatch(entry)
        if given is not None and _is_below(url, given["url"]):
            return given["variable"]
    if HTTP not in allow and not any(_is_below(url, entry) for entry in allow):
        raise _refusal(f"{where}: {url} is a server", "never reaches one that it names", url)
    return None


def refuse_database(address: str, where: str, allow: Allow) -> None:
    """Raise ``ConfigError`` for the address of a database that is not allowed, in these words."""
    if allow is not None and address not in allow:
        raise _refusal(
            f"{where}: {address} is a database", "never reaches one that it names", address
        )


def key_of(place: str | None) -> dict[str, Any]:
    """Return the option that names a key's place: a variable, or a file after an ``@``."""
    if place is None:
        return {}
    return {"api_key_file": place[1:]} if place[0] == "@" else {"api_key_env": place}


def word_for(spec: Mapping[str, Any]) -> str:
    """Return what allows the server of a component ``{url, api_key_env or api_key_file}``."""
    file = spec.get("api_key_file")
    place = f"@{file}" if file else spec.get("api_key_env")
    return f"{spec.get('url')}={place}" if place else str(spec.get("url"))


def _is_below(url: str, prefix: str) -> bool:
    """Return whether a URL is ``prefix`` or a path below it, at the same scheme, host and port."""
    try:
        one, other = urlsplit(url), urlsplit(prefix)
    except ValueError:
        return False
    inside = f"{one.path.rstrip('/')}/".startswith(f"{other.path.rstrip('/')}/")
    dots = {".", ".."} & set(re.split(r"[/\\;]", unquote(one.path)))
    return bool(other.netloc) and one[:2] == other[:2] and inside and not dots


def refuse_fetching(name: str, where: str, allow: Allow) -> None:
    """Raise ``ConfigError``, unless allowed: ``name`` would have to come from a hub."""
    if allow is not None and HUB not in allow:
        raise _refusal(f"{where}: {name} is not on this machine", "fetches nothing", HUB)


def refuse_writing(path: str | Path, where: str, folder: Path, allow: Allow) -> None:
    """Raise ``ConfigError`` for a file that is neither in ``folder`` nor below an allowed path."""
    if allow is None:
        return
    try:
        place = Path(path).expanduser().resolve()
    except (RuntimeError, OSError, ValueError) as error:  # no such home, a circle of links
        raise ConfigError(f"{where}: {str(path)!r} is not a path ({error})") from None
    if not any(place.is_relative_to(each) for each in (folder.resolve(), *_paths(allow))):
        raise _refusal(f"{where}: {path} is outside {folder}", "writes only inside it", str(path))


def refuse_links(folder: Path, allow: Allow = ()) -> None:
    """Raise ``ConfigError`` if a link in ``folder`` leads out of it, before something is written.

    Links below an allowed path are accepted.
    """
    if allow is None:
        return
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink() and leads_out(path, folder, allow):
                target = path.resolve()
                raise _refusal(
                    f"{path}: a link out of the folder, to {target}",
                    "writes only inside it",
                    str(target),
                )


def leads_out(path: Path, folder: Path, allow: Collection[str]) -> bool:
    """Return whether links lead from ``path`` out of a folder, and below no allowed path."""
    target = Path(os.path.realpath(path))  # a circle of links leads nowhere, without an error
    return not any(map(target.is_relative_to, (folder.resolve(), *_paths(allow))))


def _paths(allow: Collection[str]) -> Iterator[Path]:
    names = (entry for entry in allow if entry not in (HTTP, HUB) and "://" not in entry)
    return (Path(name).expanduser().resolve() for name in names)


def _refusal(what: str, rule: str, word: str) -> ConfigError:
    return ConfigError(
        f"{what}, and opening a folder {rule}; pass allow=[{word!r}], on the command line "
        f"--allow {word}, if you trust it"
    )
