"""Threads are pinned and the network is switched off before anything heavy is imported."""

import atexit
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator

os.environ.setdefault("SLUICE_TEST_FETCHED", os.environ.get("SLUICE_CACHE") or "~/.cache/sluice")
os.environ.update(
    SLUICE_CACHE=tempfile.mkdtemp(prefix="sluice-cache-"),  # never the user's own
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    NUMBA_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_DEACTIVATE_ASYNC_LOAD="1",  # tiny weights are read sooner than threads start
)

from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Call
from shared_compiling import share_compiling
from shared_rewriting import rewrite_a_share
from thorough import Tests, sampled, slow_first
from tiny_generators import save_gpt2, save_t5
from tiny_models import save_model

from sluice.encoders.backends.backend import has_bfloat16

# Nothing is timed beside other tests: what the processor has instructions for is used.
os.environ["SLUICE_ARITHMETIC"] = "bfloat16" if has_bfloat16("cpu") else "float32"
atexit.register(shutil.rmtree, os.environ["SLUICE_CACHE"], ignore_errors=True)
# No power cut here: what is flushed, and when, tests/adversary/power_loss.py looks at.
os.fsync = lambda handle: None  # type: ignore[assignment]
if not torch.cuda.is_available():
    # Seeds for absent devices are kept, each with its stack of calls as text: a tenth of the time.
    for absent in (torch.cuda, torch.xpu, torch.mtia):
        absent.manual_seed_all = lambda seed: None
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", action="store_true", help="a sample of the thorough tests")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # thousands of tests are made, and none of them is garbage
    rewrite_a_share(config, Path(__file__).parent)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def choose(choice: Callable[[Tests], list[int]]) -> None:
        places = choice([(item.nodeid, "thorough" in item.keywords) for item in items])
        config.hook.pytest_deselected(items=set(items).difference(items[n] for n in places))
        items[:] = [items[place] for place in places]

    if hasattr(config, "workerinput"):  # one of several processes, which take file after file
        choose(slow_first)
    if config.getoption("--sample"):
        choose(sampled)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    share_compiling()
    if "sentence_transformers.base" in sys.modules:  # its README takes longer than a tiny model
        from sentence_transformers.base.model import BaseModel

        BaseModel._create_model_card = lambda *_, **__: None  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL with pgvector, started when a test first needs it; skipped where none runs."""
    from postgres import Postgres

    server = Postgres()
    yield server
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def _settled() -> None:
    """Take what is there to stay out of the garbage collector, which every training ends with."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def collections() -> Path:
    """The folder of real collections; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("SLUICE_DATA", SHARED))
    if not (folder / "scifact" / "corpus.jsonl").exists():
        pytest.skip("the real collections are not here: set SLUICE_DATA to a folder that has them")
    return folder


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "bert", "Model")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tiny models by name, of tests/support/kinds.py."""
    from kinds import Models

    return Models(tmp_path_factory.mktemp("kinds"))


@pytest.fixture(scope="session")
def masked_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "masked", "ForMaskedLM")


@pytest.fixture(scope="session")
def pair_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "pairs"
    return save_model(folder, "ForSequenceClassification", num_labels=1)


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_t5(tmp_path_factory.mktemp("models") / "t5")


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gpt2(tmp_path_factory.mktemp("models") / "gpt2")


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in bfloat16 where it is asked for, also where the processor only imitates it."""
    monkeypatch.setenv("SLUICE_ARITHMETIC", "bfloat16")


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return [
        "gold in the river",
        "",
        "a sluice is a water search for gold, stone and gold",
        "dense and sparse vectors",
        "x",
        " ".join(["deep water"] * 60),
        "gold in the river",
        "Rank the DOCUMENT by score; learn to rank.",
    ]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """The command line, with what a user sees."""

    from sluice.retrieval import cli

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sluice", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    yield call
    # Not its own handler, which writes to a stream that is closed when the test is over.
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)
