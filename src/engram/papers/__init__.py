"""The papers' figures and tables by name: trained, attacked, scored, drawn, compared with what was published."""
