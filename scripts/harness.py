"""What the scripts share: command lines as tables, timing in turn, tiny models, figures."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
STILL = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # a GPT-2 without dropout
BM25 = {"encoder": {"type": "bm25"}, "index": {"type": "inverted"}}  # a retriever


def options(
    doc: str | None, arguments: Mapping[str, Any], words: Sequence[str] | None = None
) -> argparse.Namespace:
    """Parse a command line by a table: name -> what it is, or that and its help.

    What it is: a type; a default, whose type is taken; False for a switch; a list for one value or
    more; keywords of argparse. Of a positional, a text is its help.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, said in arguments.items():
        what, text = said if isinstance(said, tuple) else (said, None)
        if isinstance(what, dict):
            keywords = what
        elif isinstance(what, str) and not name.startswith("-"):
            keywords = {"help": what}
        elif isinstance(what, type):
            keywords = {"type": what}
        elif what is False:
            keywords = {"action": "store_true"}
        elif isinstance(what, list):
            keywords = {"nargs": "+", "type": type(what[0]), "default": what}
        else:
            keywords = {"type": Path if isinstance(what, Path) else type(what), "default": what}
        parser.add_argument(name, **({"help": text} | keywords))
    return parser.parse_args(words)


def refuse(message: str) -> NoReturn:
    """End as for a wrong command line."""
    argparse.ArgumentParser().error(message)


def seconds_of(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    call()
    return clock() - start


def interleaved(
    calls: Mapping[str, Callable[[], Any]], rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:  # fmt: skip
    """Run every call once to warm up, then all of them in turn; return their seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            gc.collect()
            seconds[name].append(seconds_of(call, clock))
    return seconds


def ratios(
    seconds: Mapping[str, Sequence[float]], peer: str, count: int
) -> dict[str, dict[str, float]]:
    """Return each call's rate a second, of ``count`` a call, and the peer's time over its own."""
    found = {}
    for name, own in seconds.items():
        each = [theirs / ours for theirs, ours in zip(seconds[peer], own, strict=True)]
        found[name] = {
            "rate": count / statistics.median(own), "ratio": statistics.median(each),
            "least": min(each), "most": max(each),
        }  # fmt: skip
    return found


def printed_by(*words: object) -> Any:
    """Return the JSON of the last line that Python prints: of a script and its words."""
    command = [sys.executable, *map(str, words)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(printed.splitlines()[-1])


THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
)  # fmt: skip


class TaskFailedError(RuntimeError):
    """A measurement's process ended without a result."""


def task_of(
    script: str, task: str, given: Mapping[str, Any], threads: int = 1, **environment: str
) -> Any:
    """Run a task of a script in a new Python process, see ``answer``, and return its result."""
    own = {**os.environ, **dict.fromkeys(THREADS, str(threads)), **environment}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "answer.json"
        words = [sys.executable, script, task, json.dumps(given), str(result)]
        status = subprocess.run(words, env=own, check=False).returncode
        if status or not result.exists():
            what = f"{task} {given.get('engine', '')}".strip()
            raise TaskFailedError(f"{what}: its process ended with status {status}")
        return json.loads(result.read_text())


def answer(*tasks: Callable[..., Any]) -> bool:
    """Run the task that ``task_of`` names on the command line; False if it names none."""
    task = {each.__name__: each for each in tasks}.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if task is not None:
        Path(sys.argv[3]).write_text(json.dumps(task(**json.loads(sys.argv[2]))))
    return task is not None


def memory(kind: str) -> float:
    """Return this process's resident memory in MB: now (VmRSS), or at most so far (VmHWM).

    ``getrusage`` would count what the parent held before it started this process.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{kind}:")[2].split()[0]) / 1024


def figures(
    searched: Any, queries: Mapping[str, str], qrels: Any, measures: Sequence[str], k: int = 100
) -> dict[str, float]:
    """Return the mean of each measure over the queries."""
    from sluice.retrieval import evaluate

    return dict(evaluate(searched.run(queries, k=k), qrels, list(measures)).mean)


def write_record(file: Path | None, record: Any) -> None:
    """Write a record as JSON; without a file, nothing."""
    if file is not None:
        file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def words_of(texts: Any, folder: Path, length: int = 256, vocabulary: int = 4_096) -> Any:
    """Return a tokenizer whose words are learnt from texts, kept in a folder."""
    import transformers

    from sluice.encoders.transformer.from_scratch import fresh_model

    if not (folder / "config.json").exists():
        fresh_model(texts, folder, layers=1, hidden=64, vocabulary=vocabulary, length=length)
    return transformers.AutoTokenizer.from_pretrained(folder)


def fresh_gpt2(
    tokenizer: Any, width: int, places: int, *, seed: int = 13, layers: int = 2, **more: Any
) -> Any:
    """Return a GPT-2 with random weights."""
    import torch
    import transformers

    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=places, n_embd=width, n_layer=layers, n_head=4,
        eos_token_id=tokenizer.sep_token_id, bos_token_id=tokenizer.cls_token_id,
        pad_token_id=tokenizer.pad_token_id, **more,
    ))  # fmt: skip


def random_decoder(work: Path, texts: Any, width: int, places: int, **more: Any) -> Path:
    """Write a random GPT-2 with a vocabulary of the texts, once."""
    home = work / f"gpt2-{width}"
    if not (home / "config.json").exists():
        words = words_of(iter(texts), work / "words", places, more.pop("vocabulary", 4_096))
        words.save_pretrained(home)
        fresh_gpt2(words, width, places, **more).save_pretrained(home)
    return home


def fresh_t5(tokenizer: Any, seed: int = 13, **more: Any) -> Any:
    """Return a T5 of four heads with random weights."""
    import torch
    import transformers

    torch.manual_seed(seed)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=len(tokenizer), num_heads=4, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.sep_token_id, decoder_start_token_id=tokenizer.pad_token_id, **more,
    ))  # fmt: skip


def trainer(steps: int, batch: int = 32, rate: float = 5.0e-5, **more: Any) -> dict[str, Any]:
    """Return the settings of a training that nothing is saved of on the way."""
    return {
        "max_steps": steps, "per_device_train_batch_size": batch, "learning_rate": rate,
        "bf16": True, "save_strategy": "no", "logging_steps": 20, **more,
    }  # fmt: skip


def same_settings(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Note the settings of a folder's results; return what is wrong if others are noted there."""
    noted = folder / "settings.json"
    folder.mkdir(parents=True, exist_ok=True)
    if noted.exists() and json.loads(noted.read_text()) != settings:
        return f"{noted}: results of other settings are there; name another --output"
    noted.write_text(json.dumps(settings))
    return None


def write_whole(file: Path, record: Any) -> None:
    """Write a result in one step: it is there, or it is not."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(record))
    unfinished.replace(file)


def write_beir(folder: Path, corpus: Any, queries: Mapping[str, str], qrels: Any) -> None:
    """Write a dataset of splits in BEIR's layout: (id, title, text), texts, split -> judgements."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    files = {
        "corpus": ({"_id": name, "title": title, "text": text} for name, title, text in corpus),
        "queries": ({"_id": name, "text": text} for name, text in queries.items()),
    }
    for name, lines in files.items():
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in lines)
    for split, own in qrels.items():
        with (folder / "qrels" / f"{split}.tsv").open("w", encoding="utf-8") as stream:
            stream.write("query-id\tcorpus-id\tscore\n")
            for query, grades in own.items():
                stream.writelines(f"{query}\t{doc}\t{grade}\n" for doc, grade in grades.items())


