"""The verbs that serve a folder over HTTP and MCP, and make keys for it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.experiment import (
    OWN_DOCUMENTS,
    is_documents,
    own_experiment,
    short_name,
)
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import (
    Allow,
    Command,
    Shown,
    allowed,
    picked,
    refuse_options,
    takes,
)

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.shards.workers.crew import ShardWorkers
    from sluice.retrieval.serving.settings import ServeSettings

log = logging.getLogger("sluice")


@takes(
    "sluice.retrieval.serving.settings:ServeSettings",
    OWN_DOCUMENTS,
    without="language",
    panels={
        "Who may ask": "keys open_to_all hosts rate",
        "Judging": "judge judgements judge_depth",
        "Limits and batches": "batch_tokens queue_tokens window_ms longest_wait inputs depth"
        " body_kb timeout",
        "Documents to index first": "output model bm25",
    },
    open_to_all=Shown(names=("--open",)),
    hosts=Shown("localhost and ADDRESS", names=("--allow-host",)),
    pipelines=Shown("all", names=("--pipeline",)),
    longest_wait=Shown(names=("--most-wait",)),
    inputs=Shown(names=("--most-inputs",)),
    depth=Shown(names=("--most-hits",)),
    rate=Shown("any number"),
    judge=Shown("nothing is judged"),
    judgements=Shown("QUERIES.judgements.jsonl; of a split FOLDER.SPLIT.judgements.jsonl"),
)
def serve(
    source: Annotated[
        str,
        "FOLDER",
        "An experiment's output, a retriever's, a pipeline's or a model's folder; or "
        "documents as for `sluice index`, which are indexed first.",
    ],
    *,
    shard_workers: Annotated[
        str | None,
        "TYPE",
        "Search each shard in a process of its own: processes or ray; with settings as "
        "in '{type: processes, replicas: 2, hedge_ms: 50}'.",
        Shown("threads of this process"),
    ] = None,
    mcp: Annotated[
        Literal["http", "stdio"] | None,
        "HOW",
        "Tools for agents: http adds /mcp, stdio speaks over the standard streams.",
    ] = None,
    body_kb: Annotated[int | None, Ge(1), "KB", "The largest request.", Shown("2048")] = None,
    output: Annotated[
        Path | None,
        "FOLDER",
        "Where the index of documents goes.",
        Shown("runs/NAME of the source"),
    ] = None,
    allow: Allow = None,
    **values: Any,
) -> None:
    """Serve searches, models and a page.

    Answers at /search, /rerank, /embed, /v1/embeddings and more; /openapi.json describes them, and
    a browser gets a page to search with. Changes of the folder are served as soon as they are
    complete. Ctrl-C finishes what was accepted.

    Examples:
      sluice serve runs/quickstart
      sluice serve notes --bm25
      sluice serve runs/quickstart --pipeline hybrid --writable
      sluice serve runs/quickstart --host 0.0.0.0 --keys keys.json --allow-host search.example.org
      sluice serve runs/quickstart --judge queries.txt
      sluice serve runs/quickstart --mcp stdio
      sluice serve runs/large --shard-workers '{type: processes, replicas: 2}'
    """
    from sluice.retrieval.serving.settings import ServeSettings

    if mcp == "stdio":
        tools, network = ("writable", "judge"), ("keys", "rate", "host", "port", "workers")
        reason = "not for --mcp stdio, whose tools only read"
        refuse_options(reason, **{name: values.get(name) for name in tools})
        refuse_options(
            "not for --mcp stdio, which has no network", allow_host=values.get("hosts"),
            open=values.get("open_to_all"), body_kb=body_kb, most_inputs=values.get("inputs"),
            **{name: values.get(name) for name in network},
        )  # fmt: skip
    if "judge" not in values:
        names = ("judgements", "judge_depth")
        refuse_options("for --judge QUERIES", **{name: values.get(name) for name in names})
    if body_kb is not None:
        values["body_bytes"] = body_kb * 1024
    if shard_workers is not None:
        values["shard_workers"] = _shard_workers(shard_workers)
    may = tuple(allowed(allow))
    settings = ServeSettings(mcp=mcp == "http", allow=may, **picked(values, ServeSettings))
    options = picked(values, own_experiment)
    folder = _indexed(source, output, options, allow, quiet=mcp == "stdio")
    if mcp == "stdio":
        from sluice.retrieval.serving.processes.start import run_mcp

        run_mcp(folder, settings)
        return
    _serve(folder, settings)


def _shard_workers(text: str) -> ShardWorkers:
    """Make what a type, or a mapping in YAML, describes; nothing is started."""
    import yaml

    from sluice.encoders.foundation.build import build
    from sluice.retrieval.retrievers.shards.workers.crew import SHARD_WORKERS

    try:
        spec = yaml.safe_load(text)
    except yaml.YAMLError:
        spec = None
    if isinstance(spec, str):
        spec = {"type": spec}
    if not isinstance(spec, dict):
        raise ConfigError(
            f"--shard-workers {text!r:.80}: expected a type, or '{{type: processes, replicas: 2}}'"
        )
    workers: ShardWorkers = build(spec, SHARD_WORKERS, where="--shard-workers", allow=())
    return workers


def _serve(folder: Path, settings: ServeSettings) -> None:
    from sluice.retrieval.serving.processes.start import run_http

    def said(address: str) -> None:
        tools = f", tools for agents at {address}/mcp" if settings.mcp else ""
        echo(f"serving {folder} at {address}{tools} (Ctrl-C ends)", err=True)

    try:
        run_http(folder, settings, said)
    except KeyboardInterrupt:  # uvicorn has finished what was accepted, and raises it again
        echo("stopped", err=True)


def _indexed(
    source: str, output: Path | None, options: dict[str, Any], allow: Allow, quiet: bool
) -> Path:
    """Return the folder to serve; documents that are not indexed yet are indexed first."""
    from sluice.retrieval.serving.content.content import kind_of

    folder = Path(source)
    try:
        kind_of(folder)
    except ConfigError:
        if not is_documents(source):
            if not folder.exists():
                raise ConfigError(f"{source}: no such folder") from None
            raise
    else:
        refuse_options(f"for documents, and {source} is built already", output=output, **options)
        return folder
    built = output or Path("runs") / short_name(source)
    if (built / "experiment.yaml").exists():
        log.info("%s: serving the existing index; sluice index %s renews it", built, source)
        refuse_options(f"for an index that is yet to be built, and {built} exists", **options)
        return built
    if quiet:
        raise ConfigError(f"{source}: documents; index them first: sluice index {source}")
    from sluice.retrieval.jobs import index

    links = {"allow": allow} if allow else {}
    index(own_experiment(source, links, output, **options))
    return built


def key(
    path: Annotated[Path, "The file of keys; created if it does not exist."],
    name: Annotated[str, "What tells the key from others, in the log too."],
    *,
    scope: Annotated[
        list[str] | None,
        "What it may do: search (and ask models), write (change documents), judge (at "
        "/judge, by the key's name), admin (metrics); may be repeated.",
        Shown("search"),
    ] = None,
) -> None:
    """Make a key for `sluice serve --keys`.

    Prints the key, which is nowhere else: the file has its hash alone. A key of the same name stops
    working. A running service reads the file again.

    Examples:
      sluice key keys.json page
      sluice key keys.json importer --scope search --scope write
      sluice key keys.json ann --scope judge
    """
    from sluice.retrieval.serving.settings import add_key

    text = add_key(path, name, scope or ["search"])
    echo(text)
    if sys.stderr.isatty():
        echo(f"{path}: the key {name} was added; it is shown this once", err=True)


COMMANDS: dict[str, Command] = {"serve": serve, "key": key}
