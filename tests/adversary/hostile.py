"""A folder that tries everything on whoever opens it, harmlessly, and a watch over what it gets.

Every payload would touch a marker file, import ``this``, or reach a closed port of this machine.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from small_world import write_beir
from tiny_models import save_model

from sluice.retrieval.experiments.experiment import load_pipeline
from sluice.retrieval.jobs import run as run_experiment

SERVER = "http://127.0.0.1:9/v1"
SECRET = "SLUICE_TEST_SECRET"
HUB_MODEL = "somebody/hostile-model"
SYSTEM = "os:system"
# It reads pickles when asked to, and runs nothing of them.
CONVERTER = [sys.executable, "-P", "-m", "sluice.encoders.model_files.pickles.process"]
HARMLESS = ("git", "uname", "lscpu")  # programs that provenance asks
WRITES = {
    "os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.symlink": (1,),
    "os.link": (1,), "os.truncate": (0,), "os.chmod": (0,), "sqlite3.connect": (0,),
    "shutil.rmtree": (0,),
}  # fmt: skip
RUNS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")
REACHES = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind",
           "builtins.input")  # fmt: skip


class World:
    """An honest experiment in ``folder``, and beside it what must not change: ``outside``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outside = folder / "outside"
        self.outside.mkdir(parents=True)
        (self.outside / "kept.txt").write_text("mine")
        self.marker = self.outside / "pwned"
        self.data = write_beir(folder / "data", 20)
        self.bert = save_model(folder / "bert", "Model")
        self.pairs = save_model(folder / "pairs", "ForSequenceClassification", num_labels=1)
        self.honest = folder / "honest"
        self.config: dict[str, Any] = {
            "dataset": str(self.data),
            "output": str(self.honest),
            "retrievers": {
                "bm25": {"encoder": "bm25"},
                "dense": {"encoder": {"type": "dense", "model": str(self.bert)}},
            },
            "rerankers": {"cross": {"type": "cross_encoder", "model": str(self.pairs)}},
            "pipelines": {"bm25": "bm25", "both": "(bm25 | dense) % 4 >> cross(depth=2)"},
            "evaluate": {"measures": ["nDCG@10"], "latency_queries": 0},
        }
        run_experiment(self.config)
        load_pipeline(self.honest, "both").save(folder / "pipeline")

    def poisoned(self, name: str, *poisons: Callable[[World, Path], None]) -> Path:
        """Return a copy of the experiment, with the saved pipeline in it, after the poisons."""
        folder = self.folder / "hostile" / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.honest, folder)
        shutil.copytree(self.folder / "pipeline", folder / "pipeline")
        shutil.copytree(self.bert, folder / "model")
        for poison in poisons:
            poison(self, folder)
        return folder


class Watch:
    """Notes what a process does that opening a folder never does; sockets and programs fail."""

    def __init__(self, world: World) -> None:
        self.root = os.path.realpath(world.folder)
        self.outside = os.path.realpath(world.outside)
        self.hostile = os.path.realpath(world.folder / "hostile")
        self.temporary = os.path.realpath(tempfile.gettempdir())
        self.seen: list[str] = []
        self._inside = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self._inside:
            return
        self._inside = True
        try:
            fault = self._fault(event, args)
        finally:
            self._inside = False
        if fault:
            self.seen.append(fault)
            raise PermissionError(fault)

    def _fault(self, event: str, args: tuple[Any, ...]) -> str:
        if event == "open":
            writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            if args[2] & writes and not self._may_write(args[0]):
                return f"writes {args[0]}"
        elif event in WRITES and not any(isinstance(each, int) and each >= 0 for each in args[-1:]):
            for place in WRITES[event]:
                if not self._may_write(args[place]):
                    return f"{event} {args[place]}"
        elif event in RUNS:
            words = args[1] if event == "subprocess.Popen" else args[0]
            if not _is_harmless(words):
                return f"{event} {words!r}"
        elif event in REACHES:
            return f"{event} {args!r}"
        elif event == "import" and (args[0] in ("this", "antigravity") or self._is_its(args[1])):
            return f"imports {args[0]}"
        elif event == "exec" and self._is_its(getattr(args[0], "co_filename", "")):
            return f"runs {args[0].co_filename}"
        elif event == "pickle.find_class" and args[0] in ("os", "posix", "nt", "subprocess"):
            return f"unpickles {args}"
        return ""

    def _is_its(self, path: Any) -> bool:
        place = os.path.realpath(path) if path else ""
        return place.startswith(self.hostile) and Path(place).is_file()  # not "<string>"

    def _may_write(self, path: Any) -> bool:
        if isinstance(path, int) or path in (":memory:", b":memory:"):
            return True
        place = os.path.realpath(os.fsdecode(path))
        if place.startswith(self.root):
            return not place.startswith(self.outside)
        good = (
            self.temporary,
            os.path.realpath(os.environ["SLUICE_CACHE"]),
            "/dev/",
            os.path.realpath("/proc/self") + os.sep,
        )
        return place.startswith(good) or "__pycache__" in place


