"""Acting on tensors: applies step plans to a model on a device. Does not know what becomes of a request.

Invariant: device-visible state changes only as a plan says, in the order of the plans.
"""
