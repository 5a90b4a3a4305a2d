"""What benchmarks/compare.py is made of: lines that are measured on two sides in turn, and the sides.

`lines` says what is measured, the modules named after a side how that one does it, `processes` how programs are run.
"""
