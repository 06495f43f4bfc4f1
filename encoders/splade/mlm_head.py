"""Builds a masked-language-model head in closed form, for encoders that come without one.

A random or identity head leaves every term of the vocabulary active, and SPLADE learns nothing from
it in minutes. This one behaves like BM25 over word pieces before any training: a text activates its
own tokens, weighted by inverse document frequency, and a few terms whose hidden states look alike.

It is a linear discriminant (Fisher, 1936; Rao, 1948) written into the usual parameters. The classes
are the tokens; the whitening map ``S^-1/2``, with ``S`` the covariance of hidden states within a
token's class, becomes the head's dense layer; the whitened class means become the decoder's rows.
The head's activation does not disturb it: a large constant is added before GELU, which is the
identity there, and the layer norm takes the constant out again. So a logit is

    logit_j = gain_j * (cos(state, mean_j) - threshold)

and the gain is such that the token's own positions reach, on average, the weight asked for.
Every part can be trained further, and the saved folder is an ordinary masked language model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ModelError

CHUNK = 16_384  # hidden states whose products are summed at a time
BLOCK = 4_096  # rows in float64 at a time
SHIFT = 6.0  # GELU(x) = x to four digits for x > 3, and states are scaled to deviation 1
RIDGE = 0.01  # of the mean variance, added to covariances before they are inverted
PRIOR = 5.0  # positions of evidence for the mean cosine that every token starts with
SILENT = -10.0  # the bias of terms that must never be active

# Where a model keeps dense layer, layer norm and decoder of its masked-language-model head.
_PLACES = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),  # BERT
    ("vocab_transform", "vocab_layer_norm"),  # DistilBERT
    ("lm_head.dense", "lm_head.layer_norm"),  # RoBERTa, XLM-R, MPNet
)


@dataclass(frozen=True, slots=True)
class MlmHead:
    """The parameters of a head ``decoder(norm(gelu(dense(h))))``, float32.

    ``dense`` is ``[h, h]`` with bias ``[h]``, ``decoder`` is ``[vocab, h]`` with bias ``[vocab]``;
    the layer norm has weight 1 and bias 0.
    """

    dense: Tensor
    dense_bias: Tensor
    decoder: Tensor
    decoder_bias: Tensor


def build_mlm_head(
    word_embeddings: Tensor,
    hidden: Tensor,
    token_ids: Tensor,
    idf: Tensor,
    *,
    silent: Sequence[int] = (),
    threshold: float = 0.4,
    scale: float = 0.3,
    power: float = 0.75,
) -> MlmHead:
    """Build the head from the hidden states of a sample of texts, in seconds.

    ``hidden [n, h]`` are last hidden states (any float type) at positions whose tokens are
    ``token_ids [n]``, without special tokens; some 100,000 positions of the corpus to be searched
    are plenty. ``word_embeddings [vocab, e]`` place the tokens that the sample lacks.
    ``idf [vocab]`` is the inverse document frequency, not negative. ``silent`` are term ids that
    never become active: special tokens. Beside the arguments it takes the memory of one matrix
    ``[vocab, h]`` in float64, and of the result.

    A token's own positions get the weight ``log(1 + logit) = scale * idf ** power`` on average.
    A lower ``threshold`` (a cosine) lets more related terms in; 0.4 gives two to three times the
    text's own terms.
    """
    _check(word_embeddings, hidden, token_ids, idf)
    token_ids = token_ids.long()
    counts = torch.bincount(token_ids, minlength=len(word_embeddings)).double()
    rows, centre, within = _class_statistics(hidden, token_ids, counts)
    whitening = _inverse_root(within)
    for part in _blocks(0, len(rows)):
        rows[part] = _unit((rows[part] - centre) @ whitening)
    _extrapolate(word_embeddings, rows, counts > 0)

    # deviation 1, so that SHIFT clears all of them; the layer norm takes the scale out again
    whitening /= _mean_deviation(hidden[:CHUNK], whitening).clamp(min=1e-12)
    bias = -centre @ whitening
    cosine = _own_cosine(hidden, token_ids, counts, whitening, bias, rows)
    logits = torch.expm1(scale * idf.double().clamp(min=0) ** power)
    gain = logits / (cosine - threshold).clamp(min=0.1)
    decoder = torch.empty(rows.shape)
    for part in _blocks(0, len(rows)):
        # a layer norm's output has norm √h
        decoder[part] = gain[part].unsqueeze(1) * rows[part] / rows.shape[1] ** 0.5
    decoder_bias = -gain * threshold
    decoder[list(silent)] = 0.0
    decoder_bias[list(silent)] = SILENT
    return MlmHead(
        dense=whitening.T.float().contiguous(),
        dense_bias=(bias + SHIFT).float(),
        decoder=decoder,
        decoder_bias=decoder_bias.float(),
    )


def install_mlm_head(model: Any, head: MlmHead) -> None:
    """Write the head into a masked language model whose decoder is not tied to its embeddings.

    Load the model with ``tie_word_embeddings=False`` in its configuration.
    """
    modules = dict(model.named_modules())
    for dense, norm in _PLACES:
        if dense in modules and norm in modules:
            break
    else:
        raise ModelError(
            f"{type(model).__name__}: the layout of its masked-language-model head is unknown; "
            "known: BERT, DistilBERT, RoBERTa, XLM-RoBERTa, MPNet"
        )
    decoder = model.get_output_embeddings()
    if decoder.weight is model.get_input_embeddings().weight:
        raise ModelError(
            f"{type(model).__name__}: its decoder is tied to its word embeddings; "
            "load it with tie_word_embeddings=False"
        )
    with torch.no_grad():
        modules[dense].weight.copy_(head.dense)
        modules[dense].bias.copy_(head.dense_bias)
        modules[norm].weight.fill_(1.0)
        modules[norm].bias.zero_()
        decoder.weight.copy_(head.decoder)
        decoder.bias.copy_(head.decoder_bias)
        for name, parameter in model.named_parameters():
            # older versions of transformers take the decoder's bias from this copy beside it
            if name in ("cls.predictions.bias", "lm_head.bias"):
                parameter.copy_(head.decoder_bias)


def _check(word_embeddings: Tensor, hidden: Tensor, token_ids: Tensor, idf: Tensor) -> None:
    if hidden.ndim != 2 or len(hidden) != len(token_ids) or len(idf) != len(word_embeddings):
        raise ModelError(
            f"build_mlm_head: hidden {tuple(hidden.shape)}, token_ids {tuple(token_ids.shape)}, "
            f"word_embeddings {tuple(word_embeddings.shape)}, idf {tuple(idf.shape)}; expected "
            "[n, h], [n], [vocab, e], [vocab]"
        )
    if len(hidden) < 2 * hidden.shape[1]:
        raise ModelError(
            f"build_mlm_head: {len(hidden)} token positions for {hidden.shape[1]} dimensions; "
            f"give more texts: at least {2 * hidden.shape[1]} positions"
        )


def _class_statistics(
    hidden: Tensor, token_ids: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return class means ``[vocab, h]``, the overall mean ``[h]``, the covariance within classes.

    All in float64; zeros for classes without a position.
    """
    width = hidden.shape[1]
    means = torch.zeros(len(counts), width, dtype=torch.float64)
    for part in _blocks(0, len(hidden)):
        means.index_add_(0, token_ids[part], hidden[part].double())
    centre = means.sum(dim=0) / len(hidden)
    means /= counts.clamp(min=1).unsqueeze(1)
    within = torch.zeros(width, width, dtype=torch.float64)
    rest = torch.empty(min(CHUNK, len(hidden)), width)
    for start in range(0, len(hidden), CHUNK):
        stop = min(start + CHUNK, len(hidden))
        for part in _blocks(start, stop):
            inside = rest[part.start - start : part.stop - start]
            inside.copy_(hidden[part].double() - means[token_ids[part]])
        within += rest[: stop - start].T @ rest[: stop - start]
    return means, centre, within / len(hidden)


