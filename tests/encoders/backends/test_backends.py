"""Back ends: the exported graph gives torch's numbers, and nothing leads out of the folder."""

import copy
import importlib.util
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_architectures import ARCHITECTURES, HEADS, save_architecture

from sluice.encoders.backends.backend import (
    ENGINES,
    OUTPUTS,
    Output,
    check_engine,
    open_backend,
    through,
)
from sluice.encoders.backends.export import export_onnx, input_names
from sluice.encoders.backends.graph import MODEL_FILE
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, ModelError
from sluice.encoders.model_files.registry import open_encoder

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
# Importing it to see whether it is there would let its telemetry report.
OPENVINO = importlib.util.find_spec("openvino") is not None
needs_openvino = pytest.mark.skipif(not OPENVINO, reason="openvino is not installed")
ENGINE = [pytest.param("onnx"), pytest.param("openvino", marks=needs_openvino)]
PLACES = ["../../secret", "/etc/hostname", "missing", "link", "*/_ORT_MEM_ADDR_/*"]
CASES = [(name, kind, "onnx") for name in ARCHITECTURES for kind in HEADS] + [
    pytest.param(name, kind, "openvino", marks=needs_openvino)
    for name, kind in (("Bert", "dense"), ("MPNet", "splade"), ("DistilBert", "cross_encoder"))
]
LENGTHS = [(9, 4), (5,), (1,), (2, 2, 2), (3, 1, 40, 12), (64, 1)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Path]]:
    """Return a function that exports an architecture once."""
    made: dict[tuple[str, str], Path] = {}
    home = tmp_path_factory.mktemp("exported")

    def export(architecture: str, kind: str) -> Path:
        if (architecture, kind) not in made:
            source = save_architecture(home / f"{architecture}-{kind}-source", architecture, kind)
            model = open_encoder(source) if kind == "cross_encoder" else _opened(source, kind)
            export_onnx(model, home / f"{architecture}-{kind}")
            made[architecture, kind] = home / f"{architecture}-{kind}"
        return made[architecture, kind]

    yield export
    shutil.rmtree(home)


def _opened(source: Path, kind: str) -> object:
    from sluice.encoders import DenseEncoder, SpladeEncoder

    return (DenseEncoder if kind == "dense" else SpladeEncoder).from_pretrained(source)


@pytest.fixture(scope="module")
def folder(exported: Callable[[str, str], Path]) -> Path:
    return exported("Bert", "dense")


