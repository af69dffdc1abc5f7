"""What there is to see of an attempt, its processes and its machine. Sensors have no opinions."""
