"""One small preset for each figure and table of the papers."""
