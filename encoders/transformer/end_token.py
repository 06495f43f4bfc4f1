"""Ends every text with the end-of-text token, whose state last-token pooling takes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.layout import read_object, transformer_folder

log = logging.getLogger("sluice")


def ends_specially(tokenizer: Any) -> bool:
    """Return whether a tokenizer puts a special token at the end of a text."""
    ids = tokenizer("a", verbose=False)["input_ids"]
    # "a" itself may be the unknown token, which is special too
    own = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    begins_only = bool(own) and ids[-len(own) :] == own
    return bool(ids) and not begins_only and ids[-1] in tokenizer.all_special_ids


def end_texts(tokenizer: Any, wanted: bool | None, folder: Path) -> None:
    """Make a tokenizer end texts with the end-of-text token where ``wanted``.

    One that does so already is left as it is, with a warning where False was asked for. None is
    what ``tokenizer_config.json`` says (``add_eos_token``, which transformers 5 does not read),
    else no, with a warning. Raises ``ConfigError`` for a tokenizer that has no such token or cannot
    append it.
    """
    if wanted is not None and type(wanted) is not bool:
        raise ConfigError(f"append_eos: {wanted!r}, expected true or false")
    if ends_specially(tokenizer):
        if wanted is False:
            log.warning(
                "%s: append_eos: false, but its tokenizer ends every text with a special token by "
                "itself, which stays; leave append_eos out", folder,
            )  # fmt: skip
        return
    if wanted is None:
        noted = read_object(transformer_folder(folder) / "tokenizer_config.json")
        wanted = noted.get("add_eos_token") is True or None
    if wanted is None:
        log.warning(
            "%s: pooling: last takes the state of a text's last token, which its tokenizer does "
            "not make the end-of-text token; append_eos: true adds it as most such models were "
            "trained with it, false leaves texts as they are", folder,
        )  # fmt: skip
    if not wanted:
        return
    if tokenizer.eos_token is None:
        raise ConfigError(f"append_eos: true, and the tokenizer of {folder} has no eos_token")
    _append(tokenizer)
    if not ends_specially(tokenizer):
        raise ConfigError(
            f"append_eos: true, but a {type(tokenizer).__name__} cannot append a token; leave it "
            "out"
        )


def _append(tokenizer: Any) -> None:
    from tokenizers.processors import Sequence, TemplateProcessing

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return
    end = TemplateProcessing(
        single=f"$A {tokenizer.eos_token}",
        pair=f"$A {tokenizer.eos_token} $B:1 {tokenizer.eos_token}:1",
        special_tokens=[(tokenizer.eos_token, tokenizer.eos_token_id)],
    )
    before = backend.post_processor
    backend.post_processor = end if before is None else Sequence([before, end])
