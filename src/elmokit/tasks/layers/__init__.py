"""The parts that task networks are made of; all of them take ragged batches and never look at padding."""