def descend(
    parameters: Sequence[Any], loss_of: Callable[[int], Any], steps: int, rate: float, **more: Any
) -> None:
    """Take so many steps of AdamW down the loss of each step, on a schedule of one cycle."""
    import torch

    warm_up = {name: more.pop(name) for name in ("pct_start",) if name in more}
    optimiser = torch.optim.AdamW(parameters, rate, **more)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, **warm_up)
    for step in range(steps):
        loss_of(step).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        cycle.step()
        optimiser.zero_grad()


def phrases(passages: Sequence[Any], count: int, seed: int) -> dict[tuple[str, int], str]:
    """Return key phrases of passages by id and number; some numbers may have none."""
    from sluice.training.generation.corpus_pairs import PairMaker

    maker, found = PairMaker.from_passages(passages), {}
    for passage in passages:
        for number in range(count):
            draw = random.Random(f"{seed}:{passage.id}:{number}")
            pair = maker.pair("phrases", passage, draw)
            if pair is not None:
                found[passage.id, number] = str(pair.query)
    return found


def generated_pairs(file: Path, documents: Mapping[str, str]) -> list[Any]:
    """Return examples of the rows that ``sluice teach generate`` wrote; texts by id."""
    from sluice.training import Example, Text

    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [
        Example(Text(row["query_id"], row["query"]), (Text(name, documents[name]),))
        for row in rows for name in row["pos_ids"]
    ]  # fmt: skip


def processor() -> str:
    """Return the name of the processor."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
