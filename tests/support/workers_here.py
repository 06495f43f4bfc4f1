"""Workers of shards that are in this process, and count what they are sent and what they answer."""

from collections.abc import Callable

from sluice.retrieval.retrievers.shards.workers import ShardWorkers
from sluice.retrieval.retrievers.shards.workers.crew import ShardSearcher


class WorkersHere(ShardWorkers):
    """Answers at once; ``gone`` are the shards whose worker does not."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.searcher = ShardSearcher()
        self.sent: list[int] = []
        self.answered: list[int] = []
        self.gone: set[int] = set()
        self.closed = False

    def begin(self, shard: int, replica: int, request: bytes) -> Callable[[], bytes]:
        answer = self.searcher.answer(request)
        self.sent.append(len(request))
        self.answered.append(len(answer))

        def wait() -> bytes:
            if shard in self.gone:
                raise ConnectionError("its worker ended")
            return answer

        return wait

    def wait_for(self, shard: int, replica: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True
