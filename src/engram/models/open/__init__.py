"""Opening models: one module per format, one entry point (`door.open_view`). Nothing in a file is executed."""
