"""Weights of 8 or 4 bits: the codes of large matrices, which products turn back block by block."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest

Weights: TypeAlias = Literal["float32", "int8", "int4"]
BITS: dict[str, int] = {"int8": 8, "int4": 4}
GROUP = 32  # neighbouring weights of a row that share a scale in 4 bits
BLOCK = 1 << 18  # weights that are turned back at a time, which the cache holds

log = logging.getLogger("sluice")


class Codes(nn.Module):
    """A matrix ``[rows, width]`` in codes.

    In 8 bits a weight is its code, -127 to 127, times the scale of its row. In 4 bits it is its
    code, 0 to 15, times the scale of its group, and the group's lowest; two codes are in a byte
    (``Q4_1`` of llama.cpp), and zeros fill the last group. Scales and lowest have the digits of
    bfloat16, so that coding ``weights`` again gives the same codes, scales and weights.
    """

    codes: Tensor
    scales: Tensor

    def __init__(self, matrix: Tensor, bits: int) -> None:
        super().__init__()
        self.rows, self.width = matrix.shape
        self.bits = bits
        encode = _in_eight if bits == 8 else _in_four
        blocks = torch.split(matrix.detach(), _block_rows(self.width))
        codes, scales = zip(*(encode(block.float()) for block in blocks), strict=True)
        self.register_buffer("codes", torch.cat(codes))
        self.register_buffer("scales", torch.cat(scales))

    def weights(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Return rows of the matrix, float32 ``[stop - start, width]``."""
        codes, scales = self.codes[start:stop], self.scales[start:stop].float()
        if self.bits == 8:
            return codes.float().mul_(scales[:, None])
        half = codes.shape[1]
        block = torch.empty((len(codes), 2 * half), device=codes.device)
        block[:, :half] = codes & 15
        block[:, half:] = codes >> 4
        block.view(len(codes), -1, GROUP).mul_(scales[..., :1]).add_(scales[..., 1:])
        return block[:, : self.width]

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the matrix in blocks of rows, each with its first row."""
        for start in range(0, self.rows, step := _block_rows(self.width)):
            yield start, self.weights(start, start + step)


def _block_rows(width: int) -> int:
    return max(64, BLOCK // width)


def _in_eight(block: Tensor) -> tuple[Tensor, Tensor]:
    scales = (block.abs().amax(dim=1) / 127).bfloat16()
    steps = scales.float().where(scales != 0, torch.ones(()))[:, None]
    return (block / steps).round_().clamp_(-127, 127).to(torch.int8), scales


def _in_four(block: Tensor) -> tuple[Tensor, Tensor]:
    padded = functional.pad(block, (0, -block.shape[1] % GROUP))
    groups = padded.view(len(block), -1, GROUP)
    lowest = groups.amin(dim=2, keepdim=True).bfloat16()
    scales = ((groups.amax(dim=2, keepdim=True) - lowest.float()) / 15).bfloat16()
    steps = scales.float().where(scales != 0, torch.ones(()))
    codes = ((groups - lowest.float()) / steps).round_().clamp_(0, 15).to(torch.uint8).flatten(1)
    half = codes.shape[1] // 2
    return codes[:, :half] | (codes[:, half:] << 4), torch.cat([scales, lowest], dim=2)


class QuantisedLinear(nn.Linear):
    """``x W^T + b`` of a matrix in codes; ``weight`` is what they stand for, and has no gradient.

    The input has one, of the same weights.
    """

    def __init__(self, codes: Codes, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = codes.width, codes.rows
        self.matrix = codes
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weights, float32 ``[out, in]``, made anew."""
        return self.matrix.weights()

    def forward(self, input: Tensor) -> Tensor:
        """Return ``[..., out]`` in the input's type, or autocast's where that is on."""
        device = input.device.type
        if torch.is_autocast_enabled(device):
            input = input.to(torch.get_autocast_dtype(device))
        out: Tensor = _Product.apply(input, self.matrix)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def as_linear(self) -> nn.Linear:
        """Return a layer of these weights in float32."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        layer.weight = nn.Parameter(self.weight)
        layer.bias = self.bias
        return layer


class _Product(torch.autograd.Function):
    """``x W^T``; keeps the codes for the gradient, and not the weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Codes) -> Tensor:
        ctx.matrix = matrix
        products = [functional.linear(x, block.to(x.dtype)) for _, block in matrix.blocks()]
        return products[0] if len(products) == 1 else torch.cat(products, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (above,) = gradients
        below = above.new_zeros((*above.shape[:-1], ctx.matrix.width))
        for start, block in ctx.matrix.blocks():
            below += above[..., start : start + len(block)] @ block.to(above.dtype)
        return below, None


class QuantisedEmbedding(nn.Embedding):
    """A table of words in codes of 8 bits; rows are turned back as they are looked up."""

    def __init__(self, codes: Codes, table: nn.Embedding) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = codes.rows, codes.width
        self.padding_idx = table.padding_idx
        self.matrix = codes
        # Gemma's, which multiplies what is looked up; its buffer may be rounded to 16 bits
        self.factor: float | None = getattr(table, "scalar_embed_scale", None)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The table, float32 ``[words, width]``, made anew."""
        return self.matrix.weights()

    def forward(self, input: Tensor) -> Tensor:
        """Return ``[..., width]``, float32."""
        states = self.matrix.codes[input].float() * self.matrix.scales[input].float()[..., None]
        return states if self.factor is None else states * self.factor


def check_weights_type(weights: str) -> None:
    """Raise ``ConfigError`` for a type of weights that there is not."""
    if weights not in get_args(Weights):
        raise ConfigError(
            f"weights: {weights!r}; expected {', '.join(get_args(Weights))}"
            f"{suggest(str(weights), get_args(Weights))}"
        )


def quantise(model: Any, weights: Weights) -> None:
    """Put the matrices of a transformer's blocks into codes, in place, layer by layer.

    The tables of words, and the layer that writes them, have 8 bits in both cases; norms, biases
    and heads stay in float32. Raises ``ModelError`` for a model without such layers.
    """
    before = bytes_of(model)
    words = model.get_output_embeddings()
    blocks = block_linears(model)
    if not blocks:
        raise ModelError(
            f"weights: {weights}: {type(model).__name__} has no linear layers in blocks, whose "
            "weights could have fewer bits; leave weights out"
        )
    for name in blocks:
        linear = model.get_submodule(name)
        codes = Codes(linear.weight, BITS[weights])
        _replace(model, linear, QuantisedLinear(codes, linear.bias))
        del linear  # before the next: memory may not hold two of a large model
    _quantise_words(model, model.get_input_embeddings(), words)
    scales = {id(part.scales) for part in model.modules() if isinstance(part, Codes)}
    for value in (*model.parameters(), *model.buffers()):  # read in the 16 bits of their file
        if value.dtype in (torch.bfloat16, torch.float16) and id(value) not in scales:
            value.data = value.data.float()
    log.info(
        "%s: weights of %s, %.1f MB; %.1f MB as they were read",
        type(model).__name__, weights, bytes_of(model) / 1e6, before / 1e6,
    )  # fmt: skip


def block_linears(model: Any) -> list[str]:
    """Return the names of the linear layers in what a trunk is a list of; those of codes not."""
    trunk = model.base_model
    stem = next(name for name, part in model.named_modules() if part is trunk)
    return [
        name
        for name, part in model.named_modules()
        if name.startswith(stem)
        and type(part) is nn.Linear
        and any(each.isdigit() for each in name.split("."))
    ]


def _quantise_words(model: Any, table: Any, words: Any) -> None:
    """Code the table of words, wherever it stands, and the layer that writes them: tied, once."""
    if not isinstance(table, nn.Embedding):
        return
    matrix = table.weight
    codes = Codes(matrix, 8)
    for part in list(model.modules()):
        if isinstance(part, nn.Embedding) and part.weight is matrix:
            _replace(model, part, QuantisedEmbedding(codes, part))
    if type(words) is nn.Linear:
        own = codes if words.weight is matrix else Codes(words.weight, 8)
        _replace(model, words, QuantisedLinear(own, words.bias))


def _replace(model: Any, old: nn.Module, new: nn.Module) -> None:
    """Put a module wherever the old one is; models may hold one by several names."""
    new.train(old.training)
    for part in list(model.modules()):
        for name, child in list(part.named_children()):
            if child is old:
                setattr(part, name, new)


def coded(module: nn.Module) -> Iterator[tuple[str, Codes]]:
    """Yield the name and the codes of each matrix, twice where two layers share them."""
    for name, part in module.named_modules(remove_duplicate=False):
        if isinstance(part, Codes):
            yield name, part


class PlainState(Mapping[str, Tensor]):
    """A module's state in which what codes stand for is made when it is asked for."""

    def __init__(self, state: Mapping[str, Tensor | Codes]) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Tensor:
        """Return one tensor."""
        value = self._state[name]
        return value.weights() if isinstance(value, Codes) else value

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._state)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._state)


def weights_of(module: nn.Module) -> Weights:
    """Return the type of the weights of a model's blocks."""
    bits = {codes.bits for _, codes in coded(module)}
    return "int4" if 4 in bits else "int8" if bits else "float32"


def bytes_of(module: nn.Module) -> int:
    """Return the bytes of a module's parameters and buffers, each counted once."""
    values = {id(value): value for value in (*module.parameters(), *module.buffers())}
    return sum(value.numel() * value.itemsize for value in values.values())
