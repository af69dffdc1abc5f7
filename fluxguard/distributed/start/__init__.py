"""How ranks find each other: environment, roll call, process group, heartbeats; and how they part."""
