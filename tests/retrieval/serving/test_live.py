"""A folder that changes while it is served: no lost, mixed or stale answer."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from serving import asker

from sluice.encoders.foundation.errors import SluiceError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.experiments.output import changes
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.serving.content import live
from sluice.retrieval.serving.shapes.search import SearchRequest
from sluice.retrieval.serving.work.lane import Job


@pytest.mark.thorough
def test_writes_are_served_when_they_return(own: Any) -> None:
    ask = asker(own(writable=True))
    new = {"documents": [{"_id": "z1", "title": "Zebra", "text": "zebra crossing"}]}
    answer = ask("POST", "/documents", new).json()
    assert {each["retriever"]: each["added"] for each in answer["retrievers"]} == {
        "bm25": 1, "dense": 1,
    }  # fmt: skip
    assert answer["state"] == 2
    (hit,) = ask("POST", "/search", {"query": "zebra", "pipeline": "bm25"}).json()["hits"]
    assert (hit["id"], hit["title"]) == ("z1", "Zebra")
    changed = {"documents": [{"id": "z1", "text": "giraffe"}, {"id": "z2", "text": "lion"}]}
    answer = ask("PUT", "/documents", changed).json()
    assert [(e["added"], e["replaced"]) for e in answer["retrievers"]] == [(1, 1), (1, 1)]
    assert ask("POST", "/search", {"query": "zebra", "pipeline": "bm25"}).json()["hits"] == []
    assert ask("DELETE", "/documents", {"ids": ["z2"]}).json()["state"] == 4
    assert ask("DELETE", "/documents/z1").status_code == 200
    assert ask("GET", "/documents/z1").status_code == 404
    assert ask("GET", "/info").json()["documents"] == 40


def test_a_write_that_cannot_be_changes_nothing(own: Any) -> None:
    service = own(writable=True)
    ask = asker(service)
    twice = ask("POST", "/documents", {"documents": [{"id": "new"}, {"id": "d01"}]})
    assert twice.status_code == 400
    message = twice.json()["error"]["message"]
    assert "document 'd01' is already there" in message
    assert str(service.live.folder.parent) not in message
    assert ask("DELETE", "/documents", {"ids": ["d01", "no"]}).status_code == 400
    assert ask("GET", "/info").json()["documents"] == 40
    assert ask("GET", "/ready").json()["state"] == 1


def test_an_id_is_on_one_line(own: Any) -> None:
    """Runs, judgements and logs write an id on one line."""
    ask = asker(own(writable=True))
    for method, doc_id in (("POST", "a\nb"), ("PUT", "a\r"), ("POST", "\n")):
        body = {"documents": [{"id": "fine"}, {"_id": doc_id, "text": "gold"}]}
        refused = ask(method, "/documents", body)
        assert refused.status_code == 400, doc_id
        message = refused.json()["error"]["message"]
        assert "has a line break; expected an id on one line" in message
        assert message.startswith("documents[1].")
    assert ask("GET", "/info").json()["documents"] == 40


def test_changes_that_wait_are_few(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service = own(writable=True)
    ask = asker(service)
    go = threading.Event()

    def slow(ids: Any) -> live.Written:
        assert go.wait(20)
        return live.Written([], 1)

    monkeypatch.setattr(service.live, "delete", slow)
    timer = threading.Timer(0.5, go.set)
    timer.start()
    one = ("DELETE", "/documents", {"ids": ["d01"]})
    codes = [response.status_code for response in ask(*[one] * 20)]
    assert sorted(codes) == [200] * 16 + [429] * 4
    assert ask(*one).status_code == 200


def test_a_deadline_is_kept_while_the_thread_is_busy(own: Any) -> None:
    service = own(queue_tokens=100_000)
    ask = asker(service)
    go = threading.Event()
    busy = Job("busy", ["one"], [1], lambda units: [go.wait(20)])
    running = service._lanes["models"].submit(busy)
    start = time.monotonic()
    body = {"query": "gold", "pipeline": "cascade", "deadline_ms": 50}
    refused = ask("POST", "/search", body)
    assert not running.done()
    assert time.monotonic() - start < 10
    assert refused.status_code == 504
    assert "deadline_ms: over after" in refused.json()["error"]["message"]
    more = service._lanes["models"].submit(Job("busy", ["two"], [1], busy.run))
    assert service.budget.used == 2  # the room of what was given up is free at once
    go.set()
    assert (running.result(20), more.result(20)) == ([True], [True])


def test_the_limit_of_the_service_is_not_taken_for_a_deadline(own: Any) -> None:
    """It counts once: the time before a deadline is part of it."""
    service = own(timeout=0.2)
    go = threading.Event()
    service._lanes["models"].submit(Job("busy", ["one"], [1], lambda units: [go.wait(20)]))
    body = {"query": "gold", "pipeline": "cascade", "deadline_ms": 60_000}
    refused = asker(service)("POST", "/search", body)
    go.set()
    assert refused.status_code == 504
    assert "no answer within 0.2 s" in refused.json()["error"]["message"]


def test_reading_is_the_default(ask: Any) -> None:
    refused = ask("POST", "/documents", {"documents": [{"id": "a"}]})
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "read_only")
    assert "--writable" in refused.json()["error"]["message"]


def test_models_are_not_loaded_again(own: Any) -> None:
    service = own(writable=True)
    before = service.content
    asyncio.run(service.add([Document("z1", "", "zebra")]))
    after = service.content
    assert after.number == before.number + 1
    assert after.encoders["dense"] is before.encoders["dense"]
    assert after.scorers["cross"] is before.scorers["cross"]
    assert after.encoders["bm25"] is not before.encoders["bm25"]


@pytest.mark.thorough
def test_every_answer_is_of_one_state(own: Any) -> None:
    """Searches of all pipelines while documents are replaced: text and scores fit the state."""
    service = own(writable=True)
    words = ("gold", "river", "stone")
    text_of = {1: service.documents(["d00"])[0].text}
    answers: list[Any] = []

    async def read(pipeline: str) -> None:
        while len(text_of) < 4:
            request = SearchRequest(query="gold river", k=40, pipeline=pipeline)
            answers.extend(await service.search(request))
            await asyncio.sleep(0.002)

    async def write() -> None:
        for number in range(2, 5):
            text = f"{words[number % 3]} zebra{number} gold"
            await service.update([Document("d00", "", text)])
            text_of[service.content.number] = text
            await asyncio.sleep(0.02)

    async def both() -> None:
        await asyncio.gather(write(), *map(read, ("bm25", "dense", "hybrid")))

    asyncio.run(both())
    assert sorted(text_of) == [1, 2, 3, 4]
    assert len({answer.state for answer in answers}) >= 3
    scores: dict[tuple[int, str], Any] = {}
    for answer in answers:
        hits = {hit.id: hit for hit in answer.hits}
        assert len(hits) == len(answer.hits)
        if "d00" in hits:
            assert hits["d00"].text == text_of[answer.state]
        elif answer.pipeline != "bm25":
            pytest.fail("a document was lost")
        first = scores.setdefault((answer.state, answer.pipeline), answer.hits)
        np.testing.assert_allclose(
            [hit.score for hit in answer.hits], [hit.score for hit in first], atol=2e-5
        )


def test_a_change_by_another_process_is_seen(own: Any) -> None:
    service = own(reload_every=0.05)
    service.start()
    ask = asker(service)
    assert ask("POST", "/search", {"query": "zebra", "pipeline": "bm25"}).json()["hits"] == []
    changes.add_documents(service.live.folder, [Document("z1", "", "zebra")])
    end = time.monotonic() + 10
    while service.content.number == 1:
        assert time.monotonic() < end
        time.sleep(0.02)
    (hit,) = ask("POST", "/search", {"query": "zebra", "pipeline": "bm25"}).json()["hits"]
    assert hit["id"] == "z1"


def test_a_half_done_change_is_waited_for(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service = own()
    changes.add_documents(service.live.folder, [Document("z1", "", "zebra")])
    with monkeypatch.context() as patched:
        patched.setattr(live, "unfinished", lambda folder: f"{folder}: sluice add is running")
        assert not service.live.refresh()
        assert service.content.number == 1
        fault = asker(service)("GET", "/ready").json()["fault"]
        assert fault == "world: sluice add is running"
    assert service.live.refresh()
    assert service.content.number == 2
    assert not service.live.refresh()


@pytest.mark.thorough
def test_a_change_that_was_killed_is_undone_by_who_may_write(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is killed between two retrievers: the next one does not serve half a change."""
    folder = own().live.folder
    add = Retriever.add

    def killed(self: Retriever, documents: Any) -> int:
        if self.name == "dense":
            raise KeyboardInterrupt
        return add(self, documents)

    with monkeypatch.context() as patched:
        patched.setattr(changes, "_undo", lambda *facts: None)
        patched.setattr(Retriever, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            changes.add_documents(folder, [Document("z1", "", "zebra")])
    assert changes.unfinished(folder)
    ask = asker(own(folder, writable=True))
    assert changes.unfinished(folder) is None
    assert ask("POST", "/search", {"query": "zebra", "pipeline": "bm25"}).json()["hits"] == []
    assert ask("PUT", "/documents", {"documents": [{"id": "z1", "text": "zebra"}]}).is_success
    assert ask("POST", "/search", {"query": "zebra", "pipeline": "bm25"}).json()["hits"]


def test_a_broken_folder_leaves_the_state_that_is_served(own: Any) -> None:
    service = own()
    (service.live.folder / "retrievers" / "bm25" / "retriever.json").write_text("{}")
    assert not service.live.refresh()
    ask = asker(service)
    assert ask("POST", "/search", {"query": "gold", "pipeline": "bm25"}).json()["hits"]
    ready = ask("GET", "/ready").json()
    assert ready["ready"]
    assert "retriever.json" in ready["fault"]


@pytest.mark.thorough
def test_a_change_that_is_not_served_yet_says_so(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on disk: sent again it would be refused, so it is no error; and no plain success."""
    service = own(writable=True, pipelines=("bm25",))
    ask = asker(service)
    search = ("POST", "/search", {"query": "zebra", "k": 9})
    errors = (SluiceError("no room for it"), OSError(24, "Too many open files"), KeyError("broken"))
    for number, error in enumerate(errors, 1):
        with monkeypatch.context() as patched:

            def fail(*_: Any, error: Exception = error, **__: Any) -> None:
                raise error

            patched.setattr(live, "open_content", fail)
            new = {"documents": [{"id": f"z{number}", "text": "zebra"}]}
            response = ask("POST", "/documents", new)
            answer = response.json()
            assert (response.status_code, answer["served"], answer["state"]) == (202, False, 1)
            why = str(error) if number < 3 else "opening it failed; the log has the cause"
            assert answer["note"].endswith(f"searches do not see it yet: {why}")
            assert answer["retrievers"][0]["added"] == 1
            assert ask(*search).json()["hits"] == []
            assert ask("GET", "/ready").json()["fault"] == why
            again = ask("POST", "/documents", new)
            assert "is already there" in again.json()["error"]["message"]
    counted = "sluice_write_not_served_total 3.0"
    assert counted in ask("GET", "/metrics").text
    response = ask("PUT", "/documents", {"documents": [{"id": "z4", "text": "zebra"}]})
    answer = response.json()
    assert (response.status_code, answer["served"], answer["note"]) == (200, True, None)
    found = ask(*search).json()
    assert {hit["id"] for hit in found["hits"]} == {"z1", "z2", "z3", "z4"}
    assert found["state"] == answer["state"]
    assert ask("GET", "/ready").json()["fault"] is None
    assert counted in ask("GET", "/metrics").text


@pytest.mark.thorough
def test_a_change_that_others_do_not_serve_says_so(own: Any) -> None:
    service = own(writable=True, pipelines=("bm25",))
    ask = asker(service)
    outcomes: list[Any] = [2, 1, SluiceError("the parent of the workers does not answer"), 0]

    def changed() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return int(outcome)

    service.live._peers.changed = changed
    notes = []
    for number in range(4):
        response = ask("PUT", "/documents", {"documents": [{"id": "z", "text": f"zebra {number}"}]})
        answer = response.json()
        assert response.status_code == (200 if answer["served"] else 202)
        assert answer["state"] == number + 2  # this one serves it
        notes.append((answer["note"] or "").rpartition("yet: ")[2])
    assert notes == [
        "not served yet by 2 other workers", "not served yet by 1 other worker",
        "the parent of the workers does not answer", "",
    ]  # fmt: skip
    assert "sluice_write_not_served_total 3.0" in ask("GET", "/metrics").text


def test_a_deadline_gives_what_is_done_and_says_so(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = own()
    ask = asker(service)
    whole = ask("POST", "/search", {"query": "gold river", "k": 40}).json()
    scorer = service.content.scorers["cross"]
    scored, own_score = [], scorer.score

    def slow(pairs: Any) -> Any:
        scored.append(len(pairs))
        time.sleep(0.02 * len(pairs))
        return own_score(pairs)

    monkeypatch.setattr(scorer, "score", slow)
    answer = ask("POST", "/search", {"query": "gold river", "k": 40, "deadline_ms": 250}).json()
    assert 0 < sum(scored) < 20
    assert answer["complete"] is False
    assert answer["note"].startswith(f"the deadline left {20 - sum(scored)} candidates unscored")
    assert {hit["id"] for hit in answer["hits"]} == {hit["id"] for hit in whole["hits"]}
    hybrid = ask("POST", "/search", {"query": "gold river", "k": 40, "pipeline": "hybrid"}).json()
    order = [hit["id"] for hit in hybrid["hits"]]
    tail = [hit["id"] for hit in answer["hits"]][sum(scored) :]
    assert tail == order[sum(scored) :]
    generous = ask("POST", "/search", {"query": "gold river", "k": 40, "deadline_ms": 60_000})
    assert generous.json()["complete"]
    # Its time is over while it waits: it is refused, and not run.
    held = threading.Event()
    monkeypatch.setattr(scorer, "score", lambda pairs: (held.wait(5), own_score(pairs))[1])
    threading.Timer(0.3, held.set).start()
    _, late = ask(
        ("POST", "/search", {"query": "gold"}),
        ("POST", "/search", {"query": "gold", "pipeline": "dense", "deadline_ms": 50}),
    )
    assert late.status_code == 504
    assert late.json()["error"]["param"] == "deadline_ms"


def test_closing_finishes_what_was_accepted(own: Any) -> None:
    service = own()

    async def go() -> Any:
        requests = [SearchRequest(query=f"gold {n}", pipeline="dense") for n in range(20)]
        tasks = [asyncio.ensure_future(service.search(request)) for request in requests]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(service.close)
        return await asyncio.gather(*tasks)

    assert all(len(answers[0].hits) == 10 for answers in asyncio.run(go()))
    refused = asker(service)("POST", "/search", {"query": "gold"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert asker(service)("GET", "/ready").status_code == 503


@pytest.mark.parametrize(
    ("number", "status", "remedy"),
    [(errno.ENOSPC, 507, "free some space"), (errno.EDQUOT, 507, "free some space"),
     (errno.EACCES, 500, "mend this")],
)  # fmt: skip
def test_a_full_disk_is_said_and_changes_nothing(
    own: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    status: int,
    remedy: str,
) -> None:
    ask = asker(own(writable=True))
    body = {"documents": [{"id": "z", "text": "zebra"}]}

    def full(_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused = ask("POST", "/documents", body)
    assert refused.status_code == status
    assert refused.json()["error"]["message"] == (
        f"the documents could not be written ({os.strerror(number)}): nothing was changed; "
        f"{remedy}, and send it again"
    )
    assert "Traceback" not in caplog.text
    assert ask("GET", "/ready").json()["state"] == 1
    assert ask("GET", "/documents/z").status_code == 404
    assert ask("POST", "/documents", body).status_code == 200


def test_many_names_of_metadata_are_refused(own: Any) -> None:
    ask = asker(own(writable=True))
    names = {f"n{number}": number for number in range(1_001)}
    refused = ask(
        "POST", "/documents", {"documents": [{"id": "z", "text": "a", "metadata": names}]}
    )
    assert refused.status_code == 400
    assert "metadata 'n1000': a folder has up to 1,000 names; expected fewer" in refused.text
