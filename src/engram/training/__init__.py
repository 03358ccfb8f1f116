"""Training: recipes, descent, targets with their cards. Attacks never import this."""
