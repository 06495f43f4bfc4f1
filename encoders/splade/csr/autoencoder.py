"""The encoding half of a sparse autoencoder, in the files of sentence-transformers' module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout import read_object
from sluice.encoders.model_files.weights.files import PICKLED, WEIGHTS, refuse_pickle
from sluice.encoders.splade.term_selection import keep_top

# The matrix is one for both halves; a file has it by either name.
MATRIX, TIED = "encoder.weight", "decoder.linear.weight"
# Settings that the loss `csr` reads: the dead latents that the auxiliary reconstruction is made of,
# and the batches without use after which a latent is dead.
TRAINING: dict[str, int] = {"k_aux": 512, "dead_threshold": 30}
IDLE = "stats_last_nonzero"  # batches since each latent was active, counted in training
SPREAD = 1e-5  # added to the standard deviation of a vector
ACTIVE = 1e-5  # a code's least weight of a latent in use


class SparseAutoencoder(nn.Module):
    """``relu(top_k(W (x - b) + c))`` of dense vectors ``x``: codes of at most k latents.

    ``W`` ``[latents, inputs]``, ``b`` ``[inputs]``, ``c`` ``[latents]``; with ``normalize`` x is
    first moved to mean 0 and divided by its standard deviation (of n - 1) plus 1e-5. ``others`` are
    settings that only training by the loss ``csr`` reads. (Wen et al. 2025, Beyond Matryoshka,
    arXiv 2503.01776, section 3; k-sparse autoencoders: Makhzani and Frey 2013, arXiv 1312.5663.)
    """

    def __init__(
        self, state: dict[str, Tensor], *, top_k: int, normalize: bool, others: dict[str, Any]
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(state[MATRIX])
        self.pre_bias = nn.Parameter(state["pre_bias"])
        self.latent_bias = nn.Parameter(state["latent_bias"])
        self.idle: Tensor
        self.register_buffer("idle", state[IDLE])
        self.top_k = top_k
        self.normalize = normalize
        self.others = others

    def forward(self, vectors: Tensor) -> Tensor:
        """Return codes float32 ``[n, latents]`` of vectors ``[n, inputs]``."""
        # In float32 whatever the encoder computes in: rounding would choose other latents.
        with torch.autocast(vectors.device.type, enabled=False):
            scaled, _, _ = self.scaled(vectors.float())
            return torch.relu(keep_top(self.latents(scaled), self.top_k))

    def scaled(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return vectors ``[n, inputs]`` as they are coded, their means and standard deviations.

        The last two are 0 and 1 without ``normalize``.
        """
        if not self.normalize:
            return vectors, vectors.new_zeros(1), vectors.new_ones(1)
        mean = vectors.mean(dim=-1, keepdim=True)
        centred = vectors - mean
        spread = centred.std(dim=-1, keepdim=True)
        return centred / (spread + SPREAD), mean, spread

    def latents(self, scaled: Tensor) -> Tensor:
        """Return all latents ``[n, latents]`` of scaled vectors, of any sign."""
        return nn.functional.linear(scaled - self.pre_bias, self.weight, self.latent_bias)

    def decoded(self, codes: Tensor) -> Tensor:
        """Return the scaled vectors ``[n, inputs]`` that codes stand for: ``codes W + b``."""
        return codes @ self.weight + self.pre_bias

    @property
    def auxiliary(self) -> int:
        """The most dead latents of an auxiliary reconstruction; 0: there is none."""
        return int(self.others.get("k_aux", TRAINING["k_aux"]))

    def dead(self) -> Tensor:
        """Return ``[latents]``: whether a latent was in no code for ``dead_threshold`` batches."""
        threshold: int = self.others.get("dead_threshold", TRAINING["dead_threshold"])
        return self.idle > threshold

    @torch.no_grad()
    def count(self, codes: Tensor) -> None:
        """Count a batch of codes ``[n, latents]``: those that it uses begin again."""
        used = (codes > ACTIVE).any(dim=0)
        self.idle.masked_fill_(used, 0).add_(1)

    def write(self, folder: Path) -> None:
        """Write the module's folder as sentence-transformers does."""
        state = {MATRIX: self.weight, "pre_bias": self.pre_bias, "latent_bias": self.latent_bias,
                 IDLE: self.idle}  # fmt: skip
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        # Its reader knows by the metadata that the other name is the same matrix.
        safetensors.torch.save_file(tensors, folder / WEIGHTS, {"format": "pt", TIED: MATRIX})
        latents, inputs = self.weight.shape
        write_json(folder / "config.json", {
            "input_dim": inputs, "hidden_dim": latents, "k": self.top_k,
            "normalize": self.normalize, **self.others,
        })  # fmt: skip

    @classmethod
    def read(cls, folder: Path, inputs: int) -> SparseAutoencoder:
        """Read the module of a model folder; ``ModelError`` where it does not fit the vectors."""
        file = folder / "config.json"
        if not file.is_file():
            raise ModelError(f"{file}: missing; take the folder from its source again")
        config = read_object(file)
        latents, top_k = config.get("hidden_dim", 512), config.get("k", 8)
        if config.get("input_dim") != inputs or type(latents) is not int or latents < 1:
            raise ModelError(
                f"{file}: input_dim and hidden_dim are {config.get('input_dim')!r} and "
                f"{latents!r}; expected {inputs}, the dimensions of the vectors before it, and a "
                "number of latents"
            )
        if type(top_k) is not int or not 1 <= top_k <= latents:
            raise ModelError(f"{file}: k is {top_k!r}; expected 1 to {latents}, its latents")
        normalize = config.get("normalize", False)
        if not isinstance(normalize, bool):
            raise ModelError(f"{file}: normalize is {normalize!r}; expected true or false")
        others = {key: config[key] for key in TRAINING if key in config}
        if "k_aux" in others and others["k_aux"] is None:  # as they write that there is none
            others["k_aux"] = 0
        for key, value in others.items():
            if type(value) is not int or value < 0:
                raise ModelError(f"{file}: {key} is {value!r}; expected a whole number, 0 or more")
        state = _state(folder, latents, inputs)
        return cls(state, top_k=top_k, normalize=normalize, others=others)


def _state(folder: Path, latents: int, inputs: int) -> dict[str, Tensor]:
    file = folder / WEIGHTS
    if not file.exists():
        refuse_pickle(folder.resolve().parent, [folder / PICKLED])
    try:
        state = safetensors.torch.load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file}: {error}") from error
    if MATRIX not in state and TIED in state:
        state[MATRIX] = state[TIED]
    expected = {MATRIX: (latents, inputs), "pre_bias": (inputs,), "latent_bias": (latents,)}
    shapes = {name: tuple(value.shape) for name, value in state.items() if name in expected}
    if shapes != expected or not all(state[name].is_floating_point() for name in expected):
        raise ModelError(f"{file}: holds {shapes}, expected numbers of {expected}")
    if not torch.equal(state.get(TIED, state[MATRIX]), state[MATRIX]):
        raise ModelError(
            f"{file}: {MATRIX} and {TIED} differ, and are one matrix in a sparse autoencoder; the "
            "file is damaged"
        )
    read = {name: state[name].float() for name in expected}
    for name, value in read.items():
        if not torch.isfinite(value).all():
            raise ModelError(f"{file}: {name} has numbers that are not finite; it is damaged")
    idle = state.get(IDLE)
    whole = idle is not None and idle.shape == (latents,) and idle.dtype is torch.int64
    return {**read, IDLE: idle if whole and idle is not None else torch.zeros(latents).long()}
