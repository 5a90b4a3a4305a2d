"""Options: one table, four sources (command line, environment, YAML file, keywords), one frozen result.

`options` is the table, `raw` collects what was set and checks it, `resolve` turns that into `sections`. Imports no torch.
Invariant: an option exists in every source and in the documentation, or nowhere.
"""
