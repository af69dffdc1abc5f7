"""What is written of an incident and read again: the scene, the report, its page and picture, the archive to send."""
