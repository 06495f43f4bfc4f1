"""The verb that decides whether search got worse."""

from __future__ import annotations

import contextlib
import json
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sluice.encoders.foundation.errors import ConfigError, SluiceError
from sluice.retrieval.cli.measuring.score import DEFAULT, QRELS
from sluice.retrieval.cli.terminal.printing import echo, say, show
from sluice.retrieval.cli.terminal.verbs import (
    Allow,
    Command,
    Measures,
    Shown,
    allowed,
    plural,
    refuse_options,
    split_measures,
    split_overrides,
)

if TYPE_CHECKING:
    from sluice.retrieval.studies.gate.verdict import Gate

RECORD = "record"  # in place of a baseline
STATUS = {"not worse": 0, "worse": 1, "cannot tell": 3}
UNDECIDED = {"pass": "not worse", "fail": "worse"}  # as which it counts


def gate(
    baseline: Annotated[
        str,
        "BASELINE",
        "An output folder, a run (with --qrels), or a recorded .json; or the word record.",
    ],
    candidate: Annotated[
        list[str] | None,
        "CANDIDATE",
        "A YAML file, which is run, with KEY=VALUE after it; an output folder; a run. If left out, "
        "the experiment of BASELINE is run again, in BASELINE/gated, with KEY=VALUE.",
    ] = None,
    *,
    budget: Annotated[
        list[str] | None,
        "NAME=LOSS",
        "What may be lost, absolute or in %: a measure, p50_ms, p95_ms, p99_ms, bytes, "
        "bytes_per_document or peak_memory_bytes; may be repeated.",
    ] = None,
    qrels: Annotated[str | None, QRELS] = None,
    system: Annotated[str | None, "NAME", "The system, where there are several."] = None,
    undecided: Annotated[
        Literal["pass", "fail"] | None,
        "Exit with 0 (pass) or 1 (fail) where the queries cannot tell.",
        Shown("3"),
    ] = None,
    test: Annotated[Literal["t-test", "fisher"], "t-test or fisher (random signs)."] = "t-test",
    alpha: Annotated[float, "P", "Chance of a wrong verdict."] = 0.05,
    form: Annotated[
        Literal["text", "markdown", "html", "json", "junit"],
        "text, markdown, html (a page of the report), json or junit.",
    ] = "text",
    measure: Measures = None,
    output: Annotated[Path | None, "The .json file that record writes."] = None,
    allow: Allow = None,
) -> None:
    """Decide whether search got worse.

    The exit code is 0 for not worse than the budgets allow, 1 for worse, 2 for bad input or a run
    that failed, 3 where the queries cannot tell. Not worse: a loss as large as the budget is
    rejected on every measure. Worse: a loss is shown, and not that it stays within the budget.
    Otherwise the queries are too few, and how many it would take is printed.

    `sluice gate record SOURCE --output FILE.json` writes values by query and costs to a small text
    file, to commit and to compare with. docs/how-to/gate.md has the tests and an action for GitHub.

    Examples:
      sluice gate record runs/main --output baseline.json -m nDCG@10,R@100
      sluice gate baseline.json search.yaml --budget nDCG@10=.01 --budget p95_ms=20%
      sluice gate runs/main --budget nDCG@10=.01 --format html > gate.html
      sluice gate old.trec new.trec --qrels qrels.tsv --budget nDCG@10=2% --undecided pass
    """
    from sluice.retrieval.evaluation.comparison import SignificanceTest
    from sluice.retrieval.studies.gate.opening import system_of
    from sluice.retrieval.studies.gate.record import record
    from sluice.retrieval.studies.gate.showing import as_html, as_junit, as_markdown
    from sluice.retrieval.studies.gate.verdict import gate as decided, measure_of

    names, overrides = split_overrides(candidate)
    if baseline == RECORD and not names:
        raise ConfigError("gate record: nothing to record; give a folder, a run or a YAML file")
    if len(names) > 1:
        raise ConfigError(f"gate: {plural(len(names), 'candidate')}; expected BASELINE CANDIDATE")
    taken: dict[str, Any] = {"qrels": qrels, "system": system, "overrides": overrides}
    taken["allow"] = allowed(allow)
    try:
        if baseline == RECORD:
            refuse_options("not for gate record", budget=budget, undecided=undecided)
            if output is None:
                raise ConfigError("gate record: no file to write; give --output baseline.json")
            measures = [measure_of(name) for name in split_measures(measure, DEFAULT)]
            path = record(system_of(names[0], **taken).scored(measures), output)
            echo(f"{path}: {path.stat().st_size:,} bytes")
            return
        refuse_options("for gate record", output=output, measure=measure)
        testing = SignificanceTest(test, alpha=alpha)
        result = decided(baseline, *names, budgets=budget or [], testing=testing, **taken)
    except (SluiceError, OSError, MemoryError):
        raise
    except Exception:  # Python's own exit code would mean worse
        traceback.print_exc()
        raise typer.Exit(2) from None
    with contextlib.suppress(BrokenPipeError):  # the verdict is the exit code, whoever reads
        if form == "text":
            _show(result)
        elif form == "json":
            typer.echo(json.dumps(asdict(result), indent=2, ensure_ascii=False))
        else:
            echo({"markdown": as_markdown, "html": as_html, "junit": as_junit}[form](result))
    told = result.verdict != "cannot tell" or undecided is None
    raise typer.Exit(STATUS[result.verdict if told else UNDECIDED[str(undecided)]])


def _show(gate: Gate) -> None:
    from sluice.retrieval.studies.gate.showing import lost_lines, sentences, table_of

    for line in sentences(gate):
        say(line)
    echo()
    show(table_of(gate))
    if gate.lost:
        echo("\nWhat lost most:")
    for line in lost_lines(gate):
        say(line)
    echo(f"\n{gate.verdict}")


COMMANDS: dict[str, Command] = {"gate": gate}
