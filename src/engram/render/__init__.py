"""Rendering: finished numbers as HTML, SVG and PNG; nothing is computed here."""
