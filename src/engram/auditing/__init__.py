"""The audit: inspect, attack, score, judge, in one call; a record that a person can act on.

model, input shape                    -> blind: what a stranger would hold in hand
... with training and held-out data   -> what leaks of whom, beside its control

`audit` runs it, `AuditRecord` is its outcome, `page` lays it out for the HTML report.
"""

from engram.auditing.record import AuditRecord
from engram.auditing.run import audit

__all__ = ["AuditRecord", "audit"]
