"""Attacks: from an AttackerView to candidates. `registry.make_attack` makes any of them."""
