"""From what is seen to a symptom: pure functions over a bounded history."""
