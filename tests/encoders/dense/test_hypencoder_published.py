"""The folder that the authors' code saves: its names and formulas, random weights stand in."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sluice.encoders import Hypencoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.q_net import q_net_scores

QUERIES = ["gold in the river", "x"]
DOCUMENTS = ["a sluice is a water search for gold", "stone and gold", "deep water"]


def theirs(folder: Path, bert: Path, hidden: int = 2, **changes: Any) -> Path:
    """Names and shapes as in hypencoder_cb/modeling/hypencoder.py."""
    import transformers

    folder.mkdir()
    network = transformers.AutoModel.from_pretrained(bert)
    dim = network.config.hidden_size
    torch.manual_seed(6)
    weights = [(dim, dim)] * hidden + [(dim, 1)]
    biases = [(dim, 1)] * hidden
    state = {}
    for name, value in network.state_dict().items():
        moved = value + 0.01 * torch.randn(value.shape) if value.is_floating_point() else value
        state[f"query_encoder.transformer.{name}"] = moved
    for n, (inputs, outputs) in enumerate(weights):
        state[f"query_encoder.hyper_base_matrices.{n}"] = torch.randn(1, outputs, inputs) / dim
        state[f"query_encoder.weight_query_embeddings.{n}"] = torch.randn(1, outputs, inputs)
    for n, (inputs, outputs) in enumerate(biases):
        state[f"query_encoder.hyper_base_vectors.{n}"] = torch.randn(outputs, inputs)
        state[f"query_encoder.bias_query_embeddings.{n}"] = torch.randn(1, outputs, inputs)
    lists = [("weight_hyper_projection", len(weights)), ("bias_hyper_projection", len(biases))]
    lists += [(f"{side}_projections", len(weights) + len(biases)) for side in ("key", "value")]
    for name, count in lists:
        for n in range(count):
            state[f"query_encoder.{name}.{n}.weight"] = torch.randn(dim, dim) / math.sqrt(dim)
            state[f"query_encoder.{name}.{n}.bias"] = torch.randn(dim) / 3
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["HypencoderDualEncoder"], "shared_encoder": True,
        "query_encoder_kwargs": {
            "model_name_or_path": str(bert), "base_encoder_output_dim": dim,
            "embedding_representation": None,
            "converter_kwargs": {
                "vector_dimensions": [*[dim] * (hidden + 1), 1], "activation_type": "relu",
                "do_residual_on_last": False,
            },
        },
        "passage_encoder_kwargs": {"model_name_or_path": str(bert), "pooling_type": "cls"},
        **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def scores(folder: Path, bert: Path, hidden: int) -> Any:
    """The authors' forward pass, written out in float64, one text at a time."""
    import transformers

    state = {n: v.double() for n, v in load_file(folder / "model.safetensors").items()}
    network = transformers.AutoModel.from_pretrained(bert).double().eval()
    own = "query_encoder.transformer."
    network.load_state_dict({n.removeprefix(own): v for n, v in state.items() if own in n})
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)

    def states(text: str) -> Any:
        with torch.no_grad():
            return network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]

    def gathered(kind: str, n: int, place: int, dim: int, read: Any) -> Any:
        q = {k.removeprefix("query_encoder."): v for k, v in state.items()}
        key, value = (
            read @ q[f"{side}_projections.{place}.weight"].T + q[f"{side}_projections.{place}.bias"]
            for side in ("key", "value")
        )
        attention = (q[f"{kind}_query_embeddings.{n}"][0] @ key.T / math.sqrt(dim)).softmax(1)
        made = torch.nn.functional.layer_norm((attention @ value).relu(), (value.shape[1],))
        name = f"{kind}_hyper_projection.{n}"
        return made @ q[f"{name}.weight"].T + q[f"{name}.bias"]

    table = np.zeros((len(QUERIES), len(DOCUMENTS)))
    for row, query in enumerate(QUERIES):
        read = states(query)
        width = read.shape[1]
        for column, document in enumerate(DOCUMENTS):
            x = states(document)[0]
            for n in range(hidden):
                base = state[f"query_encoder.hyper_base_matrices.{n}"][0]
                matrix = (gathered("weight", n, n, width, read) + base).T  # [in, out]
                shift = gathered("bias", n, hidden + 1 + n, 1, read)[0]
                shift = shift + state[f"query_encoder.hyper_base_vectors.{n}"][0]
                y = torch.nn.functional.layer_norm((x @ matrix + shift).relu(), (width,))
                x = y if n == hidden - 1 else y + x
            last = gathered("weight", hidden, hidden, 1, read)
            last = last + state[f"query_encoder.hyper_base_matrices.{hidden}"][0]
            table[row, column] = float(x @ last[0])
    return table


@pytest.mark.parametrize("hidden", [1, 3])
def test_scores_are_those_of_the_authors_code(hidden: int, bert: Path, tmp_path: Path) -> None:
    folder = theirs(tmp_path / "theirs", bert, hidden)
    encoder = Hypencoder.from_pretrained(folder)
    assert encoder.q_net_shape.hidden == hidden
    expected = scores(folder, bert, hidden)
    made = q_net_scores(encoder.encode_queries(QUERIES), encoder.encode_documents(DOCUMENTS))
    np.testing.assert_allclose(made, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
    encoder.save_pretrained(tmp_path / "ours")
    again = Hypencoder.from_pretrained(tmp_path / "ours")
    np.testing.assert_array_equal(again.encode_queries(QUERIES), encoder.encode_queries(QUERIES))


def test_what_does_not_open(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="two networks; expected shared_encoder"):
        Hypencoder.from_pretrained(theirs(tmp_path / "apart", bert, shared_encoder=False))
    folder = theirs(tmp_path / "good", bert)
    with pytest.raises(ConfigError, match=r"hidden_layers: 4, and .* was trained with 2"):
        Hypencoder.from_pretrained(folder, hidden_layers=4)
    config = json.loads((folder / "config.json").read_text())

    def refused(message: str, side: str = "query_encoder_kwargs", **values: Any) -> None:
        changed = {**config, side: {**config[side], **values}}
        (folder / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ModelError, match=message):
            Hypencoder.from_pretrained(folder)

    refused("pooling_type 'mean'", "passage_encoder_kwargs", pooling_type="mean")
    shape = config["query_encoder_kwargs"]["converter_kwargs"]
    refused("activation_type", converter_kwargs={**shape, "activation_type": "tanh"})
    refused("vector_dimensions", converter_kwargs={**shape, "vector_dimensions": [4, 3, 1]})
    refused("q-nets over 4 dim", converter_kwargs={**shape, "vector_dimensions": [4, 4, 4, 1]})
    (folder / "config.json").write_text(json.dumps(config))
    state = load_file(folder / "model.safetensors")
    del state["query_encoder.key_projections.0.weight"]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"no query_encoder.key_projections.0.weight"):
        Hypencoder.from_pretrained(folder)
