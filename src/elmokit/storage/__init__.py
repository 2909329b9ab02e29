"""Files on the disk: opened safely, written whole or not at all."""
