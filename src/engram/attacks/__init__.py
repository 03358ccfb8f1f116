"""Attacks: from an AttackerView to candidates. `registry.make_attack` creates any of them."""
