"""The real scheduler and prefix index on a virtual clock: tries policies, sizes and routing without the hardware. No torch.

Invariant: the same workload, options and cost model give the same report, digit for digit.
"""

from sapwood.simulate import chains as chains  # registers its workloads
from sapwood.simulate.cost import CostModel, calibrate
from sapwood.simulate.report import Report
from sapwood.simulate.simulator import Simulation, simulate

__all__ = ["CostModel", "Report", "Simulation", "calibrate", "simulate"]
