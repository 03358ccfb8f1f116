"""The scheme of the papers, unchanged: any network and task, through autograd. The slow oracle."""
