"""The command line: one file for each group of verbs; ``main`` runs it.

May import: everything below.
"""

from sluice.retrieval.cli.app import main as main
