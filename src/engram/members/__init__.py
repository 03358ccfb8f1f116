"""Membership: was this record in training? The weights answer, for training and held-out records alike.

membership      the test for any PyTorch model: `engram.membership`
matched_filter  its score at every layer: is the record's gradient in the weights?
kkt   on how many neurons' boundaries a record lies, how much of the weights it explains in one fit with all other
      records, both combined, and the loss for comparison

Nothing is fitted to the true membership: every score is a fixed function of the weights and the pooled records.
"""
