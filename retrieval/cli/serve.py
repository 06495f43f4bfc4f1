"""The verbs that serve a folder over HTTP and MCP, and make keys for it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.options import (
    Allow,
    Command,
    allowed,
    argument,
    check_choice,
    flag,
    option,
    refuse_options,
)
from sluice.retrieval.cli.terminal.output import echo

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.shards.workers.crew import ShardWorkers
    from sluice.retrieval.serving.settings import ServeSettings

log = logging.getLogger("sluice")

ACCESS = "Who may ask"
LIMITS = "Limits and batches"
DOCUMENTS = "Documents to index first"
JUDGING = "Judging"


def serve(
    source: Annotated[
        str,
        argument(
            "FOLDER",
            "An experiment's output, a retriever's, a pipeline's or a model's folder; or documents "
            "as for `sluice index`, which are indexed first.",
        ),
    ],
    host: Annotated[
        str, option("ADDRESS", "The address to listen at; the default is this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, option("N", "The port; 0 takes a free one.", min=0)] = 8080,
    pipeline: Annotated[
        list[str] | None,
        option(
            "NAME",
            "A pipeline or retriever to serve; may be repeated, and the last is used where a "
            "request names none.",
            default="all",
        ),
    ] = None,
    writable: Annotated[
        bool, flag("Let requests add, replace and delete documents.", "--writable")
    ] = False,
    workers: Annotated[
        int,
        option("N", "Processes that answer; indexes are in memory once.", min=1),
    ] = 1,
    shard_workers: Annotated[
        str | None,
        option(
            "TYPE",
            "Search each shard in a process of its own: processes or ray; with settings as in "
            "'{type: processes, replicas: 2, hedge_ms: 50}'.",
            default="threads of this process",
        ),
    ] = None,
    mcp: Annotated[
        str | None,
        option("HOW", "Tools for agents: http adds /mcp, stdio speaks over the standard streams."),
    ] = None,
    keys: Annotated[
        Path | None, option("FILE", "The keys of `sluice key`: requests need one.", panel=ACCESS)
    ] = None,
    open_to_all: Annotated[
        bool, flag("Answer other machines without keys.", "--open", panel=ACCESS)
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        option(
            "NAME",
            "A name by which requests may call this service; may be repeated.",
            default="localhost and ADDRESS",
            panel=ACCESS,
        ),
    ] = None,
    rate: Annotated[
        float | None,
        option("N", "Requests of a client in a second.", default="any number", panel=ACCESS),
    ] = None,
    judge: Annotated[
        str | None,
        option(
            "QUERIES",
            "Let people grade documents at /judge: a file of queries, or a split of the dataset.",
            default="nothing is judged",
            panel=JUDGING,
        ),
    ] = None,
    judgements: Annotated[
        Path | None,
        option("FILE", "The log that judgements are added to.",
               default="QUERIES.judgements.jsonl; of a split FOLDER.SPLIT.judgements.jsonl",
               panel=JUDGING),
    ] = None,
    judge_depth: Annotated[
        int | None,
        option("N", "Judge the first N documents of each pipeline.", default="10", panel=JUDGING,
               min=1),
    ] = None,
    batch_tokens: Annotated[
        int, option("N", "Tokens that a model reads at once.", panel=LIMITS, min=1)
    ] = 16_384,
    queue_tokens: Annotated[
        int,
        option(
            "N", "Tokens that are accepted and not done; more are refused.", panel=LIMITS, min=1
        ),
    ] = 262_144,
    window_ms: Annotated[
        float, option("MS", "How long a batch waits for more requests.", panel=LIMITS)
    ] = 0.0,
    most_wait: Annotated[
        float,
        option("SECONDS", "Requests that would wait longer for their turn are refused.",
               panel=LIMITS),
    ] = 0.25,
    most_inputs: Annotated[
        int, option("N", "Texts in one request.", panel=LIMITS, min=1)
    ] = 1_024,
    most_hits: Annotated[int, option("N", "The largest k.", panel=LIMITS, min=1)] = 1_000,
    body_kb: Annotated[int, option("KB", "The largest request.", panel=LIMITS, min=1)] = 2_048,
    timeout: Annotated[
        float, option("SECONDS", "The longest that a request waits and runs.", panel=LIMITS)
    ] = 60.0,
    output: Annotated[
        Path | None,
        option("FOLDER", "Where the index of documents goes.", default="runs/NAME of the source",
               panel=DOCUMENTS),
    ] = None,
    model: Annotated[
        str | None,
        option("MODEL", "The dense encoder.", default="all-MiniLM-L6-v2", panel=DOCUMENTS),
    ] = None,
    bm25: Annotated[
        bool, flag("Index with BM25 alone, without a model.", "--bm25", panel=DOCUMENTS)
    ] = False,
    allow: Allow = None,
) -> None:  # fmt: skip
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
    from sluice.retrieval.serving.settings import JUDGE_DEPTH, ServeSettings

    if mcp is not None:
        check_choice(mcp, "--mcp", ("http", "stdio"))
    if mcp == "stdio":
        refuse_options(
            "not for --mcp stdio, whose tools only read", writable=writable or None, judge=judge
        )
        refuse_options(
            "not for --mcp stdio, which has no network", keys=keys, allow_host=allow_host,
            rate=rate, open=open_to_all or None, host=None if host == "127.0.0.1" else host,
            port=None if port == 8080 else port, workers=None if workers == 1 else workers,
            body_kb=None if body_kb == 2_048 else body_kb,
            most_inputs=None if most_inputs == 1_024 else most_inputs,
        )  # fmt: skip
    if judge is None:
        refuse_options("for --judge QUERIES", judgements=judgements, judge_depth=judge_depth)
    settings = ServeSettings(
        host=host,
        port=port,
        hosts=tuple(allow_host or ()),
        keys=keys,
        open_to_all=open_to_all,
        writable=writable,
        mcp=mcp == "http",
        judge=judge,
        judgements=judgements,
        judge_depth=JUDGE_DEPTH if judge_depth is None else judge_depth,
        pipelines=tuple(pipeline or ()),
        allow=tuple(allowed(allow)),
        batch_tokens=batch_tokens,
        queue_tokens=queue_tokens,
        window_ms=window_ms,
        longest_wait=most_wait,
        inputs=most_inputs,
        depth=most_hits,
        body_bytes=body_kb * 1024,
        rate=rate,
        timeout=timeout,
        workers=workers,
        shard_workers=None if shard_workers is None else _shard_workers(shard_workers),
    )
    folder = _indexed(source, output, model, bm25, allow, quiet=mcp == "stdio")
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
    made: ShardWorkers = build(spec, SHARD_WORKERS, where="--shard-workers", allow=())
    return made


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
    source: str, output: Path | None, model: str | None, bm25: bool, allow: Allow, quiet: bool
) -> Path:
    """Return the folder to serve; documents that are not indexed yet are indexed first."""
    from sluice.retrieval.cli.terminal.own_documents import is_documents, own_experiment, short_name
    from sluice.retrieval.serving.content.opening import kind_of

    options: dict[str, Any] = {"output": output, "model": model, "bm25": bm25 or None}
    folder = Path(source)
    try:
        kind_of(folder)
    except ConfigError:
        if not is_documents(source):
            if not folder.exists():
                raise ConfigError(f"{source}: no such folder") from None
            raise
    else:
        refuse_options(f"for documents, and {source} is built already", **options)
        return folder
    built = output or Path("runs") / short_name(source)
    if (built / "experiment.yaml").exists():
        log.info("%s: serving the existing index; sluice index %s renews it", built, source)
        refuse_options(f"for an index that is yet to be built, and {built} exists", model=model,
                       bm25=bm25 or None)  # fmt: skip
        return built
    if quiet:
        raise ConfigError(f"{source}: documents; index them first: sluice index {source}")
    from sluice.retrieval.jobs import index

    links = {"allow": allow} if allow else {}
    index(
        own_experiment(
            source, links, output, language=None, model=model, lexical_only=bm25, dry_run=False
        )
    )
    return built


def key(
    path: Annotated[Path, argument("FILE", "The file of keys; created if it does not exist.")],
    name: Annotated[str, argument("NAME", "What tells the key from others, in the log too.")],
    scope: Annotated[
        list[str] | None,
        option(
            "SCOPE",
            "What it may do: search (and ask models), write (change documents), judge (at /judge, "
            "by the key's name), admin (metrics); may be repeated.",
            default="search",
        ),
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
    from sluice.retrieval.serving.keys import add_key

    text = add_key(path, name, scope or ["search"])
    echo(text)
    if sys.stderr.isatty():
        echo(f"{path}: the key {name} was added; it is shown this once", err=True)


COMMANDS: dict[str, Command] = {"serve": serve, "key": key}
