"""What people see of a run, from its files alone."""
