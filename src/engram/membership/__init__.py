"""Membership: was this record in training? Asked of the weights, for records and held-out ones alike.

    records, held-out -> membership_tests -> Membership    boundary count, dual, both together, and the loss

Nothing is fitted to who is a member: every score is a fixed function of the weights and the pooled records.
"""

from engram.membership.evidence import Membership, MembershipTest, membership_tests

__all__ = ["Membership", "MembershipTest", "membership_tests"]
