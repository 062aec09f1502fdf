"""The queue of workers without an instance, and the launch requests for them, with back-off of spot pools."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from master.backends.ec2.answers import (
    PERMANENT,
    CloudError,
    FleetInstance,
    FleetRequest,
    PoolError,
    Refusal,
    Refusals,
    SpotPool,
    Template,
    after_refusal,
    concerns_account,
    no_pool_left,
    pools_to_ask,
    refusal_of,
)
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.options import Ec2Options
from master.backends.ec2.provisioning import Site

MAX_FLEET_INSTANCES = 100  # in one request
_MAX_NAMED = 3  # pools named in one message


@dataclass(frozen=True)
class SentRequest:
    """A launch request, and the workers that get its instances."""

    request: FleetRequest
    workers: tuple[str, ...]


class Launching:
    """The launch queue of a run.

    A request is retried with the same token until it is answered. EC2 then launches nothing twice, even if an answer
    was lost.
    """

    def __init__(self, run: str, site: Site, options: Ec2Options, tags: Mapping[str, str]) -> None:
        self.waiting: list[str] = []  # workers without an instance, in order
        self.news: list[str] = []  # warnings, which the back end drains
        self.denied = ""  # why nothing will ever be launched; "" while something may be
        self._run, self._site, self._options, self._tags = run, site, options, tags
        self._refused: dict[SpotPool, Refusals] = {}  # back-off by pool; dropped when the pool gives an instance
        self._account = Refusals()  # back-off of all pools together
        self._answered = 0  # number of this master's requests that EC2 answered; part of the next token
        self._again: SentRequest | None = None  # a request without an answer, which EC2 may have executed
        self._unsuited = ""  # EC2's message about a pool that does not exist
        self._reported: set[Refusal | str] = set()  # problems already reported; cleared when all workers have instances

    def due(self, template: str, now: float, most: int) -> SentRequest | None:
        """Return the request to send now: the unanswered one, or else a new one for at most `most` instances. None if
        no worker waits, all pools back off, or the new one would be for 0 instances."""
        if not self.waiting:
            self._again = None
            return None
        pools, _ = pools_to_ask(self._site.pools, self._refused, self._account, now)
        if not pools:
            return None
        if self._again is not None:
            return self._again
        workers = tuple(self.waiting[: min(most, MAX_FLEET_INSTANCES)])
        if not workers:
            return None
        request = FleetRequest(
            template=template,
            count=len(workers),
            pools=tuple(pools),
            subnets=self._site.subnets,
            token=self._token(workers, now),
            tags=self._tags,
            max_price=self._options.max_price,
            on_demand=self._options.on_demand,
        )
        return SentRequest(request, workers)

    @property
    def unanswered(self) -> bool:
        """Return whether the last request got no answer: it may have launched instances."""
        return self._again is not None

    def launch(
        self, cloud: Cloud, user_data: str, asked: SentRequest
    ) -> tuple[str, list[FleetInstance], list[PoolError]]:
        """Send a request; blocks. The first request creates the launch template. Returns the template's name
        (for the next request), the launched instances and the errors. Raises CloudError."""
        name = asked.request.template or self._make_template(cloud, user_data)
        return name, *cloud.launch(replace(asked.request, template=name))

    def _make_template(self, cloud: Cloud, user_data: str) -> str:
        """Create the launch template and return its name."""
        # The name contains a digest of the content, because a later master at another address needs another template.
        group = self._options.security_group
        group = group or cloud.make_group(f"gridml-{self._run}", self._site.vpc, self._tags)
        image, key_name = self._site.image.id, self._options.key_name
        digest = hashlib.sha256("\0".join([image, user_data, group, key_name or ""]).encode()).hexdigest()[:12]
        template = Template(f"gridml-{self._run}-{digest}", image, user_data, group, key_name)
        cloud.make_template(template, self._tags)
        return template.name

    def answered(
        self, asked: SentRequest, launched: Sequence[FleetInstance], errors: Sequence[PoolError], now: float
    ) -> tuple[list[tuple[str, FleetInstance]], list[FleetInstance]]:
        """Handle an answer. Returns (worker, instance) pairs, and the instances for which no worker waits any more."""
        self._again = None
        self._answered += 1
        waiting = [worker for worker in asked.workers if worker in self.waiting]
        given = list(zip(waiting, launched, strict=False))
        for worker, instance in given:
            self.waiting.remove(worker)
            self._refused.pop(instance.pool, None)
        if launched:
            self._account = Refusals()
        if errors or not launched:
            self._handle_refusals(errors, len(asked.workers) - len(launched), now, any_launched=bool(launched))
        elif not self.waiting:
            self._reported.clear()
        return given, [*launched[len(given) :]]

    def failed(self, asked: SentRequest, error: CloudError, now: float) -> None:
        """Handle a request that was refused as a whole, or not answered."""
        if error.passing:
            self._again = asked  # EC2 may have executed it
            because = Refusal.OTHER
        else:
            self._again, self._answered = None, self._answered + 1
            because = refusal_of(error.code)
        if because in (Refusal.CAPACITY, Refusal.PRICE, Refusal.UNSUITED):
            refused = [PoolError(pool, error.code, str(error)) for pool in asked.request.pools]
            self._handle_refusals(refused, len(asked.workers), now)
            return
        self._back_off_account(because, str(error), now)

    def no_use(self) -> str | None:
        """Return why no waiting worker will ever get an instance; None if none waits, or one may get an instance."""
        if not self.waiting:
            return None
        if self.denied:
            return f"EC2 launches no instances: {self.denied}"
        none_left, reason = no_pool_left(self._site.pools, self._refused)
        return f"{reason} ({self._unsuited})" if none_left else None

    def _token(self, workers: Sequence[str], now: float) -> str:
        """Return an idempotency token, 64 characters."""
        # `now` distinguishes this master's requests from those of earlier masters with the same `_answered`.
        text = "\0".join([self._run, *workers, str(self._answered), f"{now:.3f}"])
        return hashlib.sha256(text.encode()).hexdigest()

    def _handle_refusals(
        self, errors: Sequence[PoolError], missing: int, now: float, *, any_launched: bool = False
    ) -> None:
        by_kind: dict[Refusal, list[PoolError]] = {}
        for error in errors:
            by_kind.setdefault(refusal_of(error.code), []).append(error)
        final = next((because for because in PERMANENT if because in by_kind), None)
        if final is not None and not any_launched:
            self._back_off_account(final, _with_code(by_kind[final][0]), now)
            return
        for because, of_kind in by_kind.items():
            said = ""
            for pool in {error.pool for error in of_kind if error.pool is not None}:
                before = self._refused.get(pool, Refusals())
                self._refused[pool], said = after_refusal(before, because, now)
            if because is Refusal.UNSUITED:
                self._unsuited = _with_code(of_kind[0])
            if said and missing:
                self._report(because, f"EC2 gives no instances of {_pools(of_kind)}: {said} ({_with_code(of_kind[0])})")
        of_account, _ = concerns_account(by_kind)
        if of_account or (not errors and not any_launched):
            because = Refusal.QUOTA if Refusal.QUOTA in by_kind else Refusal.OTHER
            error = next(iter(by_kind.get(because, ())), PoolError(None, "", "no reason is given"))
            self._back_off_account(because, _with_code(error), now)

    def _back_off_account(self, because: Refusal, said: str, now: float) -> None:
        self._account, text = after_refusal(self._account, because, now, of_account=True)
        if self._account.for_good:
            self.denied = said
        advice = (
            " Have it raised (Service Quotas, EC2), or ask for fewer --instances." if because is Refusal.QUOTA else ""
        )
        self._report(f"account {because}", f"EC2 launches nothing: {text} ({said}).{advice}")

    def _report(self, what: Refusal | str, text: str) -> None:
        """Report a problem, unless it was reported since all workers last had instances."""
        if what not in self._reported:
            self._reported.add(what)
            self.news.append(text)


def _with_code(error: PoolError) -> str:
    if error.code in error.message:  # the message of a CloudError contains its code
        return error.message
    return f"{error.code}: {error.message}".strip(": ") or "no reason is given"


def _pools(errors: Sequence[PoolError]) -> str:
    names = sorted({str(error.pool) for error in errors if error.pool is not None})
    more = f" and {len(names) - _MAX_NAMED} more pools" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
