"""What becomes of the lines of a batch that failed as a whole."""

from __future__ import annotations

import pytest

from orchestra.policies.batch_failure import (
    AfterFailure,
    Recourse,
    after_failure,
    after_refusal,
    given_up_at,
    is_gone,
    is_meant,
)
from orchestra.policies.diversion import BatchOutlet

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.mark.parametrize("code", ["token_limit_exceeded", "too_many_tasks"])
def test_a_full_queue_is_no_attempt(code):
    assert after_failure(code) == AfterFailure(Recourse.WAIT, 30.0, counts=False)


def test_the_adapter_may_know_a_full_queue_by_something_else():
    assert after_failure("", queue_full=True).recourse is Recourse.WAIT


def test_a_queue_that_stays_full_is_asked_more_seldom():
    waits = [after_failure("token_limit_exceeded", times=times).shut_for for times in range(1, 9)]
    assert waits[:3] == [30.0, 60.0, 120.0]
    assert waits == sorted(waits)
    assert after_failure("token_limit_exceeded", times=10**9).shut_for == 900.0


def test_a_model_that_is_not_there_is_every_lines_error():
    assert after_failure("model_not_found").recourse is Recourse.REFUSE


def test_unless_it_is_there_for_others():
    """An Azure deployment of another type takes no batches, and answers all the same."""
    after = after_failure("model_not_found", answers=True)
    assert after.recourse is Recourse.RELEASE
    assert after.shut_for >= DAY


@pytest.mark.parametrize("code", ["invalid_json_line", "duplicate_custom_id", "empty_file", "url_mismatch"])
def test_a_wrong_file_is_no_lines_error_and_is_not_sent_again(code):
    assert after_failure(code) == AfterFailure(Recourse.RELEASE, DAY, counts=True)


@pytest.mark.parametrize(
    ("forbidden", "of_line", "shut_for"),
    [(True, False, DAY), (True, True, DAY), (False, False, 600.0), (False, True, 0.0)],
)
def test_a_refusal_lets_the_lines_go_and_shuts_what_refused_more_than_one(forbidden, of_line, shut_for):
    after = after_refusal(forbidden=forbidden, of_line=of_line)
    assert after == AfterFailure(Recourse.RELEASE, shut_for, counts=True)


@pytest.mark.parametrize("code", ["server_error", "internal_error", "", "a word of next year"])
def test_what_nobody_knows_releases_the_lines(code):
    assert after_failure(code) == AfterFailure(Recourse.RELEASE, 600.0, counts=True)


def test_a_batch_is_gone_when_it_was_missed_often_and_for_long():
    assert not is_gone(1, HOUR)
    assert not is_gone(100, 10.0)
    assert is_gone(5, 120.0)


def test_a_key_has_no_right_where_it_was_refused_often_and_for_long():
    assert not is_meant(1, HOUR)
    assert not is_meant(100, 10.0)
    assert is_meant(3, 60.0)


@pytest.mark.parametrize(
    ("outlet", "window", "life"),
    [
        (BatchOutlet("openai"), DAY, DAY + 600.0),
        (BatchOutlet("gemini", hard_expiry=48 * HOUR, cancelling=0.0), DAY, 48 * HOUR),
        (BatchOutlet("azure", hard_expiry=None), DAY, 2 * DAY + 600.0),
        (BatchOutlet("groq", windows=(DAY, 7 * DAY), hard_expiry=DAY), 7 * DAY, 7 * DAY + 600.0),
    ],
)
def test_an_unknown_status_is_waited_for_until_after_the_end(outlet, window, life):
    assert given_up_at(1000.0, window, outlet) == 1000.0 + life
