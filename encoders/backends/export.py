"""Exports an encoder as ONNX into a complete model folder, checked against torch before saving."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from sluice.encoders.backends.backend import (
    OUTPUTS,
    Difference,
    compared,
    need_packages,
    open_backend,
)
from sluice.encoders.backends.graph import MODEL_FILE, WEIGHTS_KEY
from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layout import read_sidecar
from sluice.encoders.model_files.loading import quiet_transformers
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.weights.quantised import weights_of
from sluice.encoders.table import KNOWN, traits_of

Quantisation: TypeAlias = Literal["int8"]
QUANTISED_FILES = {"int8": "onnx/model_qint8.onnx"}
OPSET = 17
LOWEST_COSINE = 0.9999  # a float32 graph below it differs from torch
LARGEST_RELATIVE = 1e-3
# The tracing exporter takes a tenth of a second, the newer one seconds and another package; it is
# right for every architecture in the tests.
_KNOWN_WARNINGS = (
    (DeprecationWarning, "You are using the legacy TorchScript-based ONNX export"),
    (DeprecationWarning, "The feature will be removed"),
    (UserWarning, "Exporting aten::index operator of advanced indexing"),
    (UserWarning, "Constant folding"),
)
LENGTHS = (
    0,
    1,
    2,
    3,
    5,
    8,
    13,
    21,
    34,
    55,
    89,
    144,
    233,
    377,
    510,
)  # words in the texts of the sample
_WORDS = (
    "water gold river stone sluice gravel the of a search query document engine reads 1987 old "
    "records about protein folding in cells, heart disease and diabetes, compilers that inline "
    "small functions, tax law for farmers; how do I return an item? weather over the northern "
    "sea changes quickly (storms, fog), while markets fall by 3.5 percent on news from abroad"
)


@dataclass(frozen=True, slots=True)
class ExportReport:
    """An export: the folder, the kind of encoder, and each file's bytes and difference."""

    folder: Path
    kind: str
    bytes: dict[str, int] = field(default_factory=dict)
    differences: dict[str, Difference] = field(default_factory=dict)

    def __str__(self) -> str:
        unit = {"head_states": "term weights", "logits": "logits"}.get(
            OUTPUTS[self.kind], "vectors"
        )
        lines = []
        for file, difference in self.differences.items():
            line = (
                f"{file}: {self.bytes[file] / 1e6:,.1f} MB; on {difference.texts} texts, {unit} "
                f"differ from torch's by at most {difference.largest:.3g} (of up to "
                f"{difference.span:.3g})"
            )
            if OUTPUTS[self.kind] != "logits":
                line += f", smallest cosine {difference.cosine:.6f}"
            lines.append(line)
        return "\n".join(lines)


def export_onnx(
    model: Any,
    output: str | Path,
    *,
    quantise: Quantisation | None = None,
    texts: Sequence[str] = (),
) -> ExportReport:
    """Write a dense, SPLADE or cross-encoder with its graph as ``onnx/model.onnx``, in one step.

    ``model`` is an encoder, a folder or a hub id. The folder is as ``save_pretrained`` writes it,
    so it opens with any back end, and in sentence-transformers. The graph is compared with torch
    on a fixed sample of texts of every length and on ``texts``; if it differs, a ``ModelError``
    is raised and nothing is written. ``quantise="int8"`` puts
    ``onnx/model_qint8.onnx`` (8-bit weights per channel, activations quantised at run time)
    beside it: look at its difference before use. Raises ``ConfigError`` for other settings and an
    ``output`` that is the model's own folder or not a model's, ``MissingPackageError``.
    """
    if quantise is not None and quantise not in QUANTISED_FILES:
        raise ConfigError(f"quantise: {quantise!r}; known: {', '.join(QUANTISED_FILES)}")
    need_packages("onnx")
    encoder = _open_encoder(model, Path(output))
    if (weights := weights_of(encoder.module)) != "float32":
        raise ConfigError(
            f"weights: {weights}: a graph is made of weights of 32 bits; open the model with "
            "weights: float32 (quantise: int8 writes a graph of 8 bits)"
        )
    report = ExportReport(Path(output), encoder.kind)
    sample = [*sample_texts(), *texts]
    with replaced_folder(Path(output)) as folder:
        encoder.save_pretrained(folder)
        target = folder / MODEL_FILE
        target.parent.mkdir(exist_ok=True)  # a back end in use was saved with its graph
        write_graph(encoder, target)
        files = {MODEL_FILE: target}
        if quantise is not None:
            files[QUANTISED_FILES[quantise]] = folder / QUANTISED_FILES[quantise]
            _quantise(target, files[QUANTISED_FILES[quantise]])
        for name, path in files.items():
            backend = open_backend(folder, "onnx", OUTPUTS[encoder.kind], file=name)
            difference = compared(encoder, backend, sample)
            if name == MODEL_FILE:
                _check(difference, type(encoder.model).__name__)
            report.differences[name] = difference
            report.bytes[name] = path.stat().st_size
    return report


