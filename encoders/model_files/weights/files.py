"""The weights of a network's folder: safetensors, whole or in shards; all else is refused."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ModelError, listed
from sluice.encoders.model_files.layout import read_object

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"  # names the shard of each tensor
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = f"{PICKLED}.index.json"
EXPLICIT = "transformers_weights"  # in config.json: another file than the usual one
QUANTISED = (
    "the weights are quantised, and Sluice reads weights of 16 or 32 bits; take the model that "
    "they were made from, with weights: int8 or int4 (an ONNX graph of 8 bits beside it runs with "
    "backend: onnx)"
)
LONGEST_HEADER = 100_000_000  # bytes, as safetensors has it
POINTER = b"version https://git-lfs"
# What other libraries read: file endings, and their names.
FOREIGN = {".h5": "TensorFlow's", ".msgpack": "Flax's", ".gguf": "llama.cpp's", ".onnx": "a graph"}


def has_weights(home: Path) -> bool:
    """Return whether a folder has weights as safetensors, whole or in shards."""
    return (home / WEIGHTS).exists() or (home / INDEX).exists()


def check_weights(home: Path, folder: Path) -> None:
    """Raise ``ModelError`` unless the network in ``home`` has safetensors of its own.

    ``folder`` is the whole model's, which the remedy names.
    """
    explicit = read_object(home / "config.json").get(EXPLICIT)
    if explicit is not None:
        _check_explicit(explicit, home)
        return
    if (home / WEIGHTS).exists():
        _check_file(home / WEIGHTS)
        return
    if (home / INDEX).exists():
        for shard in sorted(set(shards_in(home / INDEX, ".safetensors").values())):
            _check_file(home / shard)
        return
    refuse_pickle(folder, [home / PICKLED, home / PICKLED_INDEX])
    others = sorted(file for file in home.rglob("*") if file.suffix in FOREIGN)
    if others:
        raise ModelError(
            f"{home}: no {WEIGHTS}; its {others[0].name} is {FOREIGN[others[0].suffix]}, which is "
            "not read as weights; take the model in transformers' layout with safetensors"
        )
    if any(part.startswith("models--") for part in folder.parts):
        raise ModelError(
            f"{home}: no {WEIGHTS}, and pickles are not fetched; if the hub has them and you trust "
            "who made them, fetch the whole model (hf download ID --local-dir FOLDER) and convert "
            "it: sluice model import FOLDER --trust-pickle"
        )
    raise ModelError(f"{home}: no weights; expected {WEIGHTS}, or {INDEX} with its shards")


def refuse_pickle(folder: Path, files: list[Path]) -> None:
    """Raise ``ModelError`` if one of ``files`` exists: weights that only pickle can read."""
    found = next((file for file in files if file.exists()), None)
    if found is None:
        return
    raise ModelError(
        f"{found}: weights in a pickle, which may run code when it is read; expected safetensors; "
        f"if you trust who made it, convert it: sluice model import {folder} --trust-pickle"
    )


def shards_in(index: Path, suffix: str) -> dict[str, str]:
    """Return the shard of each tensor, as an index of weights names them.

    The shards are files beside the index; any other name, and a missing shard, is a ``ModelError``.
    """
    value: Any = read_object(index)
    names = value.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(f"{index}: no weight_map; expected the shard of each tensor by its name")
    shards = sorted(set(map(str, names.values())))
    for name in shards:
        if Path(name).name != name or not name.endswith(suffix):
            raise ModelError(f"{index}: shard {name!r}; expected a *{suffix} file beside it")
        if not _is_file(index.parent / name):
            raise ModelError(
                f"{index}: no {name}; the model is not whole: copy all its shards "
                f"({listed(shards)})"
            )
    return {str(tensor): str(name) for tensor, name in names.items()}


def _check_file(file: Path) -> None:
    """Raise ``ModelError`` for safetensors that are cut, or whose matrices are quantised."""
    for name, (kind, _) in _tensors(file).items():
        whole_numbers = kind.startswith(("U", "I"))
        if (name.endswith("weight") and whole_numbers) or kind.startswith(("F8", "F4", "F6")):
            raise ModelError(f"{file}: {name} is {kind}: {QUANTISED}")


class Stored(NamedTuple):
    """What the weights of a network's files are: so many tensors and numbers, and their types."""

    tensors: int
    numbers: int
    kinds: frozenset[str]

    @property
    def half(self) -> str:
        """The type of 16 bits that all numbers have, else ``F32``."""
        return next(iter(self.kinds)) if self.kinds in ({"BF16"}, {"F16"}) else "F32"


