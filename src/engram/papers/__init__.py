"""The papers' figures and tables by name: trained, attacked, scored, drawn, compared with the published ones."""
