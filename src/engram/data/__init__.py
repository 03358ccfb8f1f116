"""1  Data: sources return an ImageSet; labels maps its classes to a task; sampling picks and centres."""
