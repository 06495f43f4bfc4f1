"""A half's sum and norm in one kernel, and the states that it writes over."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.packed.norms import LayerNorm


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (1, 384), (7, 33), (50, 128)])
def test_the_sum_of_both_is_normed_in_place(rows: int, size: int) -> None:
    drawn = torch.Generator().manual_seed(rows)
    module = torch.nn.LayerNorm(size, eps=1e-12 if size > 1 else 1e-5)
    with torch.no_grad():
        module.weight.normal_(generator=drawn)
        module.bias.normal_(generator=drawn)
    states = 3 * torch.randn(rows, size, generator=drawn) + 5
    branch = torch.randn(rows, size, generator=drawn).bfloat16()
    total = states.double() + branch.double()
    apart = total - total.mean(1, keepdim=True)
    scaled = apart / ((apart**2).mean(1, keepdim=True) + module.eps).sqrt()
    expected = scaled * module.weight.double() + module.bias.double()
    ready = LayerNorm(module).add_halves(states, branch)
    np.testing.assert_allclose(states, expected.detach(), atol=2e-5)
    assert torch.equal(ready, states.bfloat16())  # to the nearest, ties to even


def test_numbers_that_are_none_stay_so() -> None:
    states, branch = torch.ones(2, 4), torch.zeros(2, 4).bfloat16()
    branch[0, 1] = float("nan")
    ready = LayerNorm(torch.nn.LayerNorm(4)).add_halves(states, branch)
    assert states[0].isnan().all()
    assert ready[0].isnan().all()
    assert torch.equal(ready[1], torch.zeros(4).bfloat16())


@pytest.mark.parametrize(
    "module", [torch.nn.LayerNorm(4, bias=False), torch.nn.LayerNorm((2, 4)),
               torch.nn.LayerNorm(4, elementwise_affine=False)],
)  # fmt: skip
def test_other_norms_keep_their_own_way(module: Any) -> None:
    assert not LayerNorm(module).adds_halves


@torch.inference_mode()
def test_states_of_earlier_layers_stay_what_they_were() -> None:
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=64, initializer_range=0.2,
    )  # fmt: skip
    model = BertModel(config).eval()
    ids, lengths = torch.arange(2, 14), [7, 5]
    whole = PackedTransformer.from_model(model, torch.bfloat16)
    assert whole is not None
    both = whole.states(ids, lengths, top=2)
    model.encoder.layer = model.encoder.layer[:-1]
    shorter = PackedTransformer.from_model(model, torch.bfloat16)
    assert shorter is not None
    last = torch.cat([whole.states(ids, lengths), shorter.states(ids, lengths)], dim=1)
    assert torch.equal(both, last)
