"""The base of rankers that see a pair as the similarities of its tokens, and their head's file."""

from __future__ import annotations

import inspect
import logging
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from sluice.encoders.encoder import EncoderBase
from sluice.encoders.foundation.build import check_arguments
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.progress import progress
from sluice.encoders.model_files.identity import state_hash, versions
from sluice.encoders.model_files.layout import SIDECAR, read_sidecar, write_sidecar
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import Dtype
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.model_files.registry import kind_of
from sluice.encoders.own.matching.sources import (
    OneText,
    Pairs,
    Texts,
    TokenSource,
    Vectors,
    quietly,
    source_in,
    stacked,
)
from sluice.encoders.rerankers.pairs import check_pairs
from sluice.encoders.transformer.model import Features

WEIGHTS = "head.safetensors"


def save_head(head: nn.Module, folder: Path) -> None:
    """Write a head's weights into a ranker's folder."""
    from safetensors.torch import save_file

    weights = {name: value.detach().cpu() for name, value in head.state_dict().items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def fill_head(head: nn.Module, folder: Path) -> None:
    """Fill a head; ``ModelError`` where its file is missing, damaged, or of another head."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / WEIGHTS
    if not file.exists():
        raise ModelError(f"{file}: missing; it holds the ranker's head: train the model again")
    try:
        head.load_state_dict(load_file(file))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise ModelError(f"{file}: does not fit the settings beside it: {error}") from error
    for name, values in head.state_dict().items():
        if not torch.isfinite(values).all():
            raise ModelError(
                f"{file}: {name} has values that are not finite, so every score would be NaN; take "
                "the folder from its source again, or train the model again"
            )


BYTES = 256 << 20  # of document token vectors held together, about
CELLS = 1 << 18  # similarities of tokens that a head sees at once
PROGRESS_FROM = 2_000  # pairs; shorter calls stay silent
CHARACTERS = 3  # of a token, in the estimate of these
INNER = "encoder"  # the folder of the encoder in that of a ranker
SEED = 13

log = logging.getLogger("sluice")


class Head(nn.Module, ABC):
    """Scores pairs of texts by their tokens' vectors.

    It is made of ``dim``, the width of a vector, and settings, whole numbers by keyword, which are
    the ranker's own keys in YAML. A text's padding must change nothing, and a text may be empty.
    """

    differentiable: ClassVar[bool] = True  # whether gradients reach the vectors

    @abstractmethod
    def forward(self, pairs: Pairs) -> Tensor:
        """Return one score for each pair, float32 ``[n]``, higher is better."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How the encoder of a ranker's token vectors is opened: keys that all rankers have.

    ``vectors`` of a dense encoder are the ``states`` of its last layer, or the ``table`` of its
    input embeddings, for which no network runs. With ``train_vectors`` the table or the network is
    trained too, not the head alone.
    """

    vectors: Vectors | None = None
    train_vectors: bool = False
    query_length: int | None = None
    document_length: int | None = None
    device: str = "auto"
    dtype: Dtype | None = None
    batch_tokens: int | None = None
    seed: int | None = None

    def options(self) -> dict[str, Any]:
        """Return the options of the encoder's own factory."""
        names = ("query_length", "document_length", "device", "dtype", "batch_tokens")
        return {name: getattr(self, name) for name in names}


class MatchingRanker(EncoderBase):
    """A head over the token vectors of an encoder, a scorer of (query, document) pairs.

    The vectors are the last states of a dense encoder, those of a token encoder, or a table of
    static ones. The encoder stays as it is unless ``train_vectors``; what is saved holds it. Every
    distinct text of a call is encoded once. A subclass names its ``kind`` and its ``head``, and is
    a line in ``RERANKERS``.
    """

    kind: str = ""
    head: ClassVar[type[Head]]

    def __init__(
        self,
        source: TokenSource,
        head: Head,
        settings: Mapping[str, int],
        *,
        train_vectors: bool = False,
    ) -> None:
        if train_vectors and not head.differentiable:
            raise ConfigError(
                f"train_vectors: true; {self.kind} counts similarities, so that vectors learn "
                "nothing from it; leave it out, or take knrm"
            )
        self.source = source
        self.settings = dict(settings)
        self.train_vectors = train_vectors
        self.device: torch.device = source.encoder.device
        self.tokenizer: Any = source.encoder.tokenizer
        parts = nn.ModuleDict({"head": head.to(self.device)})
        if train_vectors:
            parts["vectors"] = source.module
        self.module: nn.Module = parts.eval()
        self._hashed: tuple[object, str] = ((), "")

    def __init_subclass__(cls) -> None:
        """Give the subclass a ``from_pretrained`` with the signature that is its schema."""
        super().__init_subclass__()
        _give_factory(cls)

    if TYPE_CHECKING:

        @classmethod
        def from_pretrained(cls, model: str | Path, **settings: Any) -> Self:
            """Load a saved ranker, or put a new head over an encoder; see ``opened``."""

    @classmethod
    def opened(cls, model: str | Path, settings: Mapping[str, int], opening: Opening) -> Self:
        """Load a ranker's folder, or draw a head by the seed over a dense, static or token encoder.

        ``settings`` are those of the head that were given. A folder keeps its own, and refuses
        others.
        """
        folder = model_folder(str(model))
        if kind_of(folder) == cls.kind:
            return cls._loaded(folder, settings, opening)
        source = source_in(folder, opening.vectors, opening.options())
        usual = {name: p.default for name, p in _settings_of(cls.head).items()}
        chosen = {**usual, **settings}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED if opening.seed is None else opening.seed)
            head = cls.head(source.dim, **chosen)
        log.warning("%s: a new %s head was drawn at random; train it before use", model, cls.kind)
        return cls(source, head, chosen, train_vectors=opening.train_vectors)

    @classmethod
    def _loaded(cls, folder: Path, given: Mapping[str, int], opening: Opening) -> Self:
        if opening.seed is not None:
            raise ConfigError(f"seed: draws a new head, and {folder} has one; leave it out")
        facts, file = read_sidecar(folder), folder / SIDECAR
        settings, vectors = facts.get("settings"), facts.get("vectors")
        expected = _settings_of(cls.head)
        if not isinstance(settings, dict) or set(settings) != set(expected):
            raise ModelError(f"{file}: settings are {settings!r}, expected {', '.join(expected)}")
        asked = given if opening.vectors is None else {**given, "vectors": opening.vectors}
        for name, value in asked.items():
            saved = {**settings, "vectors": vectors}[name]
            if saved != value:
                raise ConfigError(
                    f"{name}: {value!r}, and {folder} was trained with {saved!r}; leave it out, or "
                    "train from an encoder"
                )
        inner = folder / INNER
        if not inner.is_dir():  # a name that is none might be found on the hub
            raise ModelError(f"{inner}: missing; it holds the encoder of the token vectors")
        source = source_in(inner, None, opening.options())
        try:
            check_arguments(cls.head, {"dim": 1, **settings}, where="settings", kind=cls.kind)
            head = cls.head(source.dim, **settings)
        except ConfigError as error:
            raise ModelError(f"{file}: {error}") from None
        fill_head(head, folder)
        return cls(source, head, settings, train_vectors=opening.train_vectors)

    @property
    def dtype(self) -> Any:
        """The arithmetic type of the encoder; the head's is float32."""
        return self.source.encoder.dtype

    @property
    def head_parameters(self) -> tuple[str, ...]:
        """How the names of the head's parameters begin, where it is not trained alone."""
        return ("head.",) if self.train_vectors else ()

    @property
    def lengths(self) -> Mapping[str, int]:
        """The most tokens of a text of each side."""
        lengths: Mapping[str, int] = self.source.encoder.lengths
        return lengths

    @property
    def fingerprint(self) -> str:
        """A hash of the head, its settings, and the encoder."""
        state = dict(self._head.state_dict(keep_vars=True))
        now = versions(state.values())
        if self._hashed[0] != now:
            self._hashed = now, state_hash(state)
        inner = type(self.source).__name__, str(self.source.encoder.fingerprint)
        return fingerprint_of(self.kind, self.settings, self._hashed[1], *inner)

    def tokenize_pairs(self, pairs: Sequence[tuple[str, str]]) -> Features:
        """Return padded features, ready for ``logits``: a query's tokens, then its document's.

        ``token_type_ids`` are 1 for the document's.
        """
        check_pairs(pairs)
        sides = ([query for query, _ in pairs], [document for _, document in pairs])
        queries = self.source.token_ids(sides[0], "query")
        documents = self.source.token_ids(sides[1], "document")
        rows = [[*one, *two] for one, two in zip(queries, documents, strict=True)]
        width = max([1, *map(len, rows)])
        ids, mask, types = (np.zeros((len(rows), width), np.int64) for _ in range(3))
        for row, (query, both) in enumerate(zip(queries, rows, strict=True)):
            ids[row, : len(both)] = both
            mask[row, : len(both)] = 1
            types[row, len(query) : len(both)] = 1
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return {name: torch.from_numpy(values) for name, values in arrays.items()}

    def logits(self, features: Features) -> Tensor:
        """Return one score per pair, float32 ``[n]``, with gradients."""
        ids, mask = features["input_ids"], features["attention_mask"].bool()
        second = features["token_type_ids"].bool() & mask
        counts = (mask & ~second).sum(1)
        with torch.set_grad_enabled(self.train_vectors and torch.is_grad_enabled()):
            queries = self._distinct(ids, torch.zeros_like(counts), counts, "query")
            documents = self._distinct(ids, counts, second.sum(1), "document")
        return self._scores(Pairs(queries, documents))

    def _distinct(self, ids: Tensor, starts: Tensor, counts: Tensor, side: Any) -> Texts:
        """Return the texts that lie in ``ids``; those that repeat are encoded once."""
        width = max(1, int(counts.max()))
        places = torch.arange(width, device=ids.device)
        mask = places < counts.unsqueeze(1)
        columns = (starts.unsqueeze(1) + places).clamp(max=ids.shape[1] - 1)
        texts = ids.gather(1, columns).masked_fill(~mask, -1)
        once, rows = torch.unique(texts, dim=0, return_inverse=True)
        return self.source.texts(once.clamp(min=0), once >= 0, side).rows(rows)

    def _scores(self, pairs: Pairs) -> Tensor:
        """Return the head's scores; in float32 also under autocast: similarities differ little."""
        with torch.autocast(self.device.type, enabled=False):
            scores: Tensor = self._head(pairs)
        return scores.float()

    @property
    def _head(self) -> Head:
        head: Any = self.module.get_submodule("head")
        return head  # type: ignore[no-any-return]

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return one score per (query, document) pair, float32 ``[n]``, in input order."""
        check_pairs(pairs)
        scores = np.zeros(len(pairs), np.float32)
        show = len(pairs) >= PROGRESS_FROM
        with progress("score pairs", len(pairs), "pairs", show=show) as advance:
            for block in self._blocks(pairs):
                names = list(dict.fromkeys(pairs[place][0] for place in block))
                texts = list(dict.fromkeys(pairs[place][1] for place in block))
                queries = dict(zip(names, quietly(self.source, names, "query"), strict=True))
                documents = dict(zip(texts, self.source.encode(texts, "document"), strict=True))
                encoded = [(queries[pairs[p][0]], documents[pairs[p][1]]) for p in block]
                with torch.inference_mode():
                    for places in _batches(encoded):
                        chosen = [encoded[place] for place in places]
                        found = self._scores(Pairs(*map(stacked, zip(*chosen, strict=True))))
                        scores[[block[place] for place in places]] = found.cpu().numpy()
                        advance(len(places))
        return scores

    def _blocks(self, pairs: Sequence[tuple[str, str]]) -> Iterator[list[int]]:
        """Yield the places of pairs with some of the documents, whose vectors fit into memory."""
        longest = self.lengths.get("document")
        places: dict[str, list[int]] = {}
        for place, (_, document) in enumerate(pairs):
            places.setdefault(document, []).append(place)
        block: list[int] = []
        held = 0
        for text, own in places.items():
            tokens = 1 + len(text) // CHARACTERS
            size = 4 * self.source.dim * (tokens if longest is None else min(tokens, longest))
            if block and held + size > BYTES:
                yield sorted(block)
                block, held = [], 0
            block += own
            held += size
        if block:
            yield sorted(block)

    def save_pretrained(self, path: str | Path) -> None:
        """Write the head and the encoder, in one step; ``from_pretrained`` loads them."""
        with replaced_folder(Path(path)) as folder:
            save_head(self._head, folder)
            self.source.encoder.save_pretrained(folder / INNER)
            facts = {"settings": self.settings, "vectors": self.source.vectors}
            write_sidecar(folder, {"type": self.kind, **facts})
            write_probes(folder, self)


def _batches(encoded: Sequence[tuple[OneText, OneText]]) -> Iterator[list[int]]:
    """Yield places of pairs with documents of like length, so many as a head may see at once."""
    order = sorted(range(len(encoded)), key=lambda place: -len(encoded[place][1].ids))
    batch: list[int] = []
    width = longest = 0
    for place in order:
        query, document = (max(1, len(text.ids)) for text in encoded[place])
        if batch and (len(batch) + 1) * max(width, query) * longest > CELLS:
            yield batch
            batch, width, longest = [], 0, 0
        batch.append(place)
        width, longest = max(width, query), max(longest, document)
    if batch:
        yield batch


def _settings_of(head: type[Head]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a head that are settings: those by keyword alone."""
    parameters = inspect.signature(head).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def _give_factory(ranker: type[MatchingRanker]) -> None:
    """Write a ranker's ``from_pretrained``: the head's settings and the keys of all rankers.

    Its signature is the ranker's schema in YAML, so that each setting is written once.
    """
    settings = _settings_of(ranker.head)
    common = inspect.signature(Opening).parameters
    hints = {
        **{name: hint | None for name, hint in typing.get_type_hints(ranker.head.__init__).items()},
        **typing.get_type_hints(Opening),
        "model": str | Path,
        "return": ranker,
    }
    place = inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    optional = [p.replace(default=None, annotation=hints[name]) for name, p in settings.items()]
    named = [each.replace(kind=each.KEYWORD_ONLY) for each in common.values()]
    signature = inspect.Signature([place, *optional, *named])

    def from_pretrained(cls: type[MatchingRanker], *args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options).arguments
        own = {name: bound[name] for name in settings if bound.get(name) is not None}
        opening = Opening(**{name: bound[name] for name in common if name in bound})
        return cls.opened(bound["model"], own, opening)

    docs = (MatchingRanker.opened.__doc__, ranker.head.__doc__, Opening.__doc__)
    from_pretrained.__doc__ = "\n\n".join(inspect.cleandoc(text or "") for text in docs)
    from_pretrained.__annotations__ = {k: v for k, v in hints.items() if k != "dim"}
    itself = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)
    from_pretrained.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[itself, *signature.parameters.values()]
    )
    ranker.from_pretrained = classmethod(from_pretrained)  # type: ignore[method-assign, assignment]
