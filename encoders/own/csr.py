"""A sparse autoencoder over dense vectors, and the encoder that it makes (CSR)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

import safetensors.torch
import scipy.sparse as sp
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.encoder import Side
from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layout import AUTOENCODER, read_layout, read_modules, read_object
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import TextOptions, takes_options
from sluice.encoders.model_files.probes import add_module, write_probes
from sluice.encoders.model_files.router import PROMPTS, write_prompts
from sluice.encoders.model_files.weights.files import PICKLED, WEIGHTS, refuse_pickle
from sluice.encoders.splade.terms import keep_top, sparse_rows
from sluice.encoders.transformer.model import Features
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder, with_modules
from sluice.encoders.transformer.tokens import TokenBatch

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


MODULE = f"sentence_transformers.sparse_encoder.models.{AUTOENCODER}"
LIMIT = "max_active_dims"  # beside the prompts: the k that stands in place of the module's


class _Reader(DenseEncoder):
    """The dense encoder below the autoencoder."""

    own_module = AUTOENCODER


class CsrEncoder(TextEncoder):
    """A dense encoder whose vectors a sparse autoencoder turns into codes of ``top_k`` latents.

    Vectors are float32 ``csr_array [n, latents]``, 0 or more, served by an inverted index; the
    similarity is the dot product, or with ``normalize`` the cosine. It reads and writes the folders
    of sentence-transformers' ``SparseEncoder`` with the module ``SparseAutoEncoder``. (Wen et al.
    2025, Beyond Matryoshka: Contrastive Sparse Representation, arXiv 2503.01776.)
    """

    kind = "csr"
    head_parameters = ("autoencoder.",)

    def __init__(
        self, dense: DenseEncoder, autoencoder: SparseAutoencoder, *, normalize: bool = False
    ) -> None:
        parts = with_modules(dense.model, autoencoder=autoencoder, projection=dense.projection)
        super().__init__(
            parts, dense.tokenizer,
            query_prompt=dense.prompts["query"], document_prompt=dense.prompts["document"],
            query_length=dense.lengths["query"], document_length=dense.lengths["document"],
            device=str(dense.device), batch_tokens=dense.batch_tokens,
        )  # fmt: skip
        self.dtype = dense.dtype
        self.model = dense.model
        self.dense = dense
        self.autoencoder = autoencoder
        self.normalize: bool = normalize

    @classmethod
    @takes_options(TextOptions)
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        top_k: Annotated[
            int | None, "The most latents of a text; left out, as the model's folder says."
        ] = None,
        normalize: Annotated[
            bool | None,
            "Scales codes to length 1, so that the score is the cosine; left out, as the "
            "model's folder says.",
        ] = None,
        **options: Unpack[TextOptions],
    ) -> CsrEncoder:
        """Load a CSR folder, ours or sentence-transformers'.

        ``top_k`` is the most latents of a text, ``normalize`` scales codes to length 1; left at
        None they are the folder's, as are the other arguments, a dense encoder's. Raises
        ``ModelError`` for a folder without a sparse autoencoder.
        """
        folder = model_folder(str(model))
        layout = read_layout(folder)
        if AUTOENCODER not in layout.modules:
            raise ModelError(
                f"{folder}: has no sparse autoencoder; take a model that was trained as CSR, or "
                "this one as it is, by type: dense"
            )
        dense = _Reader.from_pretrained(model, weights="float32", backend="torch", **options)
        place = dict(read_modules(folder))[AUTOENCODER]
        autoencoder = SparseAutoencoder.read(place, dense.dim).to(dense.device)
        latents = len(autoencoder.weight)
        if top_k is not None and not (type(top_k) is int and 1 <= top_k <= latents):
            raise ConfigError(f"top_k: {top_k!r}; expected 1 to {latents}, the model's latents")
        autoencoder.top_k = top_k or _limit(folder, latents) or autoencoder.top_k
        unit = layout.similarity == "cosine" if normalize is None else normalize
        return cls(dense, autoencoder, normalize=unit)

    @property
    def dim(self) -> int:
        """The number of latents."""
        return len(self.autoencoder.weight)

    @property
    def top_k(self) -> int:
        """The most latents of a text."""
        return self.autoencoder.top_k

    @property
    def similarity(self) -> Literal["cosine", "dot"]:
        """The similarity the codes are made for."""
        return "cosine" if self.normalize else "dot"

    def settings(self) -> Mapping[str, Any]:
        """Return what decides the vectors besides weights and tokenizer."""
        return {
            **self.dense.settings(), **super().settings(), "top_k": self.top_k,
            "scaled": self.autoencoder.normalize, "unit_codes": self.normalize,
        }  # fmt: skip

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return the codes ``[n, latents]`` of tokenised texts, float32, with gradients."""
        return self.embed_both(features, side)[0]

    def embed_both(self, features: Features, side: Side) -> tuple[Tensor, Tensor]:
        """Return the codes, and the dense vectors ``[n, inputs]`` that they are of."""
        vectors = self.dense.embed(features, side)
        empty = ~features["attention_mask"].any(dim=1, keepdim=True)
        return self._codes(vectors).masked_fill(empty, 0.0), vectors.masked_fill(empty, 0.0)

    def embed_layers(self, features: Features, side: Side, layers: Sequence[int]) -> Tensor:
        """Return the codes and the dense vectors side by side, ``[n, latents + inputs]``.

        They are layer 0; ``ConfigError`` for any other.
        """
        if tuple(layers) != (0,):
            raise ConfigError(
                f"loss: needs the vectors of layers {tuple(layers)}, and a CSR encoder has codes "
                "of its last one alone; take the loss csr, or one over scores, such as info_nce"
            )
        return torch.cat(self.embed_both(features, side), dim=1)

    def _codes(self, vectors: Tensor) -> Tensor:
        codes: Tensor = self.autoencoder(vectors)
        return nn.functional.normalize(codes, dim=-1) if self.normalize else codes

    def encode_queries(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the queries' codes, float32 ``csr_array [n, latents]``, in input order."""
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the documents' codes, float32 ``csr_array [n, latents]``, in input order."""
        return self._encode(texts, "document")

    def _encode(self, texts: Sequence[str], side: Side) -> sp.csr_array:
        def codes(batch: TokenBatch, network: PackedTransformer | None) -> Tensor:
            return self._codes(self.dense.batch_vectors(batch, network, side))

        return sparse_rows(self, texts, side, codes)

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder that sentence-transformers' ``SparseEncoder`` reads too, in one step."""
        with replaced_folder(Path(path)) as folder:
            self.dense.save_pretrained(folder)
            place = add_module(folder, AUTOENCODER, {"type": self.kind}, target=MODULE)
            self.autoencoder.write(place)
            write_prompts(folder, "SparseEncoder", self.prompts, self.similarity)
            facts = read_object(folder / PROMPTS)
            write_json(folder / PROMPTS, {**facts, LIMIT: self.top_k})
            write_probes(folder, self)


def _limit(folder: Path, latents: int) -> int | None:
    """Return the most latents of a text that a folder notes beside its prompts."""
    limit = read_object(folder / PROMPTS).get(LIMIT)
    if limit is None:
        return None
    if type(limit) is not int or not 1 <= limit <= latents:
        raise ModelError(
            f"{folder / PROMPTS}: {LIMIT} is {limit!r}; expected 1 to {latents}, its latents"
        )
    return limit
