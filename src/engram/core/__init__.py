"""What everything stands on: errors, files that appear whole, the one loop, run directories, progress."""
