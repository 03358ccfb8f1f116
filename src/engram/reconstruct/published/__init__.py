"""The scheme of the papers, unchanged: any network, through autograd. The slow oracle."""
