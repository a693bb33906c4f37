"""Small systems for the tests of programs with learned parts."""

from nlaformer import problems
from nlaformer.learn.recipes import Config

TINY = Config(n=6, T=4, d=16, heads=2, pre_layers=1, loop_layers=1)
SYSTEMS = problems.SPD(n=6, sigma=(1.0, 1.4))


def systems(count=5, seed=1):
    return SYSTEMS.sample(count, seed=seed)
