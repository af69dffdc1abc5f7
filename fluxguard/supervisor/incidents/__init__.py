"""What was seen before something was ended, and the report of it: kept, rendered, packed to be sent."""
