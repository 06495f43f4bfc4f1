"""``python -m sluice``: the command line."""

import sys
from pathlib import Path

# ``-m`` puts the current folder before all installed packages: a folder of somebody's that holds a
# json.py would be imported. Where Sluice itself lies there, nothing else finds it.
HERE = Path(__file__).parent.parent
if sys.path and not sys.flags.safe_path and Path(sys.path[0] or ".").absolute() != HERE.absolute():
    del sys.path[0]

from sluice.retrieval.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
