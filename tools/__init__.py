"""What builds the documentation; nothing in src reads it."""
