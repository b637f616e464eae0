"""The one decode loop, admission of requests, and the only place where sequences end."""

from slipstream.engine.commit import Round, RoundTrace
from slipstream.engine.engine import Engine, EngineOptions
from slipstream.engine.finish import Ending
from slipstream.engine.scheduler import Scheduler
from slipstream.engine.stats import Stats

__all__ = ["Ending", "Engine", "EngineOptions", "Round", "RoundTrace", "Scheduler", "Stats"]
