"""Health: whether every host will hold through a training, and which one will not.

`look` is the quick rung, `deep` and `net` measure. A check is a question, which `onhost/probe` asks on the host, and a
judge: a pure function of the answer.
"""
