"""Makes the checksums of a changed file agree, as somebody does who means harm."""

import hashlib
import json
from pathlib import Path


def forge(folder: Path, file: Path) -> None:
    """Write into every manifest below ``folder`` what ``file`` now is."""
    data = file.read_bytes()
    for manifest in folder.rglob("manifest.json"):
        facts = json.loads(manifest.read_text(encoding="utf-8"))
        for name, entry in facts.get("files", {}).items():
            if file in (manifest.parent / name, manifest.parent / str(facts["generation"]) / name):
                entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        manifest.write_text(json.dumps(facts), encoding="utf-8")