def _is_harmless(words: Any) -> bool:
    name = words[0] if isinstance(words, list | tuple) else words
    return words == CONVERTER or Path(os.fsdecode(name)).name in HARMLESS


def _edit(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def _update(path: Path, **values: Any) -> None:
    _edit(path, lambda value: value.update(values))


def _edit_config(folder: Path, change: Callable[[Any], None]) -> None:
    """Change the experiment's config, both in ``experiment.yaml`` and in ``results.json``."""
    path = folder / "experiment.yaml"
    value = yaml.safe_load(path.read_text())
    change(value)
    path.write_text(yaml.safe_dump(value))
    _edit(folder / "results.json", lambda results: change(results["origin"]["config"]))


def _strike(world: World) -> dict[str, str]:
    return {"type": SYSTEM, "command": f"touch {world.marker}"}


class _Pickle:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def _payload(world: World) -> bytes:
    return pickle.dumps(_Pickle(world.marker))


def _code(world: World, folder: Path) -> None:
    for name in ("evil", "modeling_evil", "tokenization_evil", "configuration_evil"):
        text = f"open({str(world.marker)!r}, 'w')\nclass Evil:\n    pass\n"
        (folder / f"{name}.py").write_text(text)


def classes_in_the_config(world: World, folder: Path) -> None:
    """Name functions as encoder, index (inside another too), reranker and measure."""

    def change(config: Any) -> None:
        config["retrievers"]["one"] = {"encoder": _strike(world)}
        config["retrievers"]["two"] = {"encoder": "bm25", "index": {"type": "this:s"}}
        inner = {"type": "funnel", "first": _strike(world)}
        config["retrievers"]["three"] = {"encoder": "bm25", "index": inner}
        config["rerankers"]["four"] = _strike(world)
        config["evaluate"]["measures"] = ["this:s@10"]
        config["pipelines"] |= {"one": "one", "four": "bm25 >> four(depth=2)"}

    _edit_config(folder, change)


def class_of_a_reranker(world: World, folder: Path) -> None:
    def change(config: Any) -> None:
        config["rerankers"]["cross"] = _strike(world)

    _edit_config(folder, change)


def measures_of_its_own(world: World, folder: Path) -> None:
    def change(config: Any) -> None:
        config["evaluate"]["measures"] = ["this:s"]

    _edit_config(folder, change)
    _edit(folder / "results.json", lambda it: it["systems"][0]["measures"].update({"this:s": 1.0}))


def classes_in_the_parts(world: World, folder: Path) -> None:
    """Name functions as the encoder of a retriever and as the type of an index."""
    for place in (folder, folder / "pipeline"):
        head = place / "retrievers" / "dense" / "retriever.json"
        _update(head, encoder_type=SYSTEM)
        for manifest in (place / "retrievers" / "bm25" / "index").rglob("manifest.json"):
            _update(manifest, type="this:s")


def model_with_code(world: World, folder: Path) -> None:
    """Name code by auto_map, for a network and a tokenizer that transformers does not know."""
    for place in (*folder.glob("**/dense/encoder"), folder / "model"):
        _code(world, place)
        names = {"AutoConfig": "configuration_evil.Evil", "AutoModel": "modeling_evil.Evil"}
        _update(place / "config.json", model_type="evil", auto_map=names)
        tokenizer = {"tokenizer_class": "Evil", "auto_map": {
            "AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"]}}  # fmt: skip
        _update(place / "tokenizer_config.json", **tokenizer)


