"""Membership: was this record in training? The weights answer, for training and held-out records alike.

membership      the test for any PyTorch model: `engram.membership`
pool            records and controls, read in batches; is the control of the same kind?
layers          what each layer saw of a record: its inputs and the margin's gradient
matched_filter  is the record's gradient in the weights?
pooled_fit      how much of the weights does it explain that no other record does?
scores          both at every layer, chunk by chunk, here or in other processes
mixture         one score from all of them, without asking who is a member
kkt             plain networks: how many neurons' boundaries a record lies on, and its dual in one fit with all

Nothing is fitted to the true membership: every score is a fixed function of the weights and the pooled records.
"""
