"""Ways of running the model being sped up; each plays the role `slipstream.types.Target`."""