def tokenizer_with_code(world: World, folder: Path) -> None:
    """As above, for the tokenizer alone; and the head of a known network by auto_map."""
    for place in (*folder.glob("**/dense/encoder"), folder / "model"):
        _code(world, place)
        tokenizer = {"tokenizer_class": "Evil", "auto_map": {
            "AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"]}}  # fmt: skip
        _update(place / "tokenizer_config.json", **tokenizer)
        names = {"AutoModelForCausalLM": f"{HUB_MODEL}--modeling_evil.Evil"}
        _update(place / "config.json", auto_map=names)


def modules_with_code(world: World, folder: Path) -> None:
    """Be a SentenceTransformer of modules that lie in the folder, or anywhere on the path."""
    for place in (*folder.glob("**/dense/encoder"), folder / "model"):
        _code(world, place)
        modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"},
                   {"idx": 1, "name": "1", "path": "", "type": "this.s"}]  # fmt: skip
        (place / "modules.json").write_text(json.dumps(modules))
        (place / "sluice.json").write_text('{"version": 1, "type": "sentence_transformer"}')


def pickles(world: World, folder: Path) -> None:
    """Replace arrays by pickled objects, and weights by pickles."""
    data = _payload(world)
    evil = np.empty(1, object)
    evil[0] = _Pickle(world.marker)
    for path in [*folder.rglob("*.npy"), *folder.rglob("*.npz")]:
        np.save(path.with_suffix(".npy"), evil, allow_pickle=True)
    for place in (*folder.glob("**/dense/encoder"), folder / "model"):
        (place / "model.safetensors").unlink()
        for name in ("pytorch_model.bin", "model.pkl", "training_args.bin", "vectors.pt"):
            (place / name).write_bytes(data)
    (folder / "scores.pkl").write_bytes(data)
    (folder / "ranker").mkdir()
    (folder / "ranker" / "model.pkl").write_bytes(data)


def servers(world: World, folder: Path) -> None:
    """Rerank by a server that is sent a secret of the reader's environment."""

    def change(config: Any) -> None:
        server = {"type": "http", "url": SERVER, "model": "m", "api_key_env": SECRET, "retries": 0}
        config["rerankers"]["cross"] = server

    _edit_config(folder, change)


def hubs(world: World, folder: Path) -> None:
    """Name models and a dataset that would have to be fetched."""

    def change(config: Any) -> None:
        config["rerankers"]["cross"] = {"type": "cross_encoder", "model": HUB_MODEL}
        config["dataset"] = "hf:somebody/hostile-data"

    _edit_config(folder, change)
    _update(folder / "results.json", place=None)


def files_elsewhere(world: World, folder: Path) -> None:
    """Write caches outside: by an absolute path, and by one with dots."""

    def change(config: Any) -> None:
        place = world.outside / "new" / "scores.sqlite"
        config["pipelines"]["both"] = f"bm25 % 3 >> cached(cross, file='{place}')"
        config["pipelines"]["bm25"] = f"bm25 % 3 >> cached(cross, file='{folder}/../../outside/x')"
        config["retrievers"]["dense"]["encoding"] = {"cache": str(world.outside / "vectors")}

    _edit_config(folder, change)


def links_out(world: World, folder: Path) -> None:
    """Lead the parts that change, and drafts, out of the folder."""
    store = folder / "retrievers" / "bm25" / "documents"
    shutil.move(store, world.outside / "documents")
    store.symlink_to(world.outside / "documents")
    (folder / ".change").symlink_to(world.outside)
    (folder / "reproduced").symlink_to(world.outside)
    (folder / "report.html").unlink(missing_ok=True)
    (folder / "report.html").symlink_to(world.outside / "kept.txt")


def names_with_dots(world: World, folder: Path) -> None:
    """Name parts outside by names and relative paths."""
    dots = "../../outside/kept"
    _edit(folder / "results.json", lambda it: it["systems"][0].update(name=dots))
    _update(folder / "retrievers" / "dense" / "retriever.json", encoder=dots)
    pipeline = folder / "pipeline" / "pipeline.json"
    _edit(pipeline, lambda it: it["retrievers"]["dense"].update(folder=dots))
    modules = [{"idx": 0, "name": "0", "path": "../../../outside", "type": "x.Transformer"}]
    (folder / "model" / "modules.json").write_text(json.dumps(modules))


