"""The one style of all pictures (style.py), and labels that do not overlap (labels.py)."""
