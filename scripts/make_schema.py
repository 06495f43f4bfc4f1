"""Write configs/sluice.schema.json, the JSON schema of the YAML files, from the components.

Run ``python scripts/make_schema.py`` after a change of a section, or of a component's arguments or
docstring.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "configs" / "sluice.schema.json"


def text() -> str:
    """Return the file's content."""
    from sluice.retrieval.config import json_schema

    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    FILE.write_text(text(), encoding="utf-8")
    print(FILE)
