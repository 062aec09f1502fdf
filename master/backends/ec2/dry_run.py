"""What `gridml launch --dry-run` prints: what would be asked of EC2, and what it costs at the present prices."""

from __future__ import annotations

from collections.abc import Mapping

from gridml.model.loading import load
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.money import full_prices, offers
from master.backends.ec2.options import Ec2Options
from master.backends.ec2.site import find_site
from master.decisions.spending import estimated
from master.store.settings import Settings


def describe(settings: Settings, cloud: Cloud) -> str:
    """Return what would be launched, as text. Raises what loading the program or building its graph raises."""
    load(settings.program).build(settings.program)  # what is wrong with it is said now
    options = Ec2Options.among(settings.options)
    site = find_site(cloud, options)
    kind = "on-demand instances" if options.on_demand else "spot instances, price-capacity-optimized"
    lines = [
        f"# {settings.workers} {kind}, in {site.region} of account {site.account}",
        f"image           {site.image.id} ({site.image.name}, {site.image.architecture})",
        f"types           {', '.join(site.types)}",
        f"subnets         {', '.join(f'{subnet} ({zone})' for zone, subnet in site.subnets.items())}",
        f"security group  {options.security_group or 'one of its own, which lets nothing in'}",
    ]
    if options.max_price is not None:
        lines.append(f"at most         ${options.max_price:g} for an hour of an instance")
    if options.on_demand:
        return "\n".join([*lines, _on_demand(full_prices(cloud, site), settings.workers)])
    estimate = estimated(offers(cloud, site, options), settings.workers, budget=options.budget)
    return "\n".join([*lines, *estimate.lines()])


def _on_demand(full: Mapping[str, float], instances: int) -> str:
    if not full:
        return "what that costs is not known: the credentials do not allow pricing:GetProducts"
    cheapest, dearest = min(full, key=full.__getitem__), max(full, key=full.__getitem__)
    low, high = instances * full[cheapest], instances * full[dearest]
    return f"{instances} instances: ${low:.4g}/h as {cheapest}, ${high:.4g}/h as {dearest}"
