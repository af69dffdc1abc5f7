"""What `fluxguard doctor --distributed` measures."""
