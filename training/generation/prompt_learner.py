"""Learns a soft prompt on a few pairs of documents and queries, the language model frozen."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.disk.files import fingerprint_of, write_bytes
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.progress import progress
from sluice.encoders.generative.constrained_decoding import read_features
from sluice.training.generation.query_prompt import PromptTuning, QueryPrompt, Shot, SoftPrompt

if TYPE_CHECKING:
    from sluice.training.generation.query_generation import ModelGenerator


log = logging.getLogger("sluice")
DOCUMENT_LENGTH = 384  # tokens of a document, where there is room for so many
LEAST = 8  # tokens of a document, fewer are refused


def learn_prompt(
    tuning: PromptTuning,
    generator: ModelGenerator,
    pairs: Sequence[Shot],
    held_out: Sequence[Shot],
    *,
    seed: int = 13,
    state: Path | None = None,
) -> SoftPrompt:
    """Return the prompt learnt on ``pairs`` and chosen by ``held_out``.

    A call that was killed continues from the last epoch in the file ``state``. The model's weights
    are not changed. ``DataError`` where there are too few pairs, ``ConfigError`` where the model
    has no room for the examples.
    """
    if len(pairs) <= tuning.shots or not held_out:
        raise DataError(
            f"soft prompt: {plural(len(pairs), 'pair')} to learn from and {len(held_out)} held "
            f"out; {tuning.shots} examples beside each take at least {tuning.shots + 1} and 1"
        )
    learner = Learner(tuning, generator, pairs, held_out, seed)
    with frozen(generator.model):
        losses = learner.learn(state)
        losses["chosen"], shots = learner.best_shots()
    log.info(
        "soft prompt: loss of the held-out pairs %.4f at the start, %.4f learnt (%s), %.4f with "
        "the best of %s of examples", losses["start"], losses["learnt"],
        plural(int(losses["epochs"]), "epoch"), losses["chosen"],
        plural(tuning.choices if tuning.shots else 1, "group"),
    )  # fmt: skip
    return SoftPrompt(
        learner.vectors.detach().cpu().numpy().copy(), tuning.prompt, learner.document_length,
        tuning.length, generator.weights, shots, losses,
    )  # fmt: skip


class Learner:
    """Learns the vectors of one prompt and chooses its examples; the model is not changed."""

    def __init__(
        self,
        settings: PromptTuning,
        generator: ModelGenerator,
        pairs: Sequence[Shot],
        held_out: Sequence[Shot],
        seed: int,
    ) -> None:
        self._settings = settings
        self._generator = generator
        self._pairs = list(pairs)
        self._held_out = list(held_out)
        self._seed = seed
        self.document_length = self._room()
        self._prompt = self._prompted(self.document_length)
        self.vectors = nn.Parameter(self._start())
        self._optimiser = torch.optim.AdamW(
            [self.vectors], lr=settings.learning_rate, weight_decay=0.0
        )
        self._steps = 0

    def _prompted(self, document_length: int) -> QueryPrompt:
        return self._generator.prompted_by(self._settings.prompt, document_length)

    def _room(self) -> int:
        """Return the most tokens of a document: as many as asked for, or as there is room for."""
        own = self._settings
        taken = own.tokens + self._prompted(1).fixed(own.shots) + own.shots * own.length
        room = (self._generator.room(own.length) - taken) // (own.shots + 1)
        if room < max(own.document_length or 0, min(LEAST, own.document_length or LEAST)):
            raise ConfigError(
                f"soft prompt: {own.tokens} tokens, {plural(own.shots, 'example')} and the queries "
                f"leave room for documents of {max(room, 0)} tokens in this model; expected "
                f"{own.document_length or LEAST}: lower shots, tokens, length or document_length"
            )
        return own.document_length or min(room, DOCUMENT_LENGTH)

    def _start(self) -> Tensor:
        """Return the embeddings of the text's tokens, repeated to so many as are wanted."""
        generator = self._generator
        ids = generator.tokenizer(self._settings.text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ConfigError(f"text: {self._settings.text!r} has no tokens in this model")
        wide = (ids * math.ceil(self._settings.tokens / len(ids)))[: self._settings.tokens]
        embeddings = generator.model.get_input_embeddings()
        with torch.no_grad():
            vectors: Tensor = embeddings(torch.tensor(wide, device=generator.device))
        return vectors.detach().float().clone()

    def loss(self, pairs: Sequence[Shot], shots: Sequence[Sequence[Shot]]) -> tuple[Tensor, int]:
        """Return the summed cross-entropy of the pairs' queries, and the number of tokens."""
        settings, prompt = self._settings, self._prompt
        rows = [
            prompt.rows([pair.document], prompt.shown(own, settings.length))[0]
            for pair, own in zip(pairs, shots, strict=True)
        ]
        targets = [prompt.target(pair.query, settings.length) for pair in pairs]
        logits = written_logits(self._generator, self.vectors, rows, targets)
        wanted = torch.tensor([token for target in targets for token in target])
        own = [row[: len(target)] for row, target in zip(logits, targets, strict=True)]
        flat = torch.cat(own).float()
        total = nn.functional.cross_entropy(flat, wanted.to(flat.device), reduction="sum")
        return total, len(wanted)

    def learn(self, state: Path | None) -> dict[str, float]:
        """Learn, and keep the vectors of the epoch with the lowest loss of the held-out pairs."""
        settings = self._settings
        facts = [asdict(settings), self._pairs, self._held_out, self._seed]
        key = fingerprint_of(self._generator.weights, *facts)
        numbers = self._restored(state, key)
        if numbers is None:
            start = self.held_out_loss()
            numbers = {"epoch": 0.0, "start": start, "best": start, "best_epoch": 0.0}
            self._best = self.vectors.detach().clone()
        with progress("soft prompt", settings.epochs, "epochs") as advance:
            advance(int(numbers["epoch"]))
            while numbers["epoch"] < settings.epochs:
                if numbers["epoch"] - numbers["best_epoch"] >= settings.patience:
                    break
                self._epoch(int(numbers["epoch"]))
                numbers["epoch"] += 1
                loss = self.held_out_loss()
                if loss < numbers["best"]:
                    numbers |= {"best": loss, "best_epoch": numbers["epoch"]}
                    self._best = self.vectors.detach().clone()
                self._note(state, key, numbers)
                advance(1)
        with torch.no_grad():
            self.vectors.copy_(self._best)
        return {
            "start": numbers["start"], "learnt": numbers["best"], "epochs": numbers["epoch"],
        }  # fmt: skip

    def _epoch(self, epoch: int) -> None:
        settings = self._settings
        chance = random.Random(f"soft prompt:{self._seed}:{epoch}")
        order = chance.sample(self._pairs, len(self._pairs))
        total = settings.epochs * math.ceil(len(order) / settings.batch)
        for start in range(0, len(order), settings.batch):
            batch = order[start : start + settings.batch]
            shots = [self._draw_shots(pair, chance) for pair in batch]
            self._optimiser.zero_grad()
            loss, count = self.loss(batch, shots)
            (loss / count).backward()  # type: ignore[no-untyped-call]
            for group in self._optimiser.param_groups:
                group["lr"] = settings.learning_rate * (1 - self._steps / total)
            self._optimiser.step()
            self._steps += 1

    def _draw_shots(self, pair: Shot, chance: random.Random) -> list[Shot]:
        """Draw examples for a pair among those of other documents."""
        others = [each for each in self._pairs if each.document != pair.document]
        return chance.sample(others, min(self._settings.shots, len(others)))

    def held_out_loss(self, shots: Sequence[Shot] | None = None) -> float:
        """Return the mean loss of a token of the held-out pairs, behind the examples ``shots``.

        Left out, each pair has examples of its own, the same in each epoch.
        """
        total, tokens = 0.0, 0
        for number, pair in enumerate(self._held_out):
            chance = random.Random(f"held out:{self._seed}:{number}")
            own = self._draw_shots(pair, chance) if shots is None else shots
            with torch.no_grad():
                loss, count = self.loss([pair], [own])
            total += float(loss)
            tokens += count
        return total / tokens

    def best_shots(self) -> tuple[float, tuple[Shot, ...]]:
        """Return the lowest loss of the held-out pairs behind one group of examples, and those."""
        settings = self._settings
        if not settings.shots:
            return self.held_out_loss(()), ()
        chance = random.Random(f"examples:{self._seed}")
        groups = [
            tuple(chance.sample(self._pairs, settings.shots)) for _ in range(settings.choices)
        ]
        losses = [self.held_out_loss(group) for group in groups]
        best = min(range(len(groups)), key=losses.__getitem__)
        return losses[best], groups[best]

    def _note(self, state: Path | None, key: str, numbers: dict[str, float]) -> None:
        from safetensors.torch import save

        if state is None:
            return
        moments = self._optimiser.state[self.vectors]
        tensors = {
            "vectors": self.vectors.detach(), "best": self._best, "average": moments["exp_avg"],
            "squares": moments["exp_avg_sq"], "step": torch.as_tensor(moments["step"]),
            "numbers": torch.tensor(list(numbers.values()), dtype=torch.float64),
        }  # fmt: skip
        plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        write_bytes(state, save(plain, {"key": key, "names": " ".join(numbers)}))

    def _restored(self, state: Path | None, key: str) -> dict[str, float] | None:
        """Take up what a killed call has noted; None where there is nothing of these settings."""
        from safetensors import SafetensorError, safe_open

        if state is None or not state.exists():
            return None
        try:
            with safe_open(state, framework="pt") as file:
                noted = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError:
            noted = {}
        if noted.get("key") != key:
            log.info("%s: of other settings; the soft prompt is learnt from its start", state)
            return None
        device = self.vectors.device
        with torch.no_grad():
            self.vectors.copy_(tensors["vectors"])
        self._best = tensors["best"].to(device)
        moments = {"exp_avg": "average", "exp_avg_sq": "squares"}
        taken = {name: tensors[own].to(device) for name, own in moments.items()}
        self._optimiser.state[self.vectors] = {"step": tensors["step"], **taken}
        self._steps = int(tensors["step"])
        return dict(zip(noted["names"].split(), tensors["numbers"].tolist(), strict=True))


def written_logits(
    generator: ModelGenerator,
    vectors: Tensor,
    rows: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
) -> list[Tensor]:
    """Return for each row the logits ``[tokens, vocabulary]`` of its target's tokens.

    The model reads ``vectors``, the row, and of the target what stands before each token.
    """
    model, config = generator.model, generator.model.config
    if generator.encoder_decoder:
        ids, mask = generator.padded(rows, left=False)
        start = config.decoder_start_token_id
        start = config.pad_token_id if start is None else start
        read, mask = read_features(model, ids, mask, vectors)
        shifted = [[int(start), *target[:-1]] for target in targets]
        logits = model(
            **read, attention_mask=mask, decoder_input_ids=generator.padded(shifted, left=False)[0]
        ).logits
        return [row[: len(target)] for row, target in zip(logits, targets, strict=True)]
    whole = [[*row, *target[:-1]] for row, target in zip(rows, targets, strict=True)]
    read, mask = read_features(model, *generator.padded(whole, left=False), vectors)
    logits = model(**read, attention_mask=mask, use_cache=False).logits
    ends = [len(vectors) + len(row) for row in whole]
    return [
        row[end - len(target) : end] for row, target, end in zip(logits, targets, ends, strict=True)
    ]


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Run the block with a model whose parameters get no gradients."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
