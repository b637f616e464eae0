"""Ways of guessing what comes next: one file each, all with the three verbs of `types.Drafter`."""