def features(lengths: tuple[int, ...], segments: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    ids = torch.zeros((len(lengths), max(lengths)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, 60, (length,), generator=generator)
        mask[row, :length] = 1
    given = {"input_ids": ids, "attention_mask": mask}
    if segments:
        given["token_type_ids"] = torch.cat([torch.zeros_like(ids[:, :1]), mask[:, 1:]], dim=1)
    return given


@pytest.mark.thorough
@pytest.mark.parametrize(("architecture", "kind", "engine"), CASES)
def test_a_graph_gives_what_torch_gives(
    exported: Callable[[str, str], Path], architecture: str, kind: str, engine: str
) -> None:
    path = exported(architecture, kind)
    encoder = open_encoder(path)
    backend = open_backend(path, engine, OUTPUTS[kind], threads=1)  # type: ignore[arg-type]
    segments = kind == "cross_encoder" and "token_type_ids" in input_names(encoder)
    for lengths in LENGTHS:
        given = features(lengths, segments)
        with torch.inference_mode():
            found = encoder.model(**given)
        expected = found.last_hidden_state if kind == "dense" else found.logits
        states = backend(given)
        assert states.dtype is torch.float32
        assert states.shape == expected.shape
        if kind != "cross_encoder":
            real = given["attention_mask"].bool()
            states, expected = states[real], expected[real]
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINE)
@pytest.mark.parametrize("kind", list(HEADS))
def test_an_encoder_over_a_back_end(
    exported: Callable[[str, str], Path], texts: list[str], kind: str, engine: str
) -> None:
    path = exported("Bert", kind)
    encoder = open_encoder(path)
    twin = through(encoder, open_backend(path, engine, OUTPUTS[kind]))  # type: ignore[arg-type]
    if kind == "cross_encoder":
        pairs = [(query, text) for query in texts[:3] for text in texts]
        np.testing.assert_allclose(twin.score(pairs), encoder.score(pairs), atol=1e-5)
        return
    for side in ("encode_queries", "encode_documents"):
        found, expected = getattr(twin, side)(texts), getattr(encoder, side)(texts)
        if kind == "splade":
            found, expected = found.toarray(), expected.toarray()
        np.testing.assert_allclose(found, expected, atol=1e-5)


@needs_openvino
def test_bfloat16_is_near(folder: Path, texts: list[str]) -> None:
    encoder = open_encoder(folder)
    expected = encoder.encode_documents(texts)
    for dtype in ("bfloat16", "auto"):
        half = open_backend(folder, "openvino", "last_hidden_state", dtype=dtype)  # type: ignore[arg-type]
        found = through(encoder, half).encode_documents(texts)
        assert (found * expected).sum(axis=1).min() > 0.999
        assert half(features((5, 2))).dtype is torch.float32


@pytest.mark.parametrize("engine", ENGINE)
def test_threads_may_share_a_back_end(folder: Path, engine: str) -> None:
    backend = open_backend(folder, engine, "last_hidden_state")  # type: ignore[arg-type]
    given = [features((length, 3)) for length in range(4, 20)]
    expected = [backend(one) for one in given]
    found: list[torch.Tensor | None] = [None] * len(given)

    def run(start: int) -> None:
        for place in range(start, len(given), 4):
            found[place] = backend(given[place])

    workers = [threading.Thread(target=run, args=(start,)) for start in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("engine", ENGINE)
def test_a_back_end_is_copied_and_sent(folder: Path, engine: str) -> None:
    backend = open_backend(folder, engine, "last_hidden_state")  # type: ignore[arg-type]
    given = features((6, 3))
    for other in (copy.deepcopy(backend), pickle.loads(pickle.dumps(backend))):
        assert torch.equal(other(given), backend(given))


@pytest.mark.parametrize("engine", ENGINE)
def test_segments_are_zero_when_not_given(folder: Path, engine: str) -> None:
    backend = open_backend(folder, engine, "last_hidden_state")  # type: ignore[arg-type]
    given = features((6, 3))
    zeros = {**given, "token_type_ids": torch.zeros_like(given["input_ids"])}
    torch.testing.assert_close(backend(given), backend(zeros))
    ones = {**given, "token_type_ids": torch.ones_like(given["input_ids"])}
    assert not torch.allclose(backend(given), backend(ones))


def test_segments_that_a_graph_does_not_take(exported: Callable[[str, str], Path]) -> None:
    path = exported("DistilBert", "dense")
    backend = open_backend(path, "onnx", "last_hidden_state")
    zeros = {**features((4,)), "token_type_ids": torch.zeros((1, 4), dtype=torch.long)}
    torch.testing.assert_close(backend(zeros), backend(features((4,))))
    with pytest.raises(ModelError, match="takes no token_type_ids"):
        backend({**zeros, "token_type_ids": torch.ones((1, 4), dtype=torch.long)})


def test_settings_are_checked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output: Output = "last_hidden_state"
    with pytest.raises(ConfigError, match=r"backend: 'onx'; known: .*did you mean 'onnx'"):
        open_backend(folder, "onx", output)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reads no exported graph"):
        open_backend(folder, "torch", output)
    with pytest.raises(ConfigError, match="'bfloat16' is not for backend 'onnx'"):
        open_backend(folder, "onnx", output, dtype="bfloat16")
    with pytest.raises(ConfigError, match="dtype: 'half'"):
        open_backend(folder, "onnx", output, dtype="half")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="threads is 0"):
        open_backend(folder, "onnx", output, threads=0)
    with pytest.raises(ConfigError, match=r"sluice model export .* OUTPUT"):
        open_backend(tmp_path, "onnx", output)
    with pytest.raises(ConfigError, match=r"file: '../model.onnx' leads out"):
        open_backend(folder, "onnx", output, file="../model.onnx")
    open_backend(folder, "onnx", output, dtype="auto")
    for engine in ENGINES:
        check_engine(engine)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'sluice-ir\[onnx\]'"):
        open_backend(folder, "onnx", output)
    with pytest.raises(MissingPackageError, match=r"pip install 'sluice-ir\[openvino\]'"):
        open_backend(folder, "openvino", output)


def test_a_graph_of_another_model_is_refused(
    exported: Callable[[str, str], Path], folder: Path
) -> None:
    with pytest.raises(ModelError, match="outputs are last_hidden_state; expected head_states"):
        open_backend(folder, "onnx", "head_states")
    weights = open_encoder(folder).weights_hash()
    open_backend(folder, "onnx", "last_hidden_state", weights=weights)
    with pytest.raises(ModelError, match="exported from other weights"):
        open_backend(folder, "onnx", "last_hidden_state", weights="0" * 32)


@pytest.mark.parametrize("engine", ENGINE)
@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "hollow"])
def test_a_damaged_file_is_a_model_error(
    folder: Path, tmp_path: Path, engine: str, damage: str
) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "m"))
    path = copied / MODEL_FILE
    data = path.read_bytes()
    if damage == "hollow":
        import onnx

        model = onnx.load_model(str(path))
        del model.graph.node[3:6]
        data = model.SerializeToString()
    changed = {"cut": data[: len(data) // 2], "empty": b"", "noise": b"\xff" * 999, "hollow": data}
    path.write_bytes(changed[damage])
    with pytest.raises(ModelError, match=str(path)):
        open_backend(copied, engine, "last_hidden_state")(features((3,)))  # type: ignore[arg-type]


@pytest.mark.parametrize("place", PLACES)
def test_weights_outside_the_folder_are_refused(folder: Path, tmp_path: Path, place: str) -> None:
    import onnx

    copied = Path(shutil.copytree(folder, tmp_path / "m"))
    (tmp_path / "secret").write_bytes(bytes(1_000_000))
    (copied / "onnx" / "link").symlink_to(tmp_path / "secret")
    (copied / "onnx" / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    (copied / "onnx" / "*" / "_ORT_MEM_ADDR_" / "*").write_bytes(bytes(1_000_000))
    model = onnx.load_model(str(copied / MODEL_FILE))
    tensor = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    (copied / MODEL_FILE).write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="not a file of the model's folder"):
        open_backend(copied, "onnx", "last_hidden_state")


@pytest.mark.parametrize("engine", ENGINE)
def test_weights_beside_the_file_are_read(folder: Path, tmp_path: Path, engine: str) -> None:
    import onnx

    copied = Path(shutil.copytree(folder, tmp_path / "m"))
    model = onnx.load_model(str(copied / MODEL_FILE))
    onnx.save_model(
        model, str(copied / MODEL_FILE), save_as_external_data=True, location="weights.data",
        size_threshold=0,
    )  # fmt: skip
    assert (copied / "onnx" / "weights.data").stat().st_size > 10_000
    given = features((7, 2))
    expected = open_backend(folder, engine, "last_hidden_state")(given)  # type: ignore[arg-type]
    found = open_backend(copied, engine, "last_hidden_state")(given)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected)


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "m"))
    (copied / MODEL_FILE).unlink()
    (copied / MODEL_FILE).symlink_to(folder / MODEL_FILE)
    with pytest.raises(ModelError, match="a link that leads out"):
        open_backend(copied, "onnx", "last_hidden_state")


@needs_openvino
@pytest.mark.skipif(sys.platform != "linux", reason="signals have stacks of their own on Linux")
def test_ctrl_c_does_not_crash_once_another_thread_has_freed_the_model(
    exported: Callable[[str, str], Path],
) -> None:
    models = [open_backend(exported("Bert", "dense"), "openvino", "last_hidden_state")]
    gone = threading.Thread(target=models.clear)
    gone.start()
    gone.join()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.thorough
@needs_openvino
def test_openvino_is_imported_without_its_telemetry(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from sluice.encoders.backends.graph import import_openvino\n"
        "assert import_openvino().Core() is not None\n"
        "assert not [name for name in sys.modules if name.startswith('openvino_telemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"HOME": str(tmp_path)})
    assert not any(tmp_path.iterdir())
