"""Shows a gate's verdict: as text, Markdown, a page of the report, and JUnit's XML."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from sluice.retrieval.evaluation.non_inferiority import FEW
from sluice.retrieval.evaluation.table import Table, escaped_markdown
from sluice.retrieval.studies.gate.verdict import Checked, Gate
from sluice.retrieval.studies.report.compared import Cell, html_table
from sluice.retrieval.studies.report.page import escaped, file_text, script_free_page
from sluice.retrieval.studies.report.queries import cut

QUERY = 60  # characters of a query's text
NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
KINDS = {"worse": "failure", "cannot tell": "skipped"}  # of a test case


def sentences(gate: Gate) -> list[str]:
    """Return the verdict on each budget in words, and the notes."""
    return [*(_sentence(each, gate.testing.alpha) for each in gate.checked), *gate.notes]


def _sentence(each: Checked, alpha: float) -> str:
    test, sure = each.decision, f"{1 - alpha:.0%} sure"
    said = [f"{each.name}: {each.verdict}"]
    if test is None:
        said += [f"{_figure(each.baseline)} to {_figure(each.candidate)}", each.note]
    elif each.verdict == "not worse":
        said.append(f"at most {max(test.high, 0):.4f} is lost ({sure})")
    elif each.verdict == "worse":
        said.append(f"{test.loss:.4f} is lost, at least {max(test.low, 0):.4f} ({sure})")
    else:
        said.append(f"the loss is between {test.low:.4f} and {test.high:.4f} ({sure} each)")
        said += [f"only {test.changed} queries changed"] if test.changed < FEW else []
        if test.smallest is not None:
            said.append(f"a loss of {test.smallest:.4f} would be seen four times out of five")
        if test.needed is not None:
            said.append(f"one of {each.budget:.4g} needs about {test.needed:,} queries")
    return "; ".join([*filter(None, said), f"budget {_figure(each.budget)}"])


def _figure(value: float) -> str:
    """Return a number as people read it: a measure, milliseconds, or a count of bytes."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4f}"


def table_of(gate: Gate) -> Table:
    """Return a row for each budget."""
    figures = dict.fromkeys(("baseline", "candidate", "budget"), "")
    tests = {"at most": ".4f", "p within": ".3g", "p loss": ".3g", "80 % sees": ".4f"}
    table = Table(columns={**figures, **tests, "needs": ",d"})
    for each in gate.checked:
        shown = map(_figure, (each.baseline, each.candidate, each.budget))
        table.rows[each.name] = dict(zip(figures, shown, strict=True))
        if (test := each.decision) is not None:
            values = (test.high, test.p_within, test.p_corrected, test.smallest)
            table.rows[each.name] |= {**dict(zip(tests, values, strict=True)), "needs": test.needed}
    if not gate.queries:  # costs alone
        return table
    name = {"t-test": "paired t-test", "fisher": "randomisation test"}[gate.testing.test]
    table.caption = (
        f"{gate.queries:,} queries; one-sided {name} at {gate.testing.alpha:g}: not worse where p "
        f"within is below it, else worse where p loss is (corrected: {gate.testing.correction})."
    )
    return table


def lost_lines(gate: Gate) -> list[str]:
    """Return a line for each query that lost most."""
    lines = []
    for each in gate.lost:
        before, after = (" ".join(ids) or "-" for ids in each.documents)
        ranks = ["?" if rank is None else str(rank or "none") for rank in each.first_relevant]
        lines.append(
            f"{each.query}: {each.values[0]:.4f} to {each.values[1]:.4f}; first relevant rank "
            f"{' to '.join(ranks)}; {before} to {after}; "
            f"{'; '.join(filter(None, (each.stages, cut(each.text, QUERY))))}".rstrip("; ")
        )
    return lines


def as_markdown(gate: Gate) -> str:
    """Return a page for a pull request."""
    lost = ["### What lost most", "", *(f"- {line}" for line in lost_lines(gate))]
    lines = [f"{gate.verdict}: {gate.candidate} against {gate.baseline}", ""]
    lines += [f"- {line}" for line in sentences(gate)]
    page = "\n".join([*lines, "", *(lost if gate.lost else [])])
    return f"## {escaped_markdown(page)}\n\n{table_of(gate).to_markdown()}"


def as_html(gate: Gate) -> str:
    """Return a page as ``sluice report`` writes them: the verdict, the figures, what lost most."""
    parts = [f'<p class="lead">{escaped(gate.verdict)}</p>']
    parts += [f"<p>{escaped(line)}</p>" for line in sentences(gate)]
    parts += ['<div class="scroll">', table_of(gate).to_html(), "</div>"]
    if gate.lost:
        head = ["query", "text", "before", "after", "first documents before", "after", "stages"]
        rows = [
            [Cell(each.query, "mono"), Cell(cut(each.text, QUERY), "text"),
             *(f"{value:.4f}" for value in each.values),
             *(Cell(" ".join(ids), "text mono") for ids in each.documents),
             Cell(each.stages, "text")]
            for each in gate.lost
        ]  # fmt: skip
        parts += ["<h2>What lost most</h2>", html_table(head, rows)]
    title = f"{gate.candidate} against {gate.baseline}"
    return script_free_page(title, "\n".join(parts), file_text("page.css"))


def as_junit(gate: Gate) -> str:
    """Return a test case for each budget: worse is a failure, what cannot be told is skipped."""
    cases = []
    for each, said in zip(gate.checked, sentences(gate), strict=False):
        kind = KINDS.get(each.verdict)
        inside = f"<{kind} message={_quoted(said)}/>" if kind else ""
        cases.append(f'  <testcase classname="gate" name={_quoted(each.name)}>{inside}</testcase>')
    said_of = [each.verdict for each in gate.checked]
    counts = f'failures="{said_of.count("worse")}" skipped="{said_of.count("cannot tell")}"'
    return "\n".join([
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name={_quoted(gate.candidate)} tests="{len(cases)}" {counts}>', *cases,
        f"  <system-out>{escape(NO_XML.sub('?', '; '.join(gate.notes)))}</system-out>",
        "</testsuite>",
    ])  # fmt: skip


def _quoted(text: str) -> str:
    return quoteattr(NO_XML.sub("?", text))
