"""How much to draft, from what was known before the round (law 4)."""
