"""End points that search and explain."""

from __future__ import annotations

import json

from sluice.retrieval.serving.faults import Fault, invalid
from sluice.retrieval.serving.http.call import Call, Reply, unless_gone
from sluice.retrieval.serving.service import Service
from sluice.retrieval.serving.shapes.search import (
    ExplainRequest,
    SearchAnswer,
    SearchAnswers,
    SearchRequest,
)

LISTS = ("fields", "ids")  # written with commas in a query string
FLAGS = {"true": True, "false": False, "1": True, "0": False}


async def search(service: Service, call: Call) -> Reply:
    """Search with one query, or with several at once."""
    return await _search(service, call, call.read(SearchRequest))


async def search_by_address(service: Service, call: Call) -> Reply:
    """Search with one query that the address has."""
    return await _search(service, call, call.asked(SearchRequest, _values(call)))


async def explain(service: Service, call: Call) -> Reply:
    """Say what each stage did with a query and where documents moved."""
    request = call.read(ExplainRequest)
    return Reply(await unless_gone(service.explain(request), call.gone()))


async def _search(service: Service, call: Call, request: SearchRequest) -> Reply:
    answers = await unless_gone(service.search(request, call.arrived), call.gone())
    one = isinstance(request.query, str)
    headers = {"server-timing": _timing(answers[0])} if one else {}
    return Reply(answers[0] if one else SearchAnswers(results=answers), headers=headers)


def _timing(answer: SearchAnswer) -> str:
    """Return the times of the stages, as browsers show them."""
    names = [(f"s{place}", stage) for place, stage in enumerate(answer.stages)]
    return ", ".join(
        f'{short};dur={stage.milliseconds:.2f};desc="{_quotable(stage.name)}"'
        for short, stage in names
    )


def _quotable(name: str) -> str:
    ascii_only = name.encode("ascii", "replace").decode()
    return "".join(letter for letter in ascii_only if letter.isprintable() and letter not in '"\\')


def _values(call: Call) -> dict[str, object]:
    """Return the fields of a query string; ``q`` is the query, ``where`` is JSON."""
    values: dict[str, object] = dict(call.query)
    if "q" in values:
        values["query"] = values.pop("q")
    for name in LISTS:
        if name in values:
            values[name] = str(values[name]).split(",")
    if "highlight" in values:
        word = str(values["highlight"])
        if word not in FLAGS:
            raise invalid(f"highlight: {word[:60]!r}; expected true or false", "highlight")
        values["highlight"] = FLAGS[word]
    if "where" in values:
        try:
            values["where"] = json.loads(str(values["where"]))
        except (ValueError, RecursionError):
            raise Fault(
                400, "invalid_request", 'where: not JSON; expected such as {"lang": "en"}',
                param="where",
            ) from None  # fmt: skip
    return values
