"""Saves and checks checkpoints: complete ones only, and only of the training that resumes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import sync, write_json
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.journal import TRAINING
from sluice.training.losses.base import LossBase, renamed
from sluice.training.protocol import Example, Text

COMPLETE = "complete.json"  # written last: a checkpoint without it was cut off by a kill
LOSS = "loss.safetensors"  # of a loss with a state of its own


def seal(checkpoint: Path, state: Mapping[str, Any]) -> None:
    """Mark a checkpoint as complete; ``state`` is kept in the mark."""
    files = {}
    for file in sorted(checkpoint.iterdir()):
        if file.is_file() and file.name != COMPLETE:
            sync(file)
            files[file.name] = file.stat().st_size
    write_json(checkpoint / COMPLETE, {"files": files, "state": dict(state)})
    sync(checkpoint.parent)  # its name too, before older ones are removed


def sealed_state(checkpoint: Path) -> dict[str, Any] | None:
    """Return the state kept in a checkpoint's mark; None if the checkpoint is incomplete."""
    try:
        mark = json.loads((checkpoint / COMPLETE).read_text(encoding="utf-8"))
        complete = all((checkpoint / n).stat().st_size == size for n, size in mark["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return dict(mark["state"]) if complete else None


def last_complete(output: Path) -> Path | None:
    """Return the newest complete checkpoint in ``output``; what a kill cut off is removed."""
    newest: tuple[int, Path] | None = None
    for folder in output.glob("checkpoint-*"):
        number = folder.name.rpartition("-")[2]
        if not number.isdigit():
            continue
        if sealed_state(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
        elif newest is None or int(number) > newest[0]:
            newest = int(number), folder
    return newest[1] if newest else None


def bind(output: Path, training: Mapping[str, Any]) -> None:
    """Write down what is trained in ``output``, or check that it is what was trained there before.

    Raises ``ConfigError`` naming what differs when there are checkpoints of another training.
    """
    path = output / TRAINING
    facts = json.loads(json.dumps(dict(training), default=str))
    if path.exists() and last_complete(output) is not None:
        before = json.loads(path.read_text(encoding="utf-8"))
        before["loss"] = renamed(before.get("loss"))
        differing = [k for k in {**before, **facts} if before.get(k) != facts.get(k)]
        if differing:
            raise ConfigError(
                f"{output}: holds checkpoints of another training, which differs in "
                f"{', '.join(differing)}; choose another output or delete that folder"
            )
    write_json(path, facts)


def save_state(checkpoint: Path, loss: LossBase) -> None:
    """Write the tensors that a loss keeps (parameters, a queue) into a checkpoint."""
    tensors = loss.state()
    if tensors:
        import safetensors.torch

        saved = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        safetensors.torch.save_file(saved, checkpoint / LOSS)


def load_state(checkpoint: Path, loss: LossBase) -> None:
    """Give a loss back what ``save_state`` wrote."""
    if (checkpoint / LOSS).exists():
        import safetensors.torch

        loss.restore(safetensors.torch.load_file(checkpoint / LOSS))


def examples_hash(examples: Iterable[Example]) -> str:
    """Return a hash of everything in the examples, in order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(_line(example).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def save_examples(path: Path, examples: Iterable[Example]) -> None:
    """Write examples as JSON lines, in one step."""
    from sluice.encoders.foundation.disk.files import write_bytes

    write_bytes(path, "".join(map(_line, examples)).encode("utf-8", "surrogatepass"))


def load_examples(path: Path) -> list[Example]:
    """Read what ``save_examples`` wrote."""
    examples = []
    for line in path.read_bytes().decode("utf-8", "surrogatepass").splitlines():
        query, documents, labels, relevant, scores, weight, answered, *later = json.loads(line)
        source = later[0] if later else ""
        negative_queries = later[1] if len(later) > 1 else ()
        examples.append(
            Example(
                Text(*query),
                tuple(Text(*document) for document in documents),
                tuple(labels),
                frozenset(relevant),
                tuple(scores),
                weight,
                tuple(answered),
                source,
                tuple(negative_queries),
            )
        )
    return examples


def _line(example: Example) -> str:
    later: tuple[object, ...] = ()  # what came later, so that the lines without it stay the same
    if example.negative_queries:
        later = (example.source, example.negative_queries)
    elif example.source:
        later = (example.source,)
    fields = (
        example.query, example.documents, example.labels, sorted(example.relevant),
        example.scores, example.weight, example.answered, *later,
    )  # fmt: skip
    return json.dumps(fields) + "\n"
