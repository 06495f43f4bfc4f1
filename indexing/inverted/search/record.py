"""The names of the engines, and the places in the record of a query's work; loads no kernel."""

from __future__ import annotations

AUTO, BLOCKS, TERMS = 0, 1, 2  # engines; AUTO leaves it to the planner
ENGINES = {"auto": AUTO, "blocks": BLOCKS, "terms": TERMS}
# Places in the record: those of the block engine, then those of the planner.
SCORED, RESCORED, POSTINGS, GAVE_UP = 0, 1, 2, 3
ENGINE, PLANNED, TERMS_COST, BLOCKS_COST, SPENT, RECORD = 4, 5, 6, 7, 8, 9  # the costs: ns