def write_graph(encoder: Any, path: Path) -> None:
    """Trace an encoder's network in float32 into an ONNX file, for any batch and length."""
    kind = encoder.kind
    network = copy.deepcopy(encoder.model).cpu().float().eval()
    if getattr(network.config, "_attn_implementation", "eager") != "eager":
        with quiet_transformers():  # MPNet reports that it has only one
            network.set_attn_implementation("eager")
    names = input_names(encoder)
    traced = _Traced(
        network, names, "logits" if OUTPUTS[kind] != "last_hidden_state" else OUTPUTS[kind]
    )
    output = OUTPUTS[kind]
    axes = {name: {0: "batch", 1: "length"} for name in names}
    axes[output] = {0: "batch"} if output == "logits" else {0: "batch", 1: "length"}
    with _quiet_exporter(), torch.no_grad():
        try:
            torch.onnx.export(
                traced.eval(),
                tuple(_example(encoder)[name] for name in names),
                str(path),
                input_names=names,
                output_names=[output],
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
            )
        except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
            line = (str(error).strip() or repr(error)).splitlines()[0]
            raise ModelError(
                f"{type(encoder.model).__name__}: torch cannot export it as ONNX: {line}; use "
                "backend 'torch'"
            ) from error
    _note(path, {WEIGHTS_KEY: encoder.weights_hash(), "sluice.kind": kind})


def input_names(encoder: Any) -> list[str]:
    """Return the inputs of an encoder's graph, in order."""
    names = ["input_ids", "attention_mask"]
    known = inspect.signature(encoder.model.forward).parameters
    if "token_type_ids" in set(encoder.tokenizer.model_input_names) & set(known):
        names.append("token_type_ids")
    return names


class _Traced(nn.Module):
    """A network whose inputs come in order and whose output is one tensor."""

    def __init__(self, network: nn.Module, names: Sequence[str], output: str) -> None:
        super().__init__()
        self.network = network
        self._names = tuple(names)
        self._output = output

    def forward(self, *features: Tensor) -> Tensor:
        """Return hidden states, head states or logits of padded features."""
        inputs = dict(zip(self._names, features, strict=True))
        output: Tensor = getattr(self.network(**inputs, return_dict=True), self._output)
        return output


