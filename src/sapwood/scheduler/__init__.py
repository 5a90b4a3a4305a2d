"""Decides in integers what runs in the next step: admission, chunks, decodes, pages, retraction, endings. No torch, no clocks.

Invariant: a plan is a pure function of the scheduler's state and the step's inputs, so all ranks decide alike.
"""

from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.scheduler import Scheduler, StepOutcome

__all__ = ["Scheduler", "SchedulerOptions", "StepOutcome"]
