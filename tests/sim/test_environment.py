from __future__ import annotations

from kvsim.sim.environment import Environment


def test_time_passes_without_an_event_up_to_the_next_one_only() -> None:
    env = Environment(initial_time=0)
    assert env.passes(5)
    assert env.now == 5
    env.timeout(10)
    assert not env.passes(15)  # what is due at that moment comes first
    assert env.now == 5
    assert env.passes(14)
    assert env.now == 14


def test_time_never_goes_back() -> None:
    env = Environment(initial_time=7)
    assert env.passes(3)
    assert env.now == 7


def test_an_event_is_processed_at_its_own_time_after_time_has_passed() -> None:
    env = Environment(initial_time=0)
    seen = []
    event = env.timeout(10)
    assert event.callbacks is not None
    event.callbacks.append(lambda _: seen.append(env.now))
    env.passes(9)
    env.run()
    assert seen == [10]
