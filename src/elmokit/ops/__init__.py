"""The recurrence: a plain reference and the packed form that does the work."""
