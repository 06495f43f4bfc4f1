"""An encoder behind HTTP: OpenAI's, Cohere's, and others of their shape."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from sluice.encoders.dense.given.function import Embed, FunctionEncoder
from sluice.encoders.dense.remote.apis import (
    APIS,
    PATHS,
    Answer,
    Api,
    address,
    check_service,
    embed_body,
    vectors_in,
)
from sluice.encoders.dense.remote.http_json import HttpJson
from sluice.encoders.dense.remote.usage import Usage
from sluice.encoders.encoder import Dense, Side
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.folder_swap import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.encoders.foundation.trust import key_of, refuse_server
from sluice.encoders.model_files.layout import SIDECAR, read_sidecar, write_sidecar
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.model_files.registry import ASKING

log = logging.getLogger("sluice")

# What decides the vectors, and is saved: never a key, nor where it is.
NOTED = (
    "url", "model", "api", "dim", "normalize", "query_prompt", "document_prompt", "max_characters",
)  # fmt: skip


class HttpEncoder(FunctionEncoder):
    """Dense vectors from a server, asked with up to ``batch_size`` texts a request.

    ``url`` is the server's base, as ``https://api.openai.com/v1``; ``api`` its shape: ``openai``,
    ``cohere`` (version 2) or ``tei`` (text-embeddings-inference, which knows no ``model``). ``dim``
    asks for so many dimensions. Prompts are put before texts (Cohere takes the side too).
    Texts beyond ``max_characters`` are cut; what the model itself cannot read of them, Cohere and
    TEI cut, others may refuse.

    ``concurrency`` requests are under way at a time; failed ones are sent again, see ``HttpJson``.
    An answer of other than one finite vector a text counts as failed. ``usage`` counts requests,
    texts and tokens; ``price`` is that of a million tokens.

    The fingerprint holds address, model and settings: the server's weights cannot be hashed. A
    saved encoder has probe texts, by which `sluice verify` sees that the server answers otherwise.
    """

    kind = "http"

    def __init__(
        self,
        url: Annotated[str, "The base of an OpenAI-compatible endpoint, such as https://host/v1."],
        model: Annotated[
            str, "The name that the server knows the model by; api tei takes none."
        ] = "",
        *,
        api: Annotated[
            Api,
            "The shape of the server's requests: openai, cohere or tei "
            "(text-embeddings-inference).",
        ] = "openai",
        dim: Annotated[
            int | None, "Asks the server for vectors of so many dimensions; left out, its own."
        ] = None,
        normalize: bool = True,
        query_prompt: str = "",
        document_prompt: str = "",
        max_characters: Annotated[
            int | None, "Texts beyond so many characters are cut before they are sent."
        ] = None,
        batch_size: Annotated[int, "Texts of a request, at most."] = 64,
        concurrency: int = 4,
        requests_per_minute: Annotated[
            float | None, "Requests begin so far apart; left out, at once."
        ] = None,
        api_key_env: str | None = None,
        api_key_file: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 4,
        backoff_s: float = 1.0,
        price: Annotated[float, "What a million tokens cost, by which the cost is counted."] = 0.0,
    ) -> None:
        given = {**locals()}
        self._options = {k: v for k, v in given.items() if k not in ("self", "__class__")}
        check_service(
            api, APIS, url, model,
            max_characters=max_characters, price=price, priced="a million tokens",
        )  # fmt: skip
        if api == "tei" and dim is not None:
            raise ConfigError("dim: api tei gives vectors of the model's own width; leave it out")
        if not isinstance(query_prompt, str) or not isinstance(document_prompt, str):
            raise ConfigError("query_prompt, document_prompt: expected texts")
        if not isinstance(normalize, bool):
            raise ConfigError(f"normalize: {normalize!r}; expected true or false")
        self.prompts: dict[str, str] = {"query": query_prompt, "document": document_prompt}
        self.url, self.model, self.api = url.rstrip("/"), model, api
        self.max_characters = max_characters
        self.concurrency = whole_number(concurrency, "concurrency", 1, 64)
        self.usage = Usage(per_million_tokens=price)
        self._asked_dim = dim
        self.endpoint = HttpJson(
            address(self.url, PATHS[api]),
            api_key_env=api_key_env,
            api_key_file=api_key_file,
            requests_per_minute=requests_per_minute,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
        )
        super().__init__(
            partial(self._ask, "document"),
            queries=partial(self._ask, "query"),
            name=f"{self.url} {model}".strip(),
            dim=dim,
            batch_size=batch_size,
            normalize=normalize,
            retries=0,  # its requests are repeated one by one
        )

    @property
    def fingerprint(self) -> str:
        """A hash of address, model and settings."""
        return fingerprint_of("sluice.http", self._noted())

    def encode_documents(self, texts: Sequence[str]) -> Dense | TokenVectors:
        """Return the documents' vectors, float32 ``[n, dim]``, in input order."""
        vectors = super().encode_documents(texts)
        log.info("%s: so far %s", self.endpoint.url, self.usage)
        return vectors

    def _noted(self) -> dict[str, Any]:
        facts = {
            "url": self.url, "model": self.model, "api": self.api, "dim": self._asked_dim,
            "normalize": self.normalize, "max_characters": self.max_characters,
            **{f"{side}_prompt": prompt for side, prompt in self.prompts.items()},
        }  # fmt: skip
        return {name: facts[name] for name in NOTED}

    def _ask(self, side: Side, texts: list[str], stop: threading.Event | None = None) -> list[Any]:
        """Return the vectors of the texts of one request."""
        sent = [(self.prompts[side] + text)[: self.max_characters] for text in texts]
        body = embed_body(self.api, self.model, sent, side, self._asked_dim)

        def read(answer: Any) -> Answer:
            return vectors_in(self.api, answer, len(texts))

        answer = self.endpoint.post(body, read, stop)
        self.usage.add(len(texts), answer.tokens)
        return list(answer.rows)

    def _each(
        self, function: Embed, batches: Sequence[list[str]]
    ) -> Iterator[Dense | TokenVectors]:
        """Yield the vectors of each batch, in order; an error ends the other requests."""
        if len(batches) < 2:
            yield from super()._each(function, batches)
            return
        stop = threading.Event()
        asked: Any = function  # one of its own
        ask = partial(asked, stop=stop)
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="sluice-http") as pool:
            waiting = [pool.submit(self._called, ask, batch) for batch in batches]
            try:
                for each in waiting:
                    yield each.result()
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes an encoder of the same settings, whose usage begins at nothing."""
        return partial(type(self), **self._options), ()

    def save_pretrained(self, path: str | Path) -> None:
        """Write address, model and settings as a model folder, without the key."""
        with replaced_folder(Path(path)) as folder:
            asking = {name: self._options[name] for name in ASKING}
            write_sidecar(folder, {"type": self.kind, **self._noted(), **asking})
            write_probes(folder, self, exact=False)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        allow: Collection[str] = (),
        asking: Mapping[str, Any] | None = None,
    ) -> HttpEncoder:
        """Open a folder that ``save_pretrained`` wrote, if ``allow`` names its server.

        ``allow=["https://host/v1=VARIABLE"]`` also says which key it is sent. ``ConfigError``
        without it: a folder that names a server reaches none. ``asking`` are the
        settings of requests (``timeout_s``, ``batch_size``, ...), in place of those saved.
        """
        folder = Path(model)
        facts = read_sidecar(folder)
        where = str(folder / SIDECAR)
        if facts.get("type") != cls.kind or not isinstance(facts.get("url"), str):
            raise ModelError(f"{where}: not of an encoder behind HTTP; expected type http and url")
        key = refuse_server(str(facts["url"]), f"{where}: url", allow)
        try:
            noted = {name: facts[name] for name in NOTED if name in facts}
            saved = {name: facts[name] for name in ASKING if name in facts}
            return cls(**noted, **(saved if asking is None else asking), **key_of(key))
        except (TypeError, AttributeError) as error:
            raise ModelError(f"{where}: not as Sluice writes it: {error}") from None

    def __repr__(self) -> str:
        return f"HttpEncoder({self.endpoint.url!r}, {self.model!r})"
