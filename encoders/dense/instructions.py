"""Fills instructions into prompts, and puts answered examples before them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sluice.encoders.foundation.errors import ConfigError, suggest

TEMPLATE = "Instruct: {task}\nQuery: "  # for queries, if an instruction comes without a prompt
_FIELD = re.compile(r"\{(\w+)\}")
_PARTS = ("query", "document")


def filled_prompts(
    query_prompt: str | None, document_prompt: str | None, instruction: str | None
) -> dict[str, str | None]:
    """Return both prompts with ``instruction`` in place of ``{task}``; None stays None.

    An instruction without a prompt gives queries ``TEMPLATE``. Symmetric tasks have ``{task}`` in
    both. Raises ``ConfigError`` for another field, a template without an instruction, and an
    instruction without a template. (Su et al., 2023, INSTRUCTOR; Wang et al., 2024, arXiv
    2401.00368.)
    """
    if instruction is not None and query_prompt is None and document_prompt is None:
        query_prompt = TEMPLATE
    prompts = {"query_prompt": query_prompt, "document_prompt": document_prompt}
    fields = {key: _FIELD.findall(prompt or "") for key, prompt in prompts.items()}
    for key, names in fields.items():
        for name in names:
            if name != "task":
                raise ConfigError(
                    f"{key}: unknown field {{{name}}}; a prompt may contain {{task}}"
                    f"{suggest(name, ['task'])}"
                )
    templates = [key for key, names in fields.items() if names]
    if templates and instruction is None:
        raise ConfigError(f"{templates[0]}: contains {{task}}; give instruction, the text for it")
    if instruction is not None and not templates:
        raise ConfigError(
            f"instruction: {instruction!r}, but no prompt contains {{task}}, such as {TEMPLATE!r}"
        )
    return {
        key: None if prompt is None else prompt.replace("{task}", instruction or "")
        for key, prompt in prompts.items()
    }


def with_examples(prompt: str, examples: Sequence[Mapping[str, str]]) -> str:
    """Return the queries' prompt after answered examples, each ``{query, document}``.

    One example reads ``<prompt><query>``, a line ``Document: <document>`` and an empty line. (Li et
    al., 2024, arXiv 2409.15700.) Raises ``ConfigError`` for an example with other keys.
    """
    written = []
    for number, example in enumerate(examples):
        where = f"few_shot[{number}]"
        if not isinstance(example, Mapping):
            raise ConfigError(f"{where}: {example!r}; expected {{query: ..., document: ...}}")
        for key in example:
            if key not in _PARTS:
                raise ConfigError(
                    f"{where}.{key}: expected query and document{suggest(str(key), _PARTS)}"
                )
        for key in _PARTS:
            if not isinstance(example.get(key), str):
                raise ConfigError(f"{where}.{key}: {example.get(key)!r}; expected a text")
        written.append(f"{prompt}{example['query']}\nDocument: {example['document']}\n\n")
    return "".join(written) + prompt
