"""The loader of batches: what the server that forks its workers has loaded."""

import importlib
import multiprocessing
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
from transformers import TrainingArguments

from sluice.training.batches.collator import PRELOADED, ExampleList, batch_loader
from sluice.training.protocol import Example, Text


def test_every_preloaded_module_can_be_imported() -> None:
    assert len(PRELOADED) == 2
    for name in PRELOADED:
        module = importlib.import_module(name)
        assert {"BiEncoderCollator", "ExampleList"} & set(vars(module))


@pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="no fork server here"
)
def test_workers_come_from_a_server_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preloaded: list[list[str]] = []
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(
        type(context), "set_forkserver_preload", lambda self, m: preloaded.append(m)
    )
    settings = TrainingArguments(str(tmp_path), dataloader_num_workers=1, report_to=[])
    loader = batch_loader(ExampleList(()), [[0]], None, settings)
    assert loader.multiprocessing_context is context
    assert preloaded == [list(PRELOADED)]


def test_without_a_fork_server_workers_are_spawned_with_what_can_be_pickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])  # Windows
    settings = TrainingArguments(str(tmp_path), dataloader_num_workers=1, report_to=[])
    example = Example(Text("q", "a question"), (Text("d", "an answer"),), (1.0,))
    loader = batch_loader(ExampleList((example,)), [[0]], None, settings)
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    sent = ForkingPickler.dumps(loader.dataset)  # as a spawned worker receives it
    assert pickle.loads(bytes(sent))[0] == example