def change_elsewhere(world: World, folder: Path) -> None:
    """Leave a half-done change whose undoing would write to a retriever outside."""
    victim = world.outside / "bm25"
    shutil.copytree(world.honest / "retrievers" / "bm25", victim, dirs_exist_ok=True)
    added = {"added": 1, "replaced": 0, "deleted": 0, "mark": ""}
    _edit(victim / "retriever.json", lambda it: it["origin"].update(changes=added))
    head = json.loads((victim / "retriever.json").read_text())
    for key in ("format", "version"):
        del head[key]
    name = os.path.relpath(victim, folder / "retrievers")
    own = {**head, "origin": {}}  # the change seems not to have reached it, and is undone
    before = {name: {**head, "encoder_type": SYSTEM}, "bm25": own}
    facts = {"verb": "add", "digest": "", "mark": "", "process": 1, "before": before}
    (folder / ".change").mkdir()
    (folder / ".change" / "journal.json").write_text(json.dumps(facts))


def adapters(world: World, folder: Path) -> None:
    """Add an adapter of a named class, one of peft's over a model elsewhere, and a kernel."""
    for place in (*folder.glob("**/dense/encoder"), folder / "model"):
        (place / "adapter").mkdir()
        settings = {"version": 1, "tuning": _strike(world)}
        (place / "adapter" / "adapter.json").write_text(json.dumps(settings))
        shutil.copy(place / "model.safetensors", place / "adapter" / "adapter.safetensors")
    base = {"base_model_name_or_path": HUB_MODEL, "peft_type": "LORA"}
    (folder / "model" / "adapter_config.json").write_text(json.dumps(base))
    (folder / "model" / "adapter_model.bin").write_bytes(_payload(world))


def kernels(world: World, folder: Path) -> None:
    for place in (*folder.glob("**/dense/encoder"), folder / "model"):
        _update(place / "config.json", attn_implementation=HUB_MODEL)


def encoder_behind_a_server(world: World, folder: Path) -> None:
    """Be an encoder whose server is sent the texts, and a secret of the reader's environment."""
    facts = {"version": 1, "type": "http", "url": SERVER, "model": "m", "api": "openai",
             "retries": 0, "api_key_env": SECRET}  # fmt: skip
    for place in (*folder.glob("**/dense/encoder"), folder / "model"):
        (place / "sluice.json").write_text(json.dumps(facts))


# What the first refusal hides in a folder with everything: one at a time, with the verbs it is for.
CONFIG = ("search", "reproduce", "report", "diagnose robust")
PARTS = ("search", "verify", "add")
MODELS = ("search", "verify")
POISONS = {
    class_of_a_reranker: CONFIG, measures_of_its_own: CONFIG, servers: CONFIG, hubs: CONFIG,
    files_elsewhere: CONFIG, classes_in_the_parts: PARTS, pickles: PARTS, links_out: PARTS,
    change_elsewhere: PARTS,
    names_with_dots: (*PARTS, "report"), model_with_code: MODELS, tokenizer_with_code: MODELS,
    modules_with_code: MODELS, adapters: MODELS, kernels: MODELS,
    encoder_behind_a_server: (*PARTS, "explain", "data describe"),
}  # fmt: skip
EVERYTHING = (
    classes_in_the_config, measures_of_its_own, servers, classes_in_the_parts, modules_with_code,
    model_with_code, adapters, pickles,
)  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def watched(world: World, jobs: Iterator[tuple[str, Callable[[], int | None]]]) -> int:
    """Do each job under a watch and print what it did; for a forked child, never to be undone."""
    watch = Watch(world)
    sys.addaudithook(watch)
    for name, job in jobs:
        watch.seen.clear()
        begun = time.monotonic()
        try:
            code = job()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except PermissionError:
            code = -1
        for fault in watch.seen:
            sys.stderr.write(f"HOSTILE {name}: {fault}\n")
        sys.stderr.write(f"DONE {name}: {code}, {time.monotonic() - begun:.2f} s\n")
    return 0
