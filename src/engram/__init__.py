"""engram: what a training sample leaves in the weights."""
