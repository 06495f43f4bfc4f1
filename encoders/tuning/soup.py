"""Averages the weights of models trained from the same start (model soups)."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from sluice.encoders.foundation.disk.files import read_model_json, write_json
from sluice.encoders.foundation.disk.generations import MANIFEST, replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layout import FLOORS, SIDECAR, read_sidecar
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.probes import PROBES

COMPARED = (".json", ".txt", ".model")  # files that decide the vectors besides the weights
GRAPHS = ("onnx", "openvino")  # exported from the weights of one model
# A model's origin and probe texts, and copies of other files.
OWN = (MANIFEST, PROBES, "special_tokens_map.json")
# Keys about the tools that wrote a file.
VOLATILE = frozenset(
    {"_name_or_path", "name_or_path", "transformers_version", "__version__", "backend",
     "backend_file", "truncation", "padding"}
)  # fmt: skip


class GreedySoup(NamedTuple):
    """A greedy soup: the models ``chosen`` for it, and its score ``value``.

    ``scores`` are all models with their own scores, the best first.
    """

    path: Path
    chosen: tuple[str, ...]
    scores: tuple[tuple[str, float], ...]
    value: float


def soup(
    models: Sequence[str | Path], output: str | Path, *, weights: Sequence[float] | None = None
) -> Path:
    """Write a model whose weights are the weighted mean of the models' weights; return its path.

    ``weights`` are scaled to sum to 1; without them the mean is uniform. Means are in float64, so
    that a soup of equal models is that model. Everything else is the first model's; exported
    graphs are left out. (Wortsman et al., 2022, arXiv 2203.05482.)

    Raises ``ModelError`` that names the difference if the models' tensors, tokenizers or settings
    differ; ``ConfigError`` for weights that are negative, not finite or all zero.
    """
    folders = [model_folder(str(model)) for model in models]
    shares = _shares(len(folders), weights)
    target = Path(output)
    if any(target.resolve() == folder.resolve() for folder in folders):
        raise ConfigError(f"output: {target} is one of the models; give another folder")
    first = folders[0]
    files = _tensor_files(first)
    for other in folders[1:]:
        _check_settings(first, other)
    with replaced_folder(target) as draft:
        shutil.copytree(
            first, draft, dirs_exist_ok=True,
            ignore=shutil.ignore_patterns(*GRAPHS, "*.safetensors", MANIFEST, FLOORS, PROBES),
        )  # fmt: skip
        for file in files:
            save_file(_mean(folders, shares, file), draft / file, {"format": "pt"})
        sidecar = read_sidecar(draft)
        if "backend" in sidecar:
            plain = {k: v for k, v in sidecar.items() if k not in ("backend", "backend_file")}
            write_json(draft / SIDECAR, plain)
    return target


def greedy_soup(
    models: Sequence[str | Path], output: str | Path, score: Callable[[Path], float]
) -> GreedySoup:
    """Write a soup of the models that improve it.

    Models are tried from the best one down by their own ``score(folder)`` (higher is better), and
    one is taken if the uniform soup scores no less with it: by that measure the soup is never
    worse than the best model. (Wortsman et al., 2022, algorithm 1.)
    """
    names = [str(model) for model in models]
    _shares(len(names), None)
    for other in names[1:]:
        _check_settings(model_folder(names[0]), model_folder(other))
    own = [(name, float(score(model_folder(name)))) for name in names]
    own.sort(key=lambda pair: -pair[1])
    chosen, best = [own[0][0]], own[0][1]
    with tempfile.TemporaryDirectory(prefix="sluice-soup-") as folder:
        for number, (name, _) in enumerate(own[1:]):
            value = float(score(soup([*chosen, name], Path(folder) / str(number))))
            if value >= best:
                chosen, best = [*chosen, name], value
    return GreedySoup(soup(chosen, output), tuple(chosen), tuple(own), best)


def _shares(count: int, weights: Sequence[float] | None) -> list[float]:
    if not count:
        raise ConfigError("soup: no models; give two or more trained from the same start")
    shares = [1.0] * count if weights is None else [float(weight) for weight in weights]
    if len(shares) != count:
        raise ConfigError(f"weights: {len(shares)} for {count} models; expected one for each")
    if not all(math.isfinite(weight) and weight >= 0 for weight in shares) or not sum(shares):
        raise ConfigError(f"weights: {shares}; expected numbers of 0 or more, at least one above 0")
    return [weight / sum(shares) for weight in shares]


def _mean(folders: Sequence[Path], shares: Sequence[float], file: Path) -> dict[str, Tensor]:
    """Return the weighted mean of each tensor of a file that every model has."""
    means: dict[str, Tensor] = {}
    with safe_open(folders[0] / file, framework="pt") as first:
        names = sorted(first.keys())
        opened = [first, *(safe_open(folder / file, framework="pt") for folder in folders[1:])]
        for folder, other in zip(folders[1:], opened[1:], strict=True):
            foreign = sorted(set(names) ^ set(other.keys()))
            if foreign:
                raise ModelError(
                    f"{folder}: {file} differs from that of {folders[0]} in {len(foreign)} tensors "
                    f"that only one has, such as {foreign[0]}; a soup needs equal models"
                )
        for name in names:
            tensors = [reader.get_tensor(name) for reader in opened]
            means[name] = _mixed(tensors, shares, folders, f"{file}: {name}")
    return means


def _mixed(
    tensors: Sequence[Tensor], shares: Sequence[float], folders: Sequence[Path], what: str
) -> Tensor:
    first = tensors[0]
    for tensor, folder in zip(tensors, folders, strict=True):
        if tensor.shape != first.shape or tensor.dtype != first.dtype:
            raise ModelError(
                f"{folder}: {what} is {tensor.dtype} {list(tensor.shape)}, in {folders[0]} "
                f"{first.dtype} {list(first.shape)}; a soup needs equal models"
            )
        if not first.is_floating_point() and not torch.equal(tensor, first):
            raise ModelError(f"{folder}: {what} has other integers than in {folders[0]}")
    if not first.is_floating_point():
        return first
    total = torch.zeros(first.shape, dtype=torch.float64)
    for tensor, share in zip(tensors, shares, strict=True):
        total += tensor.double() * share
    return total.to(first.dtype)


def _tensor_files(folder: Path) -> list[Path]:
    files = [path for path in _below(folder) if path.suffix == ".safetensors"]
    if not files:
        raise ModelError(f"{folder}: no *.safetensors; a soup is made of trained models")
    return files


def _check_settings(first: Path, other: Path) -> None:
    """Raise ``ModelError`` that names the first setting, file or token that differs."""
    left, right = _below(first), _below(other)
    if missing := sorted(set(left) ^ set(right)):
        holder, lacks = (first, other) if missing[0] in left else (other, first)
        raise ModelError(f"{lacks}: no {missing[0]}, unlike {holder}; a soup needs equal models")
    for file in left:
        if file.suffix == ".json":
            a, b = (_settled(read_model_json(folder / file)) for folder in (first, other))
            if a != b:
                raise ModelError(
                    f"{other}: {file}: {_difference(a, b)} in {first}; a soup needs equal models"
                )
        elif file.suffix in COMPARED and (first / file).read_bytes() != (other / file).read_bytes():
            raise ModelError(f"{other}: {file} differs from that of {first}")


def _below(folder: Path) -> list[Path]:
    """Return the files that decide a model's vectors, below its folder."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(
        path
        for path in files
        if path.suffix in (*COMPARED, ".safetensors")
        and path.parts[0] not in GRAPHS
        and path.name not in OWN
        and not any(part.startswith(".") for part in path.parts)
    )


def _settled(value: Any) -> Any:
    """Return settings without the keys about the tools that wrote them."""
    if isinstance(value, dict):
        return {key: _settled(item) for key, item in value.items() if key not in VOLATILE}
    return [_settled(item) for item in value] if isinstance(value, list) else value


def _difference(a: Any, b: Any, key: str = "") -> str:
    """Return the first difference of two settings in words."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted({*a, *b}):
            if a.get(name) != b.get(name):
                return _difference(a.get(name), b.get(name), f"{key}.{name}".lstrip("."))
    return f"{key or 'the list'} is {_short(b)}, and {_short(a)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
