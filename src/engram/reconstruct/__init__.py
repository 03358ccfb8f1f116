"""3-5  Reconstruct: from an AttackerView to candidates."""
