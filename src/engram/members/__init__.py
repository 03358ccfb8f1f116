"""Membership: was this record in training? Asked of the weights, for records and held-out ones alike.

boundaries   on how many neurons' boundaries a record lies
duals        how much of the weights it explains in one fit with all others
evidence     both, their combination, and the loss beside them

Nothing is fitted to who is a member: every score is a fixed function of the weights and the pooled records.
"""
