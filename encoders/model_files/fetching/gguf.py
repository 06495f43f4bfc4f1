"""Reads a GGUF file, as llama.cpp has them, and writes a model's folder with float32 weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, ModelError
from sluice.encoders.model_files.loading import quiet_transformers, save
from sluice.encoders.model_files.remote_code import LOCAL

SUFFIX = ".gguf"


def import_gguf(file: Path, output: Path) -> None:
    """Write the model of a GGUF file into a new folder, whose weights are what its codes stand for.

    Raises ``ModelError`` for a file that transformers does not read.
    """
    if not file.is_file():
        raise ConfigError(f"{file}: no such file")
    if output.exists():
        raise ConfigError(f"{output}: exists already; give another folder with --output")
    if importlib.util.find_spec("gguf") is None:  # by which transformers reads it
        raise MissingPackageError("gguf", "gguf", file.name)
    with replaced_folder(output) as folder:
        convert(file.parent, folder, file.name)


def convert(source: Path, folder: Path, name: str = "") -> None:
    """Write the model of the GGUF file ``name`` in ``source``, by default the only one there."""
    from transformers import AutoTokenizer

    file = source / name if name else next(source.glob(f"*{SUFFIX}"))
    try:
        with quiet_transformers():
            model = _network(file)
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, **LOCAL)
    except Exception as error:  # whatever a file that is cut, or of another layout, leads to
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{file}: transformers does not read it as GGUF ({line:.300})") from error
    model.hf_quantizer = None  # the weights are plain by now
    del model.config.quantization_config
    save(model, folder)
    tokenizer.save_pretrained(folder)


def _network(file: Path) -> Any:
    from torch import float32
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, **LOCAL)
    kinds = (AutoModelForCausalLM, AutoModelForSeq2SeqLM)
    auto = next((kind for kind in kinds if type(config) in kind._model_mapping), AutoModel)
    return auto.from_pretrained(file.parent, gguf_file=file.name, dtype=float32, **LOCAL)
