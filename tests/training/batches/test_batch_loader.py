"""The loader of batches: what the server that forks its workers has loaded."""

import importlib
import multiprocessing
from pathlib import Path

import pytest
from transformers import TrainingArguments

from sluice.training.batches.loader import PRELOADED, ExampleList, batch_loader


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