def _example(encoder: Any) -> dict[str, Tensor]:
    """Return two texts of different lengths to trace."""
    special = set(encoder.tokenizer.all_special_ids)
    size = int(encoder.model.config.vocab_size)
    token = next((number for number in range(size) if number not in special), 0)
    ids = torch.full((2, 9), token)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    ids[1, 4:] = int(encoder.tokenizer.pad_token_id)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def _open_encoder(model: Any, output: Path) -> Any:
    """Return the encoder, opened from its folder, which may not be the output."""
    encoder = model
    if isinstance(model, str | Path):
        from sluice.encoders.model_files.registry import kind_of, open_encoder

        source = model_folder(str(model))
        if output.resolve() in (source.resolve(), *source.resolve().parents):
            raise ConfigError(f"{output}: is or contains the model itself; give another folder")
        kind = kind_of(source)
        traits = traits_of(kind)
        if traits is not None and traits.sides:
            raise ConfigError(f"{source}: has two towers; export {source}/query and /document")
        if traits is not None and traits.experts and not _is_gated(source):
            raise ConfigError(
                f"{source}: has several experts; export one, which ExpertEncoder.from_pretrained("
                "FOLDER, expert=NAME).save_pretrained(OTHER) writes as a dense encoder"
            )
        if kind not in OUTPUTS:
            raise ConfigError(
                f"{source}: an encoder of type {kind} is not exported as ONNX; expected one of "
                f"{', '.join(OUTPUTS)}"
            )
        encoder = open_encoder(source, device="cpu")
    if hooks_of(encoder).kind not in OUTPUTS:
        raise ConfigError(
            f"a {type(encoder).__name__} cannot be exported as ONNX; dense, SPLADE and "
            "cross-encoders can"
        )
    if OUTPUTS[encoder.kind] == "logits" and encoder.module is not encoder.model:
        raise ConfigError(
            "a cross-encoder with head: similarity cannot be exported as ONNX; use it with torch, "
            "or train one with head: classifier"
        )
    if KNOWN[encoder.kind].layered and encoder.top_layers > 1:
        raise ConfigError(
            f"a dense encoder with top_layers: {encoder.top_layers} cannot be exported as ONNX, "
            "whose graph returns the last layer alone; use it with torch, or train one without"
        )
    return encoder


def _is_gated(folder: Path) -> bool:
    """Whether a folder with experts has a gate among them, so that none is an encoder alone."""
    noted = read_sidecar(folder).get("experts")
    return isinstance(noted, dict) and not noted.get("names")


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the warnings that the exporter logs for every model."""
    with warnings.catch_warnings():
        # A condition is traced with its current outcome: right for inputs with padding, as ours;
        # and the graph is compared with torch afterwards.
        warnings.filterwarnings("ignore", message="Converting a tensor to a Python boolean")
        # Constants of a mask, in older versions of transformers.
        warnings.filterwarnings("ignore", message="torch.tensor results are registered as const")
        for category, start in _KNOWN_WARNINGS:
            warnings.filterwarnings("ignore", message=start, category=category)
        yield


def _note(path: Path, facts: dict[str, str]) -> None:
    """Write facts into an ONNX file's metadata."""
    import onnx

    model = onnx.load_model(str(path), load_external_data=False)
    onnx.helper.set_model_props(model, facts)
    onnx.save_model(model, str(path))


def _quantise(source: Path, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    root = logging.getLogger()  # where it logs
    root.addFilter(_is_no_advice)
    try:
        quantize_dynamic(source, target, per_channel=True, weight_type=QuantType.QInt8)
    finally:
        root.removeFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    """Return False for the advice to pre-process a graph, which changes nothing in traced ones."""
    return not str(record.msg).startswith("Please consider to run pre-processing")


def _check(difference: Difference, name: str) -> None:
    """Refuse a float32 graph that differs from torch; NaN fails every comparison."""
    if difference.cosine >= LOWEST_COSINE and difference.relative <= LARGEST_RELATIVE:
        return
    raise ModelError(
        f"{name}: the exported graph differs from torch: largest difference "
        f"{difference.largest:.3g} of {difference.span:.3g}, smallest cosine "
        f"{difference.cosine:.6f}; nothing was written: use backend 'torch'"
    )


def sample_texts() -> list[str]:
    """Return the fixed sample: texts of 0 to 510 words, for every length up to a model's."""
    words = _WORDS.split()
    return [
        " ".join(words[(7 * place + at) % len(words)] for at in range(length))
        for place, length in enumerate(LENGTHS)
    ]
