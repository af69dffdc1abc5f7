"""Sensors of the machine: its cards, its memory, its disk. What does not answer in time is unknown (None)."""
