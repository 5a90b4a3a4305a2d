"""Where a program's text is continued: a model in this process, or a server of one of the known kinds."""
