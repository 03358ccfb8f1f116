"""The audit: inspect, attack, score and judge in one call; the result is a record that a person can act on.

model, input shape                    -> blind: what an attacker would get
... with training and held-out data   -> which records leak, compared with a control

`run.audit` runs it, `record.AuditRecord` is its result, `page` lays it out as the HTML report. The package is
not called `audit` because `engram.audit` is the function."""
