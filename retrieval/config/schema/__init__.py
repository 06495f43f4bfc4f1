"""The JSON schema of the YAML files, and lists of what they may name, from the classes themselves.

May import: `retrieval.config` and below.
"""

from __future__ import annotations
