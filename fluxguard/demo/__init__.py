"""A miniature of sd-scripts: own code, the same entry point, flags, files and waits, a tiny model, a CPU."""
