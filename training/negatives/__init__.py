"""Hard negatives from ranked lists: the choice, its report, its provenance and its audit.

May import: `training.protocol`, `training.protocol`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.training.negatives.audit import (
        MiningAudit as MiningAudit,
        audit_mining as audit_mining,
    )
    from sluice.training.negatives.false_negatives import Judge as Judge, JudgedPair as JudgedPair
    from sluice.training.negatives.mining import mine as mine, mine_lists as mine_lists
    from sluice.training.negatives.provenance import Provenance as Provenance
    from sluice.training.negatives.report import (
        MinedNegatives as MinedNegatives,
        MiningReport as MiningReport,
        read_provenance as read_provenance,
        write_provenance as write_provenance,
    )
    from sluice.training.negatives.settings import Mining as Mining
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