def stored_weights(home: Path) -> Stored:
    """Return what the headers of a network's files say; ``ModelError`` for files that are cut."""
    config = read_object(home / "config.json")
    name = config.get(EXPLICIT) or (WEIGHTS if (home / WEIGHTS).exists() else INDEX)
    files = shards_in(home / name, ".safetensors").values() if name.endswith(".json") else [name]
    tensors = [each for file in set(files) for each in _tensors(home / file).values()]
    numbers = sum(8 * size // max(_bits(kind), 1) for kind, size in tensors)
    return Stored(len(tensors), numbers, frozenset(kind for kind, _ in tensors))


def _bits(kind: str) -> int:
    """Return the bits of a number of a type as a header names it: ``F32``, ``BF16``, ``BOOL``."""
    return int("".join(filter(str.isdigit, kind.partition("_")[0])) or 8)


def _tensors(file: Path) -> dict[str, tuple[str, int]]:
    """Return the type and bytes of each tensor as a file's header has them.

    Raises ``ModelError`` if the file is cut.
    """
    with file.open("rb") as stream:
        start = stream.read(max(8, len(POINTER)))
        if start.startswith(POINTER):
            raise ModelError(
                f"{file}: a pointer of Git LFS, not the weights; fetch them: git lfs pull, or hf "
                "download"
            )
        size = int.from_bytes(start[:8], "little")
        stream.seek(8)
        header = stream.read(size) if len(start) >= 8 and size <= LONGEST_HEADER else b""
    try:
        tensors = {name: each for name, each in json.loads(header).items() if name[:2] != "__"}
        kinds = {name: str(each["dtype"]) for name, each in tensors.items()}
        places = {name: [int(end) for end in tensors[name]["data_offsets"]] for name in kinds}
        whole = 8 + size + max((end for _, end in places.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        kinds, places, whole = {}, {}, 0
    if not places or file.stat().st_size != whole:
        raise ModelError(
            f"{file}: not whole safetensors; it was cut or damaged on its way: copy or fetch it "
            "again"
        )
    return {name: (kinds[name], end - begin) for name, (begin, end) in places.items()}


def read_tensors(home: Path, names: Collection[str]) -> dict[str, Tensor]:
    """Return those of a network's tensors that its files have, by name."""
    from safetensors import safe_open

    if (home / WEIGHTS).exists():
        shards = dict.fromkeys(names, WEIGHTS)
    else:
        shards = shards_in(home / INDEX, ".safetensors") if (home / INDEX).exists() else {}
    found: dict[str, Tensor] = {}
    for name in names:
        if name in shards:
            with safe_open(home / shards[name], "pt") as file:
                if name in file.keys():  # noqa: SIM118 (no mapping)
                    found[name] = file.get_tensor(name)
    return found


def add_tensors(home: Path, tensors: Mapping[str, Tensor]) -> None:
    """Add a shard to the files of a network: others are not written again."""
    from safetensors.torch import save_file

    if (home / WEIGHTS).exists():
        first = "model-00001-of-00002.safetensors"
        shards = dict.fromkeys(_tensors(home / WEIGHTS), first)
        (home / WEIGHTS).rename(home / first)
    else:
        shards = shards_in(home / INDEX, ".safetensors")
    last = "model-head.safetensors"
    held = {name: value.cpu().contiguous() for name, value in tensors.items()}
    save_file(held, home / last, metadata={"format": "pt"})
    sizes = (own.stat().st_size for own in (home / name for name in {*shards.values(), last}))
    facts = {"total_size": sum(sizes)}
    write_json(home / INDEX, {"metadata": facts, "weight_map": shards | dict.fromkeys(held, last)})


def _is_file(path: Path) -> bool:
    """Return whether there is a file of a name that somebody else chose, however long."""
    try:
        return path.is_file()
    except OSError:
        return False


def _check_explicit(name: Any, home: Path) -> None:
    """Check the file that a config names itself, which transformers would read as it is."""
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(
        (".safetensors", ".safetensors.index.json")
    ):  # fmt: skip
        raise ModelError(
            f"{home / 'config.json'}: {EXPLICIT} is {name!r}; expected a *.safetensors file of the "
            f"folder, or delete it and {WEIGHTS} is taken"
        )
    if name.endswith(".json"):
        shards_in(home / name, ".safetensors")
    elif not _is_file(home / name):
        raise ModelError(f"{home / 'config.json'}: {EXPLICIT}: no {name} in the folder")
