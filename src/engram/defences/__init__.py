"""What to do about a leak: mend a model that exists, or train it again under a defence; both attacked anew."""
