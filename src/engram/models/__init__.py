"""Models: networks, tasks, the attacker's view, opening files. Besides `core`, all that an attack may import."""
