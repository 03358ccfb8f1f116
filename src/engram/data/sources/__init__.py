"""One file a source; each returns an ImageSet."""
