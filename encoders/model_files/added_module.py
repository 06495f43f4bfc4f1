"""What is put beside a transformer's own weights and cannot be merged into them."""

from __future__ import annotations

from typing import Any

from torch import nn


class AddedModule(nn.Module):
    """A part that tuning adds to a transformer, saved in a folder of its own."""


def added_modules(module: Any) -> dict[str, AddedModule]:
    """Return the added parts of a module by name."""
    return {name: m for name, m in module.named_modules() if isinstance(m, AddedModule)}
