"""The coordinator alone: errors for which nothing is tried again, and a restart that never comes."""

from __future__ import annotations

from partita.engine.protocol.coordinator_effects import AbortRun, Opened, Restart, Warn
from partita.engine.protocol.events import Died
from partita.engine.protocol.messages import Failed, Ready
from tests.protocol.coordinating import HOSTS, Run, of


def test_what_would_fail_again_ends_the_run_at_once() -> None:
    run = Run().start()
    [failure] = of(
        AbortRun, run.receive("part 1.1", Failed("the loss is not finite in step 4", "", final=True))
    )
    assert failure == AbortRun("part 1.1: the loss is not finite in step 4")


def test_what_cannot_be_set_up_ends_the_run_before_it_starts() -> None:
    run = Run()
    run.feed(Opened())
    for name in HOSTS:
        run.hello(name)
    run.receive("shard 0", Ready())
    [failure] = of(AbortRun, run.receive("part 0.0", Failed("MemoryError: no room", "Traceback ...")))
    assert failure == AbortRun("part 0.0 cannot be set up: MemoryError: no room", "Traceback ...")


def test_a_new_process_that_is_stuck_is_replaced_by_another() -> None:
    """An earlier process could start, so the run goes on; only so often, as after every death."""
    run = Run().start()
    run.feed(Died("shard 1", 0, "killed"))
    others = [name for name in HOSTS if name != "shard 1"]
    for times in (1, 2, 3):
        run.wait(299.5, hearing=others)
        assert run.incarnations["shard 1"] == times
        run.wait(0.5, hearing=others)
        assert run.incarnations["shard 1"] == times + 1
    [failure] = of(AbortRun, run.wait(300.0, hearing=others))
    assert failure.reason.startswith(
        "shard 1 died 5 times without getting any further: no sign of life for 300 s while importing"
    )
    assert not of(Restart, [failure])


def test_a_computation_that_does_not_end_ends_the_run_the_second_time() -> None:
    run = Run().start()
    stuck = Failed("FORWARD odd[0:8] has not ended for 60 s", "the stacks", stuck=True)
    first, *_ = of(Warn, run.receive("part 1.1", stuck))
    assert first == Warn("part 1.1 failed, 1 of 2 times: FORWARD odd[0:8] has not ended for 60 s")
    run.restarted("part 1.0", "part 1.1")
    [failure] = of(AbortRun, run.receive("part 1.1", stuck))
    assert failure == AbortRun(
        "part 1.1 failed 2 times: FORWARD odd[0:8] has not ended for 60 s", "the stacks"
    )
