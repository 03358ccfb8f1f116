"""Models: networks, tasks, the attacker's view, and opening files. All that an attack may import beside `core`."""
