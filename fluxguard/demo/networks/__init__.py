"""The miniature's counterpart of the package of the same name in sd-scripts."""