def _blocks(start: int, stop: int) -> Iterator[slice]:
    """Yield the rows from ``start`` to ``stop`` in blocks."""
    for first in range(start, stop, BLOCK):
        yield slice(first, min(first + BLOCK, stop))


def _inverse_root(covariance: Tensor) -> Tensor:
    """Return the symmetric inverse square root, with a small ridge for flat directions."""
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp(min=0) + RIDGE * values.mean().clamp(min=1e-12)
    root: Tensor = vectors @ torch.diag(values**-0.5) @ vectors.T
    return root


def _unit(rows: Tensor) -> Tensor:
    """Centre each row and scale it to length 1: what a layer norm does, up to the factor √h."""
    return torch.nn.functional.normalize(rows - rows.mean(dim=-1, keepdim=True), dim=-1)


def _extrapolate(word_embeddings: Tensor, rows: Tensor, seen: Tensor) -> None:
    """Predict the rows of tokens that were not seen from word embeddings, by ridge regression."""
    centre = word_embeddings.mean(dim=0, dtype=torch.float64)

    def blocks(chosen: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        places = chosen.nonzero().squeeze(1)
        for part in _blocks(0, len(places)):
            yield places[part], _unit(word_embeddings[places[part]].double() - centre)

    width = word_embeddings.shape[1]
    gram = torch.zeros(width, width, dtype=torch.float64)
    products = torch.zeros(width, rows.shape[1], dtype=torch.float64)
    for places, inputs in blocks(seen):
        gram += inputs.T @ inputs
        products += inputs.T @ rows[places]
    gram += (RIDGE * int(seen.sum()) / width) * torch.eye(width, dtype=torch.float64)
    weights = torch.linalg.solve(gram, products)
    for places, inputs in blocks(~seen):
        rows[places] = _unit(inputs @ weights)


def _mean_deviation(hidden: Tensor, whitening: Tensor) -> Tensor:
    """Return the mean over dimensions of the standard deviation of whitened states."""
    whitened = torch.empty((len(hidden), whitening.shape[1]), dtype=torch.float64)
    for part in _blocks(0, len(hidden)):
        whitened[part] = hidden[part].double() @ whitening
    return whitened.std(dim=0).mean()


def _own_cosine(
    hidden: Tensor,
    token_ids: Tensor,
    counts: Tensor,
    whitening: Tensor,
    bias: Tensor,
    rows: Tensor,
) -> Tensor:
    """Return each token's mean cosine at its own positions ``[vocab]``, drawn to the overall mean.

    Rare tokens look better than they are: their means come from the same few positions.
    """
    total = torch.zeros_like(counts)
    for part in _blocks(0, len(hidden)):
        states = _unit(hidden[part].double() @ whitening + bias)
        total.index_add_(0, token_ids[part], (states * rows[token_ids[part]]).sum(dim=1))
    return (total + PRIOR * total.sum() / len(hidden)) / (counts + PRIOR)
