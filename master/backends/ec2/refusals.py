"""What EC2's error codes say of a launch that brought less than it was asked for: one table."""

from __future__ import annotations

from collections.abc import Mapping

from master.decisions.spot_fleet import Refusal

_REFUSALS: Mapping[str, Refusal] = {
    "InsufficientInstanceCapacity": Refusal.CAPACITY,
    "InsufficientHostCapacity": Refusal.CAPACITY,
    "InsufficientReservedInstanceCapacity": Refusal.CAPACITY,
    "InsufficientCapacity": Refusal.CAPACITY,
    "UnfulfillableCapacity": Refusal.CAPACITY,
    "SpotMaxPriceTooLow": Refusal.PRICE,
    "MaxSpotInstanceCountExceeded": Refusal.QUOTA,
    "MaxSpotFleetRequestCountExceeded": Refusal.QUOTA,
    "SpotInstanceCountLimitExceeded": Refusal.QUOTA,
    "VcpuLimitExceeded": Refusal.QUOTA,
    "InstanceLimitExceeded": Refusal.QUOTA,
    "FleetLimitExceeded": Refusal.QUOTA,
    "Unsupported": Refusal.UNSUITED,
    "UnsupportedOperation": Refusal.UNSUITED,
    "InvalidFleetConfiguration": Refusal.UNSUITED,
    "InvalidInstanceType": Refusal.UNSUITED,
    "InvalidParameterValue": Refusal.UNSUITED,
    "InvalidParameterCombination": Refusal.UNSUITED,
    "UnauthorizedOperation": Refusal.DENIED,
    "AccessDenied": Refusal.DENIED,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Refusal.DENIED,
    "OptInRequired": Refusal.DENIED,
    "InvalidAMIID.NotFound": Refusal.MISSING,
    "InvalidKeyPair.NotFound": Refusal.MISSING,
    "InvalidSubnetID.NotFound": Refusal.MISSING,
}


def refusal_of(code: str) -> Refusal:
    """Return what an error code of EC2 says of a pool, or of the account."""
    return _REFUSALS.get(code, Refusal.OTHER)
