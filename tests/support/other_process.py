"""An executor whose tasks are carried out in this process, as another one would be told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.encoders.foundation.progress import Advance
from sluice.retrieval.execution import Executor
from sluice.retrieval.execution.executor import Crew, Outcome, Task, carry_out


class OtherProcess(Executor, Crew):
    """Two tasks at a time, the last one first; ``kinds`` are those that were carried out."""

    type_name, slots = "other", 2

    def __init__(self) -> None:
        self.busy, self.kinds = list[Task](), list[str]()

    @contextmanager
    def crew(self) -> Iterator[Crew]:
        yield self

    def submit(self, task: Task) -> None:
        self.busy.append(task)
        assert len(self.busy) <= self.slots

    def next(self, advance: Advance) -> Outcome:
        task = self.busy.pop()
        self.kinds.append(task.kind)
        sent = json.loads(json.dumps({"kind": task.kind, "args": dict(task.args)}))
        return Outcome(task, carry_out(**sent))
