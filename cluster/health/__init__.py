"""Health checks: decide which hosts are fit to train.

`look` is the quick level, `deep` and `net` measure. A check consists of a question, which `onhost/probe` answers on the
host, and a judge: a pure function of the answer.
"""
