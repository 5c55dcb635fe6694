"""`make storm`: short trainings in real processes, one after another, in which something is killed or frozen
every two seconds, beside an oracle.

- `cells`: driver, durability and place of each run; `networks`: what is trained.
- `run`: a training as a program of its own, which is killed, too, and started again by the same command.
- `victims`: draws faults and carries them out, at `moments` of a run.
- `processes` and `pool` start what runs.
- `checks`: what must hold at the end of a run; `recovery`: times of detection and recovery; `census`: memory,
  descriptors, and what is left behind.
- `storm`: one run in the storm; `__main__`: all of them; `table`: what is printed.
"""
