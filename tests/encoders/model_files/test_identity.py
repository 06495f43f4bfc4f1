"""Marks of tensors: equal only for the same tensor unchanged, and safe to copy."""

import copy
import pickle

import torch

from sluice.encoders.model_files.identity import versions


def test_a_mark_is_that_of_one_tensor_as_it_is() -> None:
    tensor, other = torch.ones(4), torch.ones(4)
    mark = versions([tensor])
    assert mark == versions([tensor])
    assert hash(mark) == hash(versions([tensor]))
    assert mark != versions([other])
    tensor.add_(1)
    assert mark != versions([tensor])


def test_a_copy_releases_nothing_of_the_tensor() -> None:
    # A second release of the same reference frees the memory while the tensor is in use.
    tensor = torch.ones(4)
    mark = versions([tensor])
    assert copy.deepcopy(mark)[0] is mark[0]
    assert copy.copy(mark[0]) is mark[0]
    assert copy.deepcopy(mark) == mark
    elsewhere = pickle.loads(pickle.dumps(mark))
    assert elsewhere != mark
    assert mark != elsewhere
