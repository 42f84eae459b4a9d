"""Facts about cohorts; see ``facts``."""

from __future__ import annotations

from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.engine.messages.fact import Fact


class CohortEnsured(Fact, tag="cohort_ensured", frozen=True, kw_only=True):
    """The cohort exists with this definition, which replaces an earlier one of the same name."""

    spec: CohortSpec
