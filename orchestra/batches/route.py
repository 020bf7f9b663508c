"""A model behind a batch endpoint: what lines that ask for it may ride in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestra.budget import batch_factor, cost
from orchestra.call import Call, Charge, Headers, Usage
from orchestra.config import BatchConfig
from orchestra.dispatch.accounts import Account
from orchestra.dispatch.route_table import Target
from orchestra.policies.diversion import BatchOutlet
from orchestra.providers import Endpoint, expected_usage
from orchestra.providers.batches import BatchForm

__all__ = ["BatchRoute"]

_READ_BY_PROVIDER = frozenset({"anthropic-version", "anthropic-beta"})
"""Headers of a call that say how its body is meant: a batch has one set of them."""
_SHARE_OF_CAP = 0.5
"""What of a cap in dollars a batch takes at most: all that it may cost is counted when it is handed in."""


@dataclass(frozen=True, slots=True)
class BatchRoute:
    """Where a batch can be sent.

    ``name`` is that of the route, ``provider/model``, and the form's label after it where that is no batch proper;
    ``path`` is the endpoint below the account's base URL. Lines of equal `group` may ride together.
    ``fingerprint`` names the key; ``credentials`` carry it where it is the caller's own.
    """

    name: str
    account: Account
    form: BatchForm
    config: BatchConfig
    endpoint: Endpoint
    path: str
    model: str
    fingerprint: str
    headers: Headers = ()
    credentials: Headers = field(default=(), repr=False)

    @classmethod
    def of(cls, target: Target, call: Call, *, again: bool = False) -> list[BatchRoute]:
        """Return where ``target`` takes calls like ``call`` in batches, batches proper first.

        ``again``: for a batch that there is already, which is carried though the settings want no more of them.
        """
        account = target.account
        if account is None or target.model is None or not target.metered:
            return []
        endpoint = account.provider.endpoint(target.path)
        forms = account.batch_forms if again else account.batches
        return [
            cls(
                name=target.name if form.via == "batch" else f"{target.name} {form.label}",
                account=account,
                form=form,
                config=account.batch,
                endpoint=endpoint,
                path=target.path,
                model=target.model,
                fingerprint=account.fingerprint(call),
                headers=tuple(line for line in call.headers if line[0] in _READ_BY_PROVIDER),
                credentials=account.credentials_of(call),
            )
            for form in forms
            if endpoint in form.traits.endpoints
        ]

    @property
    def group(self) -> tuple[str, str, str, Headers, Headers]:
        """What all lines of a batch have in common."""
        return (self.name, self.path, self.fingerprint, self.headers, self.credentials)

    @property
    def max_requests(self) -> int:
        documented = self.form.traits.max_requests
        return min(self.config.max_requests or documented, documented)

    @property
    def max_bytes(self) -> int:
        documented = self.form.traits.max_bytes
        return min(self.config.max_bytes or documented, documented)

    @property
    def queue(self) -> float:
        """How many input tokens the account's queue holds, in all batches together."""
        limits = self.account.limits(self.model)
        queue = None if limits is None else limits.enqueued_batch_tokens
        return math.inf if queue is None else queue

    @property
    def is_capped(self) -> bool:
        """Whether the account has a limit in dollars."""
        return self.cap < math.inf

    @property
    def cap(self) -> float:
        """The account's limit in dollars a day."""
        limits = self.account.limits(self.model)
        cap = None if limits is None else limits.usd_per_day
        return math.inf if cap is None else float(cap)

    @property
    def cap_share(self) -> float:
        """What of the cap a batch is thought to cost at most, if its lines can be had in smaller ones."""
        return _SHARE_OF_CAP * self.cap

    @property
    def price_factor(self) -> float:
        """What a token costs in a batch, of its ordinary price."""
        return batch_factor(self.account.price(self.model), self.form.traits.price_factor, self.form.label)

    def outlet(self, observed: float | None = None) -> BatchOutlet:
        """Return what the choice among outlets goes by. ``observed``: the p90 of how long such batches took."""
        traits, config = self.form.traits, self.config
        return BatchOutlet(
            name=self.name,
            price_factor=self.price_factor,
            windows=traits.windows,
            hard_expiry=traits.hard_expiry,
            keeps_finished=traits.keeps_finished,
            cancelling=traits.cancelling if config.cancelling_seconds is None else config.cancelling_seconds,
            observed=observed,
            expected=None if self.form.is_call else config.expected_seconds,
        )

    def takes(self, payload: Mapping[str, Any]) -> bool:
        """Return whether a request can ride at all."""
        return self.form.takes(payload)

    def body_for(self, body: bytes) -> bytes:
        """Return a line's body as it asks for this route's model."""
        payload = json.loads(body)
        if payload.get("model") == self.model:
            return body
        told = self.account.provider.payload_for(payload, self.model)
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()

    def tokens_of(self, payload: Mapping[str, Any]) -> int:
        """Return the input tokens that a request is thought to have: what a queue of batches counts."""
        return math.ceil(self.account.provider.charge(self.endpoint, payload).input_tokens)

    def charge_of(self, payload: Mapping[str, Any]) -> Charge:
        """Return what the creation counts, of a form that is an ordinary call of this line."""
        return replace(self.account.provider.charge(self.endpoint, payload), usd=self.expected_usd(payload))

    def usage_of(self, body: bytes) -> Usage:
        """Return the usage that an answer tells. Raises FormatError where it is none of this endpoint's."""
        return self.account.provider.usage(self.endpoint, body)

    def expected_usd(self, payload: Mapping[str, Any]) -> float | None:
        """Return what a request is thought to cost in a batch; None where nobody knows."""
        charge = self.account.provider.charge(self.endpoint, payload)
        usage = expected_usage(self.endpoint, payload, charge)
        return None if usage is None else self.usd_of(usage)

    def usd_of(self, usage: Usage) -> float | None:
        """Return what an answer costs in a batch; None where no price is known."""
        price = self.account.price(self.model)
        return None if price is None else cost(price, usage, self.price_factor)
