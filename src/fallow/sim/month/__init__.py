"""A month of jobs on a pretend cloud, without a socket: what the brain of scaling costs, beside a rival and a bound.

Read in this order: `jobs` (who comes, when, for how long), `scene` (nodes, pods, and who is put where), `pools` (what
may be bought, and the policy), `ours` (the brain and its hands), `rival` (requests only), `bounds` (what it must cost),
`faults`, `play`; `over_world`: the same hands on a World.
"""
