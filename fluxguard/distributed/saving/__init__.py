"""States that all ranks can go on from."""
