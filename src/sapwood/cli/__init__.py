"""The command line: one file per command, each with `add_arguments(parser)` and `run(args) -> exit code`.

`main` finds the command; nothing else here imports a command, so that `sapwood version` does not pay for torch.
"""
