"""`slipstream doctor`: is a learned drafter read the way it was trained? Other readings are tried and measured.

`readings` names the ways a file may be meant, `texts` lets the target write and notes what it felt, `trial` measures
one reading on them, `statistics` compares two, `spelling` says what to change in the file, `examine` puts it together.
"""
