"""Health: whether every host will hold through a training, and which one will not.

`examine` looks at hosts (rung quick), `deep` and `net` measure them; a check is a question asked on the host by
`probe` (standard library only, sent over SSH) and a pure judge of the answer here.
"""
