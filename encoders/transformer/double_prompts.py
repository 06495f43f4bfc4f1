"""Texts that bring a prompt already, which the encoder puts before them once more."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from sluice.encoders.encoder import Side

log = logging.getLogger("sluice")
LOOKED_AT = 100  # texts of a call, in which prompts are looked for


def look_for_prompts(
    texts: Sequence[str], side: Side, prompts: Mapping[str, str], met: set[str]
) -> None:
    """Log once that texts bring a prompt of their own, or that of the other side.

    ``met`` are the sides whose prompt was found before; it is added to.
    """
    for of, prompt in prompts.items():
        mark = prompt.strip()
        if not mark or of in met:
            continue
        if any(text.startswith(mark) for text in texts[:LOOKED_AT]):
            met.add(of)
            ours = of == side or prompt == prompts[side]
            why = "which is put before it once more" if ours else f"the prompt of a {of}"
            remedy = (
                f"remove it from the texts, or set {side}_prompt: ''"
                if ours
                else "remove it, or encode the texts as what they are"
            )
            log.warning("a %s begins with %r, %s; %s", side, mark, why, remedy)
