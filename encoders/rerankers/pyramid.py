"""Cross-encoders whose lower layers read the query and the document's body apart."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from sluice.encoders.foundation.disk.files import OwnLock, fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import progress
from sluice.encoders.model_files.identity import versions
from sluice.encoders.model_files.layout import SIDECAR, read_sidecar
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import Computing, takes_options
from sluice.encoders.rerankers.cross_encoder import CrossEncoder, Head, one_score
from sluice.encoders.rerankers.pairs import check_pairs
from sluice.encoders.transformer.model import PROGRESS_FROM, Features
from sluice.encoders.transformer.packed.families import classification_head

BLOCK = 512  # pairs whose bodies are held together
SPECIAL = 3  # tokens around a query and a title
USUAL = {"query_length": 32, "title_tokens": 16}
BODY = 200  # tokens of a body, where nobody sets them


class Shape(NamedTuple):
    """How many layers read apart, and how many tokens of each text are read."""

    lower_layers: int
    query_length: int
    title_tokens: int
    body_length: int

    @property
    def start(self) -> int:
        """The position of a body's first token, behind the longest query and title."""
        return self.query_length + self.title_tokens + SPECIAL


class PyramidEncoder(CrossEncoder):
    """A cross-encoder that reads "[CLS] query [SEP] title [SEP]" and "body [SEP]" apart at first.

    The title is a document's first ``title_tokens`` tokens, the body what follows. In the first
    ``lower_layers`` layers neither sees the other; above them both are read together, as by any
    cross-encoder. So a body's lower states depend on the document alone, and are kept, at most
    ``memory_mb`` of them, the latest used: its tokens cost nothing there for the next query. With
    no lower layer it is a cross-encoder whose bodies begin at a fixed position. (After
    Pyramid-ERNIE: Zou et al., 2021, arXiv 2105.11108; its summaries are ``summarised`` here.)
    """

    kind = own_pass = "pyramid"
    takes_bytes = False

    shape: Shape
    memory_mb: int

    @classmethod
    @takes_options(Computing)
    def from_pretrained(  # type: ignore[override]
        cls,
        model: str | Path,
        *,
        lower_layers: int | None = None,
        query_length: int | None = None,
        title_tokens: int | None = None,
        body_length: int | None = None,
        memory_mb: int = 256,
        head: Annotated[
            Head | None,
            "classifier, or similarity: the texts' states are compared, which is the better "
            "start from a sentence encoder.",
        ] = None,
        seed: int = 13,
        **options: Unpack[Computing],
    ) -> Self:
        """Load a folder, or make one of a BERT or its cross-encoder, with a ``CrossEncoder`` head.

        What is left out is as in the folder, else ``lower_layers`` half of all, ``query_length`` 32
        tokens, ``title_tokens`` 16 and ``body_length`` 200, or what positions are left for it.
        """
        whole_number(memory_mb, "memory_mb", 0)
        given = {
            "lower_layers": lower_layers, "query_length": query_length,
            "title_tokens": title_tokens, "body_length": body_length,
        }  # fmt: skip
        folder = model_folder(str(model))
        encoder: Any = super().from_pretrained(
            model, head=head, backend="torch", seed=seed, **options
        )
        encoder.memory_mb = memory_mb
        encoder._take({key: value for key, value in given.items() if value is not None}, folder)
        return encoder  # type: ignore[no-any-return]

    def _take(self, given: dict[str, int], folder: Path) -> None:
        """Take the shape; ``ModelError`` for a network whose layers cannot be run one by one."""
        config = self.model.config
        if config.model_type != "bert":
            raise ModelError(f"{folder}: a {config.model_type}; a pyramid is made of a BERT")
        noted = read_sidecar(folder).get("shape", {})
        right = isinstance(noted, dict) and noted.keys() <= set(Shape._fields)
        if not right or not all(type(value) is int for value in noted.values()):
            known = ", ".join(Shape._fields)
            raise ModelError(
                f"{folder / SIDECAR}: shape is {noted!r:.80}, expected whole numbers of {known}"
            )
        try:
            self.shape = self._checked({**noted, **given})
        except ConfigError as error:
            if given or not noted:
                raise
            raise ModelError(
                f"{folder / SIDECAR}: shape: {error}; take the folder from its source again"
            ) from None
        self.max_length = self.shape.start + self.shape.body_length
        self._bodies: OrderedDict[str, Tensor] = OrderedDict()  # what is kept, the latest last
        self._kept_bytes = 0
        self._made_by: object = None
        self._lock = OwnLock()

    def _checked(self, said: dict[str, int]) -> Shape:
        """Return the given shape, filled up as usual; ``ConfigError`` for one that cannot be."""
        positions = int(self.model.config.max_position_embeddings)
        count = len(self._layers)
        values = {"lower_layers": count // 2, **USUAL, **said}
        for name, least in (("lower_layers", 0), ("query_length", 1), ("title_tokens", 0)):
            whole_number(values[name], name, least, count - 1 if name == "lower_layers" else None)
        before = values["query_length"] + values["title_tokens"] + SPECIAL
        values.setdefault("body_length", min(BODY, positions - before))
        whole_number(values["body_length"], "body_length", 1)
        if before + values["body_length"] > positions:
            raise ConfigError(
                f"body_length: {values['body_length']}, behind {before} positions of query, title "
                f"and special tokens; the model has {positions}: make one of them smaller"
            )
        return Shape(**values)

    @property
    def _layers(self) -> nn.ModuleList:
        layers: nn.ModuleList = self.model.base_model.encoder.layer
        return layers

    @property
    def fingerprint(self) -> str:
        """A hash of weights, tokenizer and shape."""
        return fingerprint_of(super().fingerprint, list(self.shape))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which keeps bodies by itself."""
        return {**super().__getstate__(), "_bodies": OrderedDict(), "_kept_bytes": 0}

    def facts(self) -> dict[str, Any]:
        """Return what ``sluice.json`` notes."""
        return {**super().facts(), "shape": self.shape._asdict()}

    def _heads_of(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Return the ids of each pair's query, with its special tokens, and of its title."""
        cls_id, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        queries = self._plain([query for query, _ in pairs], self.shape.query_length)
        titles = self._plain([document for _, document in pairs], self.shape.title_tokens)
        return [
            ([cls_id, *query, sep], [*title, sep])
            for query, title in zip(queries, titles, strict=True)
        ]

    def _bodies_of(self, documents: Sequence[str]) -> list[list[int]]:
        """Return the ids of each document's body."""
        title, length = self.shape.title_tokens, self.shape.body_length
        sep = self.tokenizer.sep_token_id
        return [[*ids[title:], sep] for ids in self._plain(documents, title + length - 1)]

    def _plain(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """Return the first ids of texts, without special tokens."""
        if not length:
            return [[] for _ in texts]
        return [ids[1:-1].tolist() for ids in self.tokenized(texts, length=length + 2).ids]

    def tokenize_pairs(self, pairs: Sequence[tuple[str, str]]) -> Features:
        """Return the padded features of pairs, ready for ``logits``; bodies begin at ``start``."""
        check_pairs(pairs)
        heads = self._heads_of(pairs)
        bodies = self._bodies_of([document for _, document in pairs])
        rows = [[*q, *t, *b] for (q, t), b in zip(heads, bodies, strict=True)]
        types = [
            [0] * len(q) + [1] * (len(t) + len(b))
            for (q, t), b in zip(heads, bodies, strict=True)
        ]  # fmt: skip
        features = self.pad(rows, types)
        positions = torch.zeros_like(features["input_ids"])
        for row, ((query, title), body) in enumerate(zip(heads, bodies, strict=True)):
            first = len(query) + len(title)
            positions[row, :first] = torch.arange(first)
            positions[row, first : first + len(body)] = self.shape.start + torch.arange(len(body))
        return {**features, "position_ids": positions}

    def logits(self, features: Features) -> Tensor:
        """Return one raw logit per pair, float32 ``[n]``, with gradients."""
        mask = features["attention_mask"].bool()
        behind = (features["position_ids"] >= self.shape.start) & mask
        parts = [_part(features, where) for where in (mask & ~behind, behind)]
        return self._together(parts[0], self._lower(parts[0]), parts[1], self._lower(parts[1]))

    def _lower(self, part: Features) -> Tensor:
        """Return the states ``[n, length, hidden]`` of texts that are read apart."""
        states = self.model.base_model.embeddings(
            input_ids=part["input_ids"], token_type_ids=part["token_type_ids"],
            position_ids=part["position_ids"],
        )  # fmt: skip
        return self._run(0, self.shape.lower_layers, states, part["attention_mask"])

    def _together(self, first: Features, ours: Tensor, second: Features, body: Tensor) -> Tensor:
        """Return the logits of heads and bodies, of their lower states."""
        both = {key: torch.cat([first[key], second[key]], dim=1) for key in first}
        mask = both["attention_mask"].bool()
        states = torch.cat([ours, body], dim=1)
        states = self._run(self.shape.lower_layers, len(self._layers), states, mask)
        if self.similarity_head is not None:
            own = mask & ~torch.isin(both["input_ids"], self._separators.to(mask.device))
            second_side = both["token_type_ids"].bool()
            compared: Tensor = self.similarity_head(states, own & ~second_side, own & second_side)
            return compared
        head = classification_head(self.model)
        if head is None:
            raise ModelError(f"{type(self.model).__name__}: no classifier of a known kind")
        return one_score(head(states[:, 0]), self._relevant)

    def _run(self, start: int, stop: int, states: Tensor, mask: Tensor) -> Tensor:
        lowest = torch.finfo(states.dtype).min
        hidden = torch.zeros_like(mask, dtype=states.dtype).masked_fill(~mask.bool(), lowest)
        for layer in self._layers[start:stop]:
            states = layer(states, hidden[:, None, None, :])
        return states

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return one raw logit per (query, document) pair, float32 ``[n]``, in input order."""
        check_pairs(pairs)
        scores = np.zeros(len(pairs), np.float32)
        show = len(pairs) >= PROGRESS_FROM
        with progress("score pairs", len(pairs), "pairs", show=show) as advance, self.arithmetic():
            for start in range(0, len(pairs), BLOCK):
                block = pairs[start : start + BLOCK]
                bodies = self._kept(list(dict.fromkeys(document for _, document in block)))
                order = sorted(range(len(block)), key=lambda n: -len(bodies[block[n][1]]))
                for places in _batches(order, block, bodies, self.shape, self.batch_tokens):
                    chosen = [block[place] for place in places]
                    found = self._scored(chosen, [bodies[document] for _, document in chosen])
                    scores[[start + place for place in places]] = found.float().cpu().numpy()
                advance(len(block))
        return scores

    def _scored(self, pairs: Sequence[tuple[str, str]], bodies: Sequence[Tensor]) -> Tensor:
        heads = self._heads_of(pairs)
        features = self.pad(
            [[*query, *title] for query, title in heads],
            [[0] * len(query) + [1] * len(title) for query, title in heads],
        )
        places = torch.arange(features["input_ids"].shape[1])
        features["position_ids"] = places.expand_as(features["input_ids"])
        first = {name: values.to(self.device) for name, values in features.items()}
        body = nn.utils.rnn.pad_sequence(list(bodies), batch_first=True)
        lengths = torch.tensor([len(each) for each in bodies], device=self.device)
        inside = (torch.arange(body.shape[1], device=self.device) < lengths[:, None]).long()
        ids = torch.full_like(inside, -1)  # a token of the document, whichever it is
        ends = (lengths - 1).unsqueeze(1)
        ids.scatter_(1, ends, self.tokenizer.sep_token_id)
        second = {
            "input_ids": ids, "attention_mask": inside, "token_type_ids": torch.ones_like(inside),
            "position_ids": inside,
        }  # fmt: skip
        return self._together(first, self._lower(first), second, body)

    def _kept(self, documents: Sequence[str]) -> dict[str, Tensor]:
        """Return the lower states ``[tokens, hidden]`` of bodies; those that are kept are found."""
        now = (self.dtype, *versions(self.module.parameters()))
        with self._lock:
            if self._made_by != now:
                self._bodies.clear()
                self._kept_bytes, self._made_by = 0, now
            found = {text: self._bodies[text] for text in documents if text in self._bodies}
            for text in found:
                self._bodies.move_to_end(text)
        missing = [text for text in documents if text not in found]
        for text, states in self._made(missing):
            found[text] = states
            with self._lock:
                self._keep(text, states)
        return found

    def _keep(self, text: str, states: Tensor) -> None:
        if text not in self._bodies:
            self._bodies[text] = states
            self._kept_bytes += states.numel() * states.element_size()
        while self._bodies and self._kept_bytes > self.memory_mb << 20:
            _, oldest = self._bodies.popitem(last=False)
            self._kept_bytes -= oldest.numel() * oldest.element_size()

    def _made(self, documents: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield documents with the lower states of their bodies."""
        bodies = self._bodies_of(documents)
        order = sorted(range(len(bodies)), key=lambda place: -len(bodies[place]))
        while order:
            most = max(1, self.batch_tokens // len(bodies[order[0]]))
            chosen, order = order[:most], order[most:]
            rows = [bodies[place] for place in chosen]
            features = self.pad(rows, [[1] * len(row) for row in rows])
            places = self.shape.start + torch.arange(features["input_ids"].shape[1])
            # Padding may stand behind the last position there is, where nobody looks.
            last = self.shape.start + self.shape.body_length - 1
            features["position_ids"] = places.clamp(max=last).expand_as(features["input_ids"])
            states = self._lower({name: part.to(self.device) for name, part in features.items()})
            for row, place in enumerate(chosen):
                yield documents[place], states[row, : len(bodies[place])].clone()


def _batches(
    order: Sequence[int],
    pairs: Sequence[tuple[str, str]],
    bodies: dict[str, Tensor],
    shape: Shape,
    budget: int,
) -> Iterator[list[int]]:
    """Yield places of pairs with bodies of like length, ``budget`` tokens together."""
    left = list(order)
    while left:
        most = max(1, budget // (shape.start + len(bodies[pairs[left[0]][1]])))
        yield left[:most]
        left = left[most:]


def _part(features: Features, where: Tensor) -> Features:
    """Return the features of the tokens ``where`` alone, moved to the left."""
    width = max(1, int(where.sum(1).max()))
    order = torch.argsort((~where).to(torch.int8), dim=1, stable=True)[:, :width]
    part = {name: values.gather(1, order) for name, values in features.items()}
    part["attention_mask"] = where.gather(1, order).long()
    return part
