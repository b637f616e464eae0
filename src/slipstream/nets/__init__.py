"""Plain torch networks: the decoder of the target and the networks of drafters. No decoding logic."""
