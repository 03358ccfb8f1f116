"""The audit: inspect, attack, score, judge, in one call; a record that a person can act on.

model, input shape                    -> blind: what an attacker would hold
... with training and held-out data   -> what leaks of whom, beside its control

`run.audit` runs it, `record.AuditRecord` is its outcome, `page` lays it out for the HTML report. The package is
not called `audit`, because `engram.audit` is the function."""
