"""``python -m sluice``: the command line."""

from sluice.retrieval.cli import main

if __name__ == "__main__":
    main()
