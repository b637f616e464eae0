"""Numbers one can trust: comparison with plain decoding, certificates for near-ties, records of where and how."""
