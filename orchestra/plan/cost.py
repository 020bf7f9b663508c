"""What tokens cost: on a machine that is paid by the hour, and at a provider that is paid by the token."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestra.errors import InputError

__all__ = ["Comparison", "HostedPrice", "compare", "dollars_per_request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedPrice:
    """US dollars for a million tokens of input and of output, and the share that batches are cheaper by.

    Raises InputError for what is no price, or a discount outside 0 to 1.
    """

    input: float
    output: float
    batch_discount: float = 0.0

    def __post_init__(self) -> None:
        for price in (self.input, self.output):
            if not (math.isfinite(price) and price >= 0):
                raise InputError(f"a price for a million tokens is a number of dollars from 0, not {price:g}")
        if not 0 <= self.batch_discount <= 1:
            raise InputError(f"the discount of batches is from 0 to 100 %, not {self.batch_discount:.0%}")

    def per_request(self, prompt: float, output: float) -> float:
        """Dollars for a request of so many tokens that is answered at once."""
        return (prompt * self.input + output * self.output) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A request's price in US dollars: of one's own at full load, hosted, and in a hosted batch.

    ``worth_from`` is the share of the full load from which on one's own is the cheaper one, and
    ``worth_from_batch`` the same against batches; None where it never is.
    """

    own: float
    hosted: float
    batch: float

    @property
    def worth_from(self) -> float | None:
        return self.own / self.hosted if self.own < self.hosted else None

    @property
    def worth_from_batch(self) -> float | None:
        return self.own / self.batch if self.own < self.batch else None


def dollars_per_request(per_hour: float, requests_per_second: float) -> float:
    """What a request costs on a machine for ``per_hour`` dollars that always has as many. Raises InputError."""
    if not (math.isfinite(per_hour) and per_hour > 0):
        raise InputError(f"what a machine costs an hour is a number of dollars above 0, not {per_hour:g}")
    return per_hour / 3600 / requests_per_second


def compare(own: float, price: HostedPrice, prompt: float, output: float) -> Comparison:
    """Hold a request of so many tokens, for ``own`` dollars, against its hosted price."""
    hosted = price.per_request(prompt, output)
    return Comparison(own=own, hosted=hosted, batch=hosted * (1 - price.batch_discount))
