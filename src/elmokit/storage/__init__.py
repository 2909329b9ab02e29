"""Files, folders, locks, caches and vectors on the disk: used by every package that writes."""
