"""Which GPU devices of a node an amount is taken from.

GPU amounts are tracked per device, because 0.5 + 0.5 free on two devices is not one GPU. Until an agent
reports its devices, the least favourable one is assumed for it: the device with the most free units.
"""

from __future__ import annotations

from collections.abc import Sequence

from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.messages.facts import Devices

NO_DEVICES = Devices()

#: Up to so many shares of different sizes are tried in every order, more of them in one order only.
MOST_SHARES = 12


def devices_for(free: Sequence[int], gpu: int) -> Devices | None:
    """The devices assumed for this GPU amount, given the free units of each device; None: it does not fit.

    A share is taken from the device with the most free units, which is the worst that Ray could do to later
    requests; whole devices must be entirely free.
    """
    if gpu == 0:
        return NO_DEVICES
    if gpu < UNIT:
        most = max(free, default=0)
        return Devices(units=((free.index(most), gpu),)) if most >= gpu else None
    whole_devices = [i for i, units in enumerate(free) if units == UNIT][: gpu // UNIT]
    return (
        Devices(units=tuple((i, UNIT) for i in whole_devices))
        if len(whole_devices) * UNIT == gpu
        else None
    )


def devices_for_all(free: Sequence[int], gpus: Sequence[int]) -> tuple[Devices, ...] | None:
    """The devices assumed for these GPU amounts on one node, in their order; None: they do not fit together.

    Whole devices are chosen first, then shares, the largest first or, of few, in whatever order lets all of
    them fit.
    """
    free_units = list(free)
    chosen: dict[int, Devices] = {}
    order = sorted(range(len(gpus)), key=lambda i: -gpus[i])
    for i in (i for i in order if gpus[i] >= UNIT or not gpus[i]):
        devices = devices_for(free_units, gpus[i])
        if devices is None:
            return None
        _subtract(free_units, devices)
        chosen[i] = devices
    shares = [i for i in order if 0 < gpus[i] < UNIT]
    placed = _in_order(free_units, shares, gpus)
    if placed is not None:
        chosen.update(placed)
    elif len(shares) > MOST_SHARES or not _place_shares(free_units, shares, gpus, chosen, set()):
        return None
    return tuple(chosen[i] for i in range(len(gpus)))


def count_of(free: Sequence[int], gpu: int, most: int) -> int:
    """How many equal GPU amounts fit on these devices together, up to so many."""
    if not gpu:
        return most
    if gpu >= UNIT:
        return min(most, sum(units == UNIT for units in free) // (gpu // UNIT))
    return min(most, sum(units // gpu for units in free if units > 0))


def worst_devices(free: Sequence[int], gpu: int) -> Devices:
    """Devices for an amount of which only the sum is known: whole ones first, then a share of the next.

    What exceeds all free units is charged to the first device, whose free units become negative.
    """
    taken = {}
    for i, units in enumerate(free):
        part = max(0, min(units, gpu))
        if part:
            taken[i] = part
            gpu -= part
    if gpu and free:
        taken[0] = taken.get(0, 0) + gpu
    return Devices(units=tuple(sorted(taken.items())))


def add_devices(left: Devices, right: Devices) -> Devices:
    """The sum of both, device by device."""
    if not right.units:
        return left
    total = dict(left.units)
    for i, units in right.units:
        total[i] = total.get(i, 0) + units
    return Devices(units=tuple(sorted(total.items())))


def gpu_of(devices: Devices) -> int:
    """The sum over the devices, in GPU units."""
    return sum(units for _, units in devices.units)


def _in_order(
    free: Sequence[int], shares: Sequence[int], gpus: Sequence[int]
) -> dict[int, Devices] | None:
    """The devices of these shares, put there one after the other; None: one finds none."""
    remaining, chosen = list(free), dict[int, Devices]()
    for i in shares:
        devices = devices_for(remaining, gpus[i])
        if devices is None:
            return None
        _subtract(remaining, devices)
        chosen[i] = devices
    return chosen


def _place_shares(
    free: list[int],
    shares: list[int],
    gpus: Sequence[int],
    chosen: dict[int, Devices],
    failed: set[tuple[tuple[int, ...], tuple[int, ...]]],
) -> bool:
    """Choose devices for these shares; whether that is possible. ``failed``: the states already tried."""
    if not shares:
        return True
    key = (tuple(sorted(free)), tuple(gpus[i] for i in shares))
    if key in failed:
        return False
    for at, i in enumerate(shares):
        if at and gpus[i] == gpus[shares[at - 1]]:
            continue
        devices = devices_for(free, gpus[i])
        if devices is None:
            break
        remaining = list(free)
        _subtract(remaining, devices)
        if _place_shares(remaining, shares[:at] + shares[at + 1 :], gpus, chosen, failed):
            chosen[i] = devices
            return True
    failed.add(key)
    return False


def _subtract(free: list[int], devices: Devices) -> None:
    for i, units in devices.units:
        free[i] -= units
