"""Compare drafted outputs with the plain ones of the same run: equal, apart at certified near-ties, or different.

In: an `LLM`, prompts and both outputs as ids, all greedy. Out: one `Agreement` per prompt. The float32 reference is
loaded once, and only if some output differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.measure.certify import TAU_FLOAT32, Certificate, certify, cut_short, measured_tau

if TYPE_CHECKING:
    from slipstream.llm import LLM
    from slipstream.types import Target


@dataclass(frozen=True)
class Agreement:
    """One prompt's outputs: equal, or where they part and what the certificate says of the drafted one."""

    equal: bool
    position: int | None = None
    certificate: Certificate | None = None

    @property
    def holds(self) -> bool:
        """True if the outputs are equal or every token of the drafted one is the argmax up to rounding."""
        return self.equal or (self.certificate is not None and self.certificate.holds)

    @property
    def word(self) -> str:
        """What to print in a table."""
        return "identical" if self.equal else ("near-tie" if self.holds else "DIFFERENT")

    def as_dict(self) -> dict[str, Any]:
        """Return the agreement for JSON."""
        certificate = self.certificate.as_dict() if self.certificate else None
        return {"agreement": self.word, "first_difference": self.position, "certificate": certificate}


class Notary:
    """Compares outputs of one `LLM` with plain ones; keeps the float32 reference between calls."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._reference: Target | None = None

    def compare(self, prompt: list[int], plain: list[int], drafted: list[int]) -> Agreement:
        """Compare two greedy outputs of one prompt."""
        if plain == drafted:
            return Agreement(True)
        pairs = enumerate(zip(plain, drafted, strict=False))
        position = next((k for k, (a, b) in pairs if a != b), min(len(plain), len(drafted)))
        if cut_short(plain, drafted):
            return Agreement(False, position)
        certificate = Certificate(self._tau(prompt, drafted))
        reference, target = self._float32(), self._llm.engine.target
        certify(reference, prompt, drafted, certificate, None if reference is target else target)
        return Agreement(False, position, certificate)

    def _tau(self, prompt: list[int], output: list[int]) -> float:
        import torch

        if self._llm.opened.dtype == torch.float32:
            return TAU_FLOAT32
        return measured_tau(self._llm.engine.target, prompt, output, self._llm.draft_tokens + 1)

    def _float32(self) -> Target:
        if self._reference is None:
            self._reference = float32_target(self._llm)
        return self._reference


def float32_target(llm: LLM) -> Target:
    """Return the target of an LLM, or, if that is of lower precision, the same weights opened in float32."""
    import torch

    from slipstream import build
    from slipstream.config import TargetConfig

    opened = llm.opened
    if opened.dtype == torch.float32:
        return opened.target
    folder, length = str(opened.folder), llm.max_model_len
    config = TargetConfig(model=folder, kind=opened.kind, dtype="float32", device=opened.device, max_len=length)
    return build.open_target(config, rows=1).target


def statement(agreements: list[Agreement]) -> str:
    """Say in one line how the outputs of all prompts compare."""
    differing = [a for a in agreements if not a.equal]
    if not differing:
        return "outputs identical"
    equal = len(agreements) - len(differing)
    certificates = [a.certificate for a in differing if a.certificate is not None]
    gap, tau = (max((getattr(c, name) for c in certificates), default=0.0) for name in ("largest_gap", "tau"))
    if all(a.holds for a in differing):
        return (
            f"outputs identical on {equal} of {len(agreements)} prompts; the others part at near-ties, certified "
            f"against float32 (largest gap {gap:.3g}, tau {tau:.3g})"
        )
    bad = sum(not a.holds for a in differing)
    return f"outputs differ beyond rounding on {bad} of {len(agreements)} prompts (gap {gap:.3g}, tau {tau:.3g})"
