"""The style that all pictures share, and labels that do not overlap (style.py)."""
