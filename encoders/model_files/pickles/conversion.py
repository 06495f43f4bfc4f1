"""Converts weights in pickles to safetensors, in a process of its own, where a reader asks for it.

What may go wrong with a pickle, and why this is the second place where one is read at all, is in
docs/decisions/022-pickles.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.encoders.foundation.disk.files import commit, new_draft, write_json
from sluice.encoders.foundation.disk.generations import MODEL_FILES
from sluice.encoders.foundation.errors import ConfigError, ModelError, listed
from sluice.encoders.foundation.processes import end_phrase
from sluice.encoders.model_files.locate import is_path, local_folder
from sluice.encoders.model_files.pickles import process
from sluice.encoders.model_files.weights.files import (
    INDEX,
    PICKLED,
    PICKLED_INDEX,
    WEIGHTS,
    has_weights,
    shards_in,
)

HEADS = ("sparse_linear.pt", "colbert_linear.pt")  # BGE-M3's
# Of a process that reads what somebody else made: no keys, no tokens, no proxies.
ENVIRONMENT = (
    "PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "LANG", "LC_ALL",
)  # fmt: skip


class Converted(NamedTuple):
    """A file of weights that was written, from which pickle, with how many tensors and bytes."""

    file: Path
    source: Path
    tensors: int
    bytes: int


class _Part(NamedTuple):
    """Pickles of one network or module, each with its safetensors.

    ``shards`` is the new file of each tensor by name; None: there is one file.
    """

    files: tuple[tuple[Path, Path], ...]
    shards: dict[str, str] | None = None


def pickled_weights(name: str | Path) -> list[Path]:
    """Return the pickles of a model's folder that have no safetensors beside them.

    Raises ``ConfigError`` for what is not a folder of one's own, ``ModelError`` for shards that are
    missing.
    """
    return [source for part in _parts(_own_folder(name)) for source, _ in part.files]


def import_pickles(name: str | Path) -> list[Converted]:
    """Write the weights of a model's folder as safetensors beside its pickles; [] without any.

    Names, shapes, types and numbers stay. The pickles are read by another process, which makes
    tensors alone and runs nothing. A network's or module's weights appear in one step; after a kill
    the same call converts the rest. Raises ``ModelError`` for a file that holds anything else.
    """
    folder = _own_folder(name)
    parts = list(_parts(folder))
    if not parts:
        return []
    with new_draft(folder / WEIGHTS, folder=True) as draft:
        files = [pair for part in parts for pair in part.files]
        drafts = [draft / f"{number}.safetensors" for number in range(len(files))]
        sizes = _read_apart([(files[n][0], new) for n, new in enumerate(drafts)], draft)
        converted = [
            Converted(target, source, len(tensors), sum(tensors.values()))
            for (source, target), tensors in zip(files, sizes, strict=True)
        ]
        waiting = iter(zip(drafts, sizes, strict=True))
        for part in parts:
            _place(part, [next(waiting) for _ in part.files], draft)
    return converted


def _own_folder(name: str | Path) -> Path:
    text = str(name)
    folder = local_folder(text) if text.strip() else None
    if folder is None:
        remedy = "expected a model's folder"
        if "/" in text and not is_path(text):
            remedy = f"fetch the whole model first: hf download {text} --local-dir FOLDER"
        raise ConfigError(f"{text or '(empty)'}: no such folder; {remedy}")
    if not is_path(text) and not Path(text).expanduser().is_dir():
        raise ConfigError(
            f"{text}: a model in a cache, which is not changed; copy it first: hf download {text} "
            "--local-dir FOLDER"
        )
    if not any((folder / name).exists() for name in (*MODEL_FILES, PICKLED, PICKLED_INDEX)):
        raise ConfigError(f"{text}: no model's folder: it has no config.json and no modules.json")
    return folder


def _parts(folder: Path) -> Iterator[_Part]:
    for home in _homes(folder):
        if not has_weights(home):
            if (home / PICKLED).is_file():
                yield _Part(((home / PICKLED, home / WEIGHTS),))
            elif (home / PICKLED_INDEX).is_file():
                yield _sharded(home)
        for head in HEADS:
            target = home / Path(head).with_suffix(".safetensors")
            if (home / head).is_file() and not target.exists():
                yield _Part(((home / head, target),))


def _homes(folder: Path) -> list[Path]:
    """Return the folder and those below it that hold pickles, none behind a link."""
    names = (PICKLED, PICKLED_INDEX, *HEADS)
    below = {file.parent for file in folder.rglob("*") if file.name in names}
    root = folder.resolve()
    return sorted(
        home
        for home in below
        if home.resolve() == root / home.relative_to(folder)
        and not any(part.startswith(".") for part in home.relative_to(folder).parts)
    )


def _sharded(home: Path) -> _Part:
    shards = shards_in(home / PICKLED_INDEX, ".bin")
    named = {name: _renamed(name) for name in sorted(set(shards.values()))}
    if len(set(named.values())) < len(named):
        raise ModelError(
            f"{home / PICKLED_INDEX}: shards whose safetensors would have the same name "
            f"({listed(list(named))}); give them other names, there too"
        )
    files = tuple((home / old, home / new) for old, new in named.items())
    return _Part(files, {tensor: named[name] for tensor, name in shards.items()})


def _renamed(shard: str) -> str:
    """``pytorch_model-00001-of-00002.bin`` -> ``model-00001-of-00002.safetensors``."""
    return re.sub(r"^pytorch_model", "model", Path(shard).stem) + ".safetensors"


def _place(part: _Part, written: Sequence[tuple[Path, dict[str, int]]], draft: Path) -> None:
    """Move the files of one part into place, and last the index that makes shards count."""
    home = part.files[0][0].parent
    shards = _shards_found(part, [tensors for _, tensors in written], home)
    for (source, target), (new, _) in zip(part.files, written, strict=True):
        shutil.copymode(source, new)  # safetensors writes for its owner alone
        commit(new, target)
    if part.shards is not None:
        total = sum(sum(tensors.values()) for _, tensors in written)
        write_json(draft / INDEX, {"metadata": {"total_size": total}, "weight_map": shards})
        commit(draft / INDEX, home / INDEX)


def _shards_found(part: _Part, sizes: Sequence[dict[str, int]], home: Path) -> dict[str, str]:
    """Return the file of each tensor; ``ModelError`` if it is not the one that the index names.

    Shards may hold tensors that the index leaves out, second names of others.
    """
    found = {
        tensor: target.name
        for (_, target), tensors in zip(part.files, sizes, strict=True)
        for tensor in tensors
    }
    for tensor, name in sorted((part.shards or {}).items()):
        if found.get(tensor) != name:
            raise ModelError(
                f"{home / PICKLED_INDEX}: {tensor} is not in the shard it names; the model is not "
                "whole or its files do not belong together"
            )
    return dict(sorted(found.items()))


def _read_apart(files: Sequence[tuple[Path, Path]], draft: Path) -> list[dict[str, int]]:
    """Let another process convert pickles; return the bytes of each file's tensors by name."""
    jobs = {
        "folder": str(draft.resolve()),
        "files": [[str(source.resolve()), str(target.resolve())] for source, target in files],
    }
    places = [place for place in sys.path if place and Path(place).is_absolute()]
    done = subprocess.run(
        [sys.executable, "-P", "-m", process.__name__],
        input=json.dumps(jobs),
        text=True,
        capture_output=True,
        cwd=draft,
        env={
            **{name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            "PYTHONPATH": os.pathsep.join(places),
        },
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for answer in answers:
        if "error" in answer:
            raise ModelError(answer["error"])
    if done.returncode or len(answers) != len(files):
        source = files[min(len(answers), len(files) - 1)][0]
        raise ModelError(f"{source}: {_died(done)}; nothing of it was written")
    return [answer["sizes"] for answer in answers]


def _died(done: subprocess.CompletedProcess[str]) -> str:
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    cause = ", most often for want of memory" if done.returncode == -9 else f" ({last})"
    return f"the process that read it {end_phrase(done.returncode)}{cause}"
