"""Verification rules: a draft and the target's laws in, a verdict out. All of them are lossless; `RULES` lists them."""

from types import MappingProxyType

from slipstream.verify.auto import AutoRule
from slipstream.verify.block import BlockRule
from slipstream.verify.chain import ChainRule
from slipstream.verify.coupled import CoupledRule
from slipstream.verify.rule import Rule
from slipstream.verify.tree import TreeRule

RULES = MappingProxyType(
    {rule.name: rule for rule in (ChainRule(), BlockRule(), TreeRule(), CoupledRule(), AutoRule())}
)

__all__ = ["RULES", "AutoRule", "BlockRule", "ChainRule", "CoupledRule", "Rule", "TreeRule"]
