"""Files of labelled text, as examples: tables for classification and pairs, columns for tagging."""
