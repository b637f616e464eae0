"""Judge whether the engine is lossless on the user's own model, drafter, rule and sampling parameters.

`run_audit` proves what can be enumerated, tests what can only be sampled, certifies greedy tokens, checks the random
streams, and plants errors that it must find. Out: an `Audit`, from which the certificate is written.
"""

from slipstream.measure.audit.certificate import Audit
from slipstream.measure.audit.findings import ALARM, Check
from slipstream.measure.audit.run import AuditOptions, run_audit

__all__ = ["ALARM", "Audit", "AuditOptions", "Check", "run_audit"]
