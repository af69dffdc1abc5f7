"""The drill: the miniature trainer, hardened, supervised and broken on purpose."""
