"""Opening models: one file a format, one door (`door.open_view`). Nothing in a file is ever executed."""
