"""Constrained completions: from what a request asks for to the masks that its tokens are chosen under.

`source` translates constraints, `guidance` compiles and matches them (llguidance), `follower` steers one request, `check` is what
the server asks before it accepts one. Imports no torch; does not know plans, slots or text that was generated.
"""
