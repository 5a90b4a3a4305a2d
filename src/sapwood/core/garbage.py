"""Python's cycle collector, kept off what lives as long as its process.

Knows nothing of what it spares. A full pass walks over every container there is: after loading, 200,000 that never
become garbage, a third of a second on two busy cores, in the middle of somebody's stream.
"""

from __future__ import annotations

import gc


def spare_the_living() -> None:
    """Collect once, then leave whatever is alive out of all later passes; for a process that is ours, once it is ready."""
    gc.collect()
    gc.freeze()
