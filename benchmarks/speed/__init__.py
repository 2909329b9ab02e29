"""What the tables of speed share: models, sentences, the machine's limits, parity, rendering."""
