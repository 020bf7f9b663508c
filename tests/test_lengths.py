"""Distributions of lengths: read, drawn, and by their percentiles."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import InputError
from orchestra.lengths import Lengths

FORMS = ["7", "7:p95", "uniform:3:9", "lognormal:20:1.5:64", "lognormal:20:0", "10:p50,90:p95", "1_000"]


@given(st.sampled_from(FORMS), st.integers())
def test_lengths_lie_within_and_read_back(text, seed):
    lengths = Lengths.parse(text)
    drawn = [lengths.draw(random.Random(seed)) for _ in range(20)]
    assert all(lengths.low <= length <= lengths.high for length in drawn)
    assert Lengths.parse(str(lengths)) == lengths


def test_lognormal_lengths_have_their_median_and_their_tail():
    draw = random.Random(1)
    drawn = sorted(Lengths.parse("lognormal:100:0.5").draw(draw) for _ in range(4000))
    assert drawn[2000] == pytest.approx(100, rel=0.05)
    assert drawn[int(4000 * 0.841)] == pytest.approx(100 * math.exp(0.5), rel=0.07)  # one sigma above


@given(st.integers(1, 5000), st.integers(0, 20_000), st.sampled_from([75.0, 95.0, 99.0]))
def test_percentiles_are_kept(median, more, percentile):
    lengths = Lengths.parse(f"{median}:p50, {median + more}:p{percentile:g}")
    assert (lengths.at(0.5), lengths.at(percentile / 100)) == (median, median + more)
    assert lengths.at(0.3) <= median <= lengths.at(0.7) <= lengths.at(0.9999)


@pytest.mark.parametrize("text", ["200:p50,1500:p95", "uniform:200:400", "lognormal:200:0.8:700", "9"])
def test_what_is_drawn_and_what_is_foretold_are_one(text):
    lengths, draw = Lengths.parse(text), random.Random(2)
    drawn = sorted(lengths.draw(draw) for _ in range(8000))
    for share in (0.25, 0.5, 0.9):
        assert drawn[int(share * 8000)] == pytest.approx(lengths.at(share), rel=0.06)


def test_it_is_log_normal_between_percentiles():
    third_quartile = Lengths.parse("200:p50,1500:p95").at(0.75)
    assert third_quartile == pytest.approx(200 * (1500 / 200) ** (0.6745 / 1.6449), rel=0.01)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is no number of tokens"),
        ("0", "'0' is no number"),
        ("-3", "'-3' is no number"),
        ("1e3", "'1e3' is no number"),
        ("99999999999", "no number"),
        ("x:1", "'x' is no number"),
        ("5:50", "'50' is no percentile"),
        ("5:p0", "'p0' is no percentile"),
        ("5:p100", "'p100' is no percentile"),
        ("5:pnan", "'pnan' is no percentile"),
        ("5:pfew", "'few' is no number"),
        ("5,6:p95", "each of several lengths needs its percentile"),
        ("5:p50,4:p95", "must have the greater length"),
        ("5:p50,6:p50", "must have the greater length"),
        ("uniform:9:3", "the least is above the most"),
        ("lognormal:9", "lognormal has other parts"),
        ("uniform", "uniform has other parts"),
        ("lognormal:nan:1", "median must be from 1"),
        ("lognormal:90:1:80", "median must be from 1"),
        ("lognormal:9:6", "sigma must be from 0 to 5"),
    ],
)
def test_what_is_no_length(text, why):
    with pytest.raises(
        InputError, match=r"the output lengths .* cannot be read: .*\. Write 128, 200:p50"
    ) as error:
        Lengths.parse(text, "output")
    assert why in str(error.value)
