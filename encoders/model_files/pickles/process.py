"""A process that reads tensors from pickles and writes safetensors; it does nothing else.

Only torch's reader with ``weights_only`` is used, which makes tensors and no other objects. Behind
it a hook ends the process if anything still tries to run a program, to reach a socket, or to write
elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

COPIES = 8  # times a file's size that its tensors may take: T5 names one table four times
_RUNS = (
    "subprocess.", "socket.", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork",
    "os.startfile", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink",
    "os.chmod", "os.truncate", "shutil.", "ctypes.dlopen", "webbrowser.", "urllib.",
)  # fmt: skip
_GLOBAL = re.compile(r"(?:Unsupported (?:global|class|operand)[^:]*: )?GLOBAL (\S+)")


def convert(source: Path, target: Path) -> dict[str, int]:
    """Write the tensors of a pickle as safetensors; return the bytes of each tensor by name.

    Raises ``ValueError`` for anything but tensors by name.
    """
    import torch
    from safetensors.torch import save_file

    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("is compressed, as torch never writes its files")
    try:
        state: Any = torch.load(source, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # the reader of damaged files raises any
        raise ValueError(_cause(error)) from error
    if not isinstance(state, dict) or not state:
        raise ValueError(f"holds a {type(state).__name__}, expected tensors by name")
    for name, value in state.items():
        if not isinstance(name, str) or type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise ValueError(f"{name!r:.80} is a {type(value).__name__}, expected a tensor")
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise ValueError(f"{name!r:.80} is a tensor of a kind that safetensors lacks")
    sizes = {name: value.numel() * value.element_size() for name, value in state.items()}
    if sum(sizes.values()) > COPIES * source.stat().st_size:
        raise ValueError(
            f"its tensors take {sum(sizes.values()):,} bytes, the file {source.stat().st_size:,}"
        )
    seen: set[int] = set()
    for name, value in state.items():
        plain = value.detach().contiguous()
        storage = plain.untyped_storage()
        # safetensors stores no tensor under two names, and no view of another
        if storage.data_ptr() in seen or storage.nbytes() != sizes[name]:
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        state[name] = plain
    save_file(state, target, {"format": "pt"})
    return sizes


def _watched(folder: Path) -> None:
    """Let nothing but files below ``folder`` be written from here on; cannot be undone."""
    inside = str(folder.resolve()) + os.sep
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event.startswith(_RUNS):
            raise PermissionError(f"tried {event}")
        if event == "open" and isinstance(values[0], str | bytes) and values[2] & writes:
            place = os.path.realpath(os.fsdecode(values[0]))
            if not place.startswith(inside):
                raise PermissionError(f"tried to write {place}")

    sys.addaudithook(hook)


def _cause(error: Exception) -> str:
    """Return why torch's reader refused a file."""
    foreign = _GLOBAL.search(str(error))
    if foreign is None:
        return "is damaged, or holds other than tensors"
    return (
        f"names {foreign[1]}, not a tensor, which may be code; nothing of it was run: do not "
        "use this file"
    )


def _main() -> None:
    """Convert the pairs of files on standard input (JSON); answer each with a line of JSON."""
    import safetensors.torch  # noqa: F401  before the hook: with torch it opens libraries

    jobs = json.load(sys.stdin)
    _watched(Path(jobs["folder"]))
    for source, target in jobs["files"]:
        try:
            answer: dict[str, Any] = {"sizes": convert(Path(source), Path(target))}
        except Exception as error:
            cause = (str(error).strip() or type(error).__name__).splitlines()[0]
            answer = {"error": f"{source}: {cause}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        if "error" in answer:
            return


if __name__ == "__main__":
    _main()
