"""The account that processes share: who gets what, in any order of events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_lab import Leaky, terms

from orchestra.budget.shared.account import LEASE_SECONDS, Account, Request, Terms

LIMITS = terms(requests=(100.0, 10.0))


def account(limits=LIMITS):
    return Account(limits, boot="a", now=0.0)


def ask(account, holder, now=0.0, boot="a", limits=LIMITS, **request):
    return account.exchange(Request(holder=holder, terms=limits, **request), boot=boot, now=now)


def urgent(account, holder, amount, now=0.0, **request):
    return ask(account, holder, now, want={"requests": amount}, urgent=True, **request)


def bulk(account, holder, amount, now=0.0, **request):
    return ask(account, holder, now, want={"requests": amount}, **request)


def test_bulk_gets_what_stays_above_the_reserve_and_interactive_all_there_is():
    state = account()
    assert bulk(state, "a", 85.0).held == {"requests": 85.0}
    refused = bulk(state, "b", 1.0)
    assert refused.held == {"requests": 0.0}
    assert refused.retry_in == pytest.approx(0.1)
    assert urgent(state, "c", 15.0).held == {"requests": 15.0}


def test_what_is_held_does_not_refill_and_what_is_spent_does():
    state = account()
    bulk(state, "a", 80.0)
    ask(state, "a", 2.0, believed={"requests": 80.0}, kept={"requests": 80.0})
    assert state.available("requests", 2.0) == 20.0
    ask(state, "a", 2.0, believed={"requests": 80.0}, kept={"requests": 30.0}, spent={"requests": 50.0})
    assert state.available("requests", 2.0) == 20.0
    assert state.available("requests", 3.0) == pytest.approx(30.0)


def test_nobody_overtakes_who_has_waited_longer_in_the_same_class():
    state = account()
    bulk(state, "a", 85.0)
    ask(state, "a", believed={"requests": 85.0}, spent={"requests": 85.0})
    assert bulk(state, "large", 40.0, 0.1).retry_in == pytest.approx(3.9)
    assert bulk(state, "small", 1.0, 1.0).retry_in == pytest.approx(3.1), "after the large one"
    assert bulk(state, "large", 40.0, 2.0).retry_in == pytest.approx(2.0)
    assert bulk(state, "small", 1.0, 3.9).retry_in > 0.0, "it fits, but it is not its turn"
    assert bulk(state, "large", 40.0, 4.0).retry_in == 0.0
    assert bulk(state, "small", 1.0, 4.1).retry_in == 0.0


def test_bulk_of_one_process_waits_behind_interactive_of_another():
    state = account()
    urgent(state, "a", 95.0)
    waits = urgent(state, "b", 30.0, 0.1)
    assert waits.retry_in > 0
    reply = bulk(state, "c", 1.0, 0.2)
    assert reply.retry_in > 0
    assert reply.yield_bulk


def test_a_call_of_more_than_the_limit_makes_everybody_give_back_and_goes_into_debt():
    state = account()
    urgent(state, "a", 3.0)
    assert bulk(state, "b", 150.0).retry_in > 0.0
    reply = ask(state, "a", 0.1, believed={"requests": 3.0}, kept={"requests": 3.0})
    assert reply.cramped
    ask(state, "a", 0.2, believed={"requests": 3.0})
    assert bulk(state, "b", 150.0, 0.3).held == {"requests": 150.0}
    assert state.available("requests", 0.3) == -50.0


def test_a_call_that_needs_nearly_all_gets_what_others_hold_and_do_not_use():
    state = account()
    bulk(state, "small", 1.0)
    kept = {"believed": {"requests": 1.0}, "kept": {"requests": 1.0}}
    assert bulk(state, "large", 90.0, 1.0).retry_in > 0.0, "90 above a reserve of 15"
    assert bulk(state, "small", 2.0, 1.1, has={"requests": 1.0}, **kept).cramped
    bulk(state, "small", 3.0, 1.2, believed={"requests": 1.0})
    assert bulk(state, "large", 90.0, 1.3).retry_in == 0.0


def test_two_that_hold_what_the_other_waits_for_do_not_wait_for_ever():
    limits = terms(requests=(100.0, 10.0), concurrency=(4.0, 0.0))
    state = account(limits)
    ask(state, "later", limits=limits, want={"requests": 99.0, "concurrency": 4.0}, urgent=True)
    spent = {"believed": {"requests": 99.0, "concurrency": 4.0}, "spent": {"requests": 99.0}}
    ask(state, "earlier", limits=limits, want={"requests": 50.0, "concurrency": 1.0}, urgent=True)
    reply = ask(
        state, "later", want={"requests": 1.0}, urgent=True, next_turn=True, kept={"concurrency": 4.0}, **spent
    )
    assert reply.cramped, "it has the slots, and it is not its turn at the requests"


def test_a_process_that_died_loses_its_slice_as_spent():
    state = account()
    bulk(state, "dead", 40.0)
    later = LEASE_SECONDS + 0.1
    reply = urgent(state, "b", 1.0, later)
    assert reply.processes == 1
    assert state.available("requests", later) == pytest.approx(59.0)
    assert state.available("requests", later + 4.0) == pytest.approx(99.0)


def test_a_process_that_was_asleep_finds_its_slice_gone_and_is_not_charged_twice():
    state = account()
    bulk(state, "asleep", 40.0)
    later = LEASE_SECONDS + 1.0
    ask(state, "b", later)
    reply = ask(
        state, "asleep", later, believed={"requests": 40.0}, kept={"requests": 15.0}, spent={"requests": 25.0}
    )
    assert reply.held == {"requests": 0.0}
    assert state.available("requests", later) == pytest.approx(60.0)
    ask(state, "asleep", later, believed={"requests": 0.0}, spent={"requests": 5.0})
    assert state.available("requests", later) == pytest.approx(55.0)


def test_slots_of_a_dead_process_are_free_and_those_in_use_stay_its_own():
    limits = terms(concurrency=(4.0, 0.0))
    state = account(limits)
    ask(state, "dead", want={"concurrency": 3.0}, urgent=True, limits=limits)
    later = LEASE_SECONDS + 1.0
    assert ask(state, "b", later, want={"concurrency": 4.0}, urgent=True, limits=limits).retry_in == 0.0
    back = ask(
        state, "dead", later, believed={"concurrency": 3.0}, kept={"concurrency": 3.0}, pinned={"concurrency": 2.0}
    )
    assert back.held == {"concurrency": 2.0}, "two calls are on the wire, whatever the account may think"


def test_after_another_start_of_the_machine_nobody_holds_anything():
    state = account()
    bulk(state, "a", 50.0, 1000.0)
    reply = urgent(state, "b", 1.0, 5.0, boot="other")
    assert reply.processes == 1
    assert state.available("requests", 5.0) == pytest.approx(49.0)
    assert state.available("requests", 10.0) == pytest.approx(99.0)


def test_a_clock_that_runs_backwards_stands_still():
    state = account()
    bulk(state, "a", 50.0, 100.0)
    ask(state, "a", 100.0, believed={"requests": 50.0}, spent={"requests": 50.0})
    before = state.available("requests", 100.0)
    ask(state, "b", 50.0)
    assert state.available("requests", state.at) == before


def test_the_newest_limits_count_and_bring_nothing_at_once():
    state = account()
    bulk(state, "a", 80.0)
    double = terms(requests=(200.0, 20.0))
    reply = ask(state, "b", limits=double, assert_terms=True)
    assert reply.terms == double
    assert state.available("requests", 0.0) == 20.0
    assert ask(state, "a", believed={"requests": 80.0}, kept={"requests": 80.0}).terms == double
    tokens = terms(tokens=(1000.0, 10.0))
    reply = ask(state, "b", limits=tokens, assert_terms=True)
    assert reply.held == {"tokens": 0.0}
    assert ask(state, "a", believed={"requests": 80.0}, kept={"requests": 80.0}).terms == tokens


def test_a_refund_of_what_has_refilled_is_worth_nothing():
    state = account()
    bulk(state, "a", 50.0)
    ask(state, "a", believed={"requests": 50.0}, spent={"requests": 50.0})
    ask(state, "a", 60.0, refunded={"requests": 50.0}, spent={"requests": 10.0})
    assert state.available("requests", 60.0) == pytest.approx(90.0)


def test_the_reserve_follows_the_bursts_of_all_processes_together():
    state = account()
    for holder in ("a", "b"):
        ask(state, holder, asked={"requests": 15.0})
    assert state.describe(0.0)["dimensions"]["requests"]["interactive_reserve"] == pytest.approx(37.5)


def test_it_survives_as_text():
    state = account()
    bulk(state, "a", 50.0, 1.0)
    urgent(state, "b", 60.0, 2.0)
    again = Account.loads(state.dumps())
    assert again.dumps() == state.dumps()
    assert again.describe(9.0) == state.describe(9.0)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"limits": 3}', '{"boot": 1, "at": "x", "limits": {}}', "nul"])
def test_a_text_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        Account.loads(text)


AMOUNT = st.sampled_from([0.0, 1.0, 7.5, 30.0, 90.0])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from([0.0, 0.01, 0.5, 4.0, 100.0]),
            AMOUNT,
            st.booleans(),
            st.floats(0.0, 1.0),
            st.floats(0.0, 1.0),
            AMOUNT,
        ),
        max_size=60,
    )
)
def test_whatever_processes_do_they_never_spend_more_than_the_limit(steps):
    """Each spends from its slice while that is valid, at once and unseen, and tells later."""
    state, truth, now = account(), Leaky(100.0, 10.0), 0.0
    held, valid, told = [0.0] * 4, [0.0] * 4, [0.0] * 4
    for who, seconds, want, is_urgent, part, back, more in steps:
        now += seconds
        if now < valid[who]:
            spent = part * max(0.0, held[who] - told[who])
            assert truth.take(spent, now) <= 1e-6
            told[who] += spent
        kept = back * max(0.0, held[who] - told[who])
        reply = ask(
            state,
            str(who),
            now,
            believed={"requests": held[who]},
            kept={"requests": kept},
            spent={"requests": told[who]},
            want={"requests": want} if want else {},
            urgent=is_urgent,
            more={"requests": more},
            more_bulk={"requests": more},
        )
        held[who], valid[who], told[who] = reply.held["requests"], reply.expires_at, 0.0
        assert state.available("requests", now) >= -1e-6
        state = Account.loads(state.dumps())


def test_limits_and_reserve_are_what_the_terms_say():
    fixed = Terms({"requests": (100.0, 10.0)}, 0.4)
    state = account(fixed)
    assert bulk(state, "a", 60.0).retry_in == 0.0
    assert bulk(state, "a", 1.0, believed={"requests": 60.0}, kept={"requests": 60.0}).retry_in > 0.0
