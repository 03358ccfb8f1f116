"""The audit's report: one HTML file with everything inside; it asks nothing of any network."""

from engram.report.html.page import Cell, Gallery, Page, Picture, Section, Table, Tile
from engram.report.html.render import render, render_gallery, render_live

__all__ = [
    "Cell",
    "Gallery",
    "Page",
    "Picture",
    "Section",
    "Table",
    "Tile",
    "render",
    "render_gallery",
    "render_live",
]
