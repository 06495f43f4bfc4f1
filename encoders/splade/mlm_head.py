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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ModelError

CHUNK = 16_384  # hidden states handled at a time
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
    never become active: special tokens.

    A token's own positions get the weight ``log(1 + logit) = scale * idf ** power`` on average.
    A lower ``threshold`` (a cosine) lets more related terms in; 0.4 gives two to three times the
    text's own terms.
    """
    _check(word_embeddings, hidden, token_ids, idf)
    token_ids = token_ids.long()
    counts = torch.bincount(token_ids, minlength=len(word_embeddings)).double()
    means, centre, within = _class_statistics(hidden, token_ids, counts)
    whitening = _inverse_root(within)
    rows = _unit((means - centre) @ whitening)
    seen = counts > 0
    rows[~seen] = _unit(_extrapolate(word_embeddings.double(), rows, seen)[~seen])

    # deviation 1, so that SHIFT clears all of them; the layer norm takes the scale out again
    whitening /= (hidden[:CHUNK].double() @ whitening).std(dim=0).mean().clamp(min=1e-12)
    bias = -centre @ whitening
    cosine = _own_cosine(hidden, token_ids, counts, whitening, bias, rows)
    logits = torch.expm1(scale * idf.double().clamp(min=0) ** power)
    gain = logits / (cosine - threshold).clamp(min=0.1)
    decoder = gain.unsqueeze(1) * rows / rows.shape[1] ** 0.5  # a layer norm's output has norm √h
    decoder_bias = -gain * threshold
    decoder[list(silent)] = 0.0
    decoder_bias[list(silent)] = SILENT
    return MlmHead(
        dense=whitening.T.float().contiguous(),
        dense_bias=(bias + SHIFT).float(),
        decoder=decoder.float(),
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
    for start in range(0, len(hidden), CHUNK):
        part = slice(start, start + CHUNK)
        means.index_add_(0, token_ids[part], hidden[part].double())
    centre = means.sum(dim=0) / len(hidden)
    means /= counts.clamp(min=1).unsqueeze(1)
    within = torch.zeros(width, width, dtype=torch.float64)
    for start in range(0, len(hidden), CHUNK):
        part = slice(start, start + CHUNK)
        rest = (hidden[part].double() - means[token_ids[part]]).float()
        within += rest.T @ rest
    return means, centre, within / len(hidden)


def _inverse_root(covariance: Tensor) -> Tensor:
    """Return the symmetric inverse square root, with a small ridge for flat directions."""
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp(min=0) + RIDGE * values.mean().clamp(min=1e-12)
    root: Tensor = vectors @ torch.diag(values**-0.5) @ vectors.T
    return root


def _unit(rows: Tensor) -> Tensor:
    """Centre each row and scale it to length 1: what a layer norm does, up to the factor √h."""
    return torch.nn.functional.normalize(rows - rows.mean(dim=-1, keepdim=True), dim=-1)


def _extrapolate(word_embeddings: Tensor, rows: Tensor, seen: Tensor) -> Tensor:
    """Predict decoder rows of all tokens from their word embeddings, by ridge regression."""
    inputs = _unit(word_embeddings - word_embeddings.mean(dim=0))
    known = inputs[seen]
    gram = known.T @ known
    gram += (RIDGE * len(known) / gram.shape[0]) * torch.eye(gram.shape[0], dtype=gram.dtype)
    predicted: Tensor = inputs @ torch.linalg.solve(gram, known.T @ rows[seen])
    return predicted


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
    for start in range(0, len(hidden), CHUNK):
        part = slice(start, start + CHUNK)
        states = _unit(hidden[part].double() @ whitening + bias)
        total.index_add_(0, token_ids[part], (states * rows[token_ids[part]]).sum(dim=1))
    return (total + PRIOR * total.sum() / len(hidden)) / (counts + PRIOR)
