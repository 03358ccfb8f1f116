"""Data: readers return an ImageSet, label maps turn its classes into a task's, the catalogue lists data sets."""
